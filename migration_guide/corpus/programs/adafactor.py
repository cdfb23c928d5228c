"""Adafactor as in T5X, factored and not."""
import json

import jax
import jax.numpy as jnp
from flax import optim

params = {'wide': jnp.linspace(-1.0, 1.0, 24).reshape(4, 6), 'bias': jnp.linspace(0.5, 1.0, 5)}
optimizer_def = optim.Adafactor(0.05, decay_rate=0.8, min_dim_size_to_factor=3, beta1=0.9)
optimizer = optimizer_def.create(params)


@jax.jit
def step(optimizer):
    return optimizer.apply_gradient(jax.tree_map(lambda p: jnp.sin(3 * p) + 0.1, optimizer.target))


for _ in range(4):
    optimizer = step(optimizer)
print(json.dumps({k: v.tolist() for k, v in optimizer.target.items()}))
