"""The inputs of sides: parameters, streams of gradients, models and data."""
