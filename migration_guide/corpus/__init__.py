"""Programs of flax.optim and what they print on the genuine flax 0.5.3."""
