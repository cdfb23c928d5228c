"""From `flax.optim` to Optax: the guide, the codemod and the programs that measure it."""
