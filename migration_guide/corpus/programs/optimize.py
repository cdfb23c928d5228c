"""Gradient and step in one."""
import json

import jax.numpy as jnp
from flax import optim

optimizer = optim.Momentum(learning_rate=0.1).create(jnp.linspace(0.0, 1.0, 4))
losses = []
for i in range(3):
    optimizer, loss = optimizer.optimize(lambda p: jnp.sum((p - 3.0) ** 2))
    losses.append(float(loss))
optimizer, loss, aux = optimizer.optimize(lambda p: (jnp.sum(p), jnp.max(p)), learning_rate=0.5)
print(json.dumps({'losses': losses, 'loss': float(loss), 'aux': float(aux), 'p': optimizer.target.tolist()}))
