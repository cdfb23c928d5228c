"""Eight training programs of `flax.optim`'s time, each beside what it becomes."""
