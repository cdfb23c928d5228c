"""Weight normalisation around Adam."""
import json

import jax
import jax.numpy as jnp
from flax import optim

definition = optim.WeightNorm(optim.Adam(learning_rate=0.02), wn_decay=0.01)
optimizer = definition.create({'k': jnp.linspace(0.1, 1.2, 6).reshape(3, 2), 'b': jnp.ones(2)})
for _ in range(3):
    grad = jax.grad(lambda p: jnp.sum(jnp.sin(p['k'] @ p['b'])))(optimizer.target)
    optimizer = optimizer.apply_gradient(grad)
print(json.dumps({'k': optimizer.target['k'].tolist(), 'b': optimizer.target['b'].tolist()}))
