"""What sides are given: parameters, streams of gradients, models and data."""
