"""Pairs of optimizers that are equal as people write them, and pairs that are not."""
