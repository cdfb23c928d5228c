"""LARS with weight decay, a rate per epoch."""
import json

import jax
import jax.numpy as jnp
from flax import optim

optimizer = optim.LARS(beta=0.9, weight_decay=0.1, trust_coefficient=0.02).create({'k': jnp.linspace(0.1, 1.2, 6)})
for epoch in range(2):
    lr = 1.0 / (epoch + 1)
    for _ in range(3):
        grads = jax.tree_map(jnp.sin, optimizer.target)
        optimizer = optimizer.apply_gradient(grads, learning_rate=lr)
print(json.dumps(optimizer.target['k'].tolist()))
