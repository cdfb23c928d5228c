"""Optimizers as sides, the gradients that they get, real models and data."""
