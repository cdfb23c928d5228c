"""The optimizer is the carry of a scan."""
import json

import jax
import jax.numpy as jnp
from flax import optim


def body(carry, x):
    optimizer, total = carry
    loss, grad = jax.value_and_grad(lambda p: jnp.sum((p - x) ** 2))(optimizer.target)
    return (optimizer.apply_gradient(grad), total + loss), loss


optimizer = optim.Adam(learning_rate=0.1).create(jnp.zeros(4))
(optimizer, total), losses = jax.lax.scan(body, (optimizer, 0.0), jnp.linspace(0, 1, 6))
print(json.dumps({'p': optimizer.target.tolist(), 'total': float(total), 'losses': losses.tolist(),
                  'step': int(optimizer.state.step)}))
