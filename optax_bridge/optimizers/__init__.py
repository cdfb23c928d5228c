"""The legacy optimizers as Optax transformations, one a file."""
