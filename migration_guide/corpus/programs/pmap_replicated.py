"""Replicated over devices, gradients averaged in the step."""
import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import jax_utils, optim

n = jax.local_device_count()
optimizer = optim.Adam(learning_rate=0.02, weight_decay=0.1).create({'w': jnp.arange(3.0)})
optimizer = jax_utils.replicate(optimizer)
data = np.linspace(0, 1, 2 * 3, dtype=np.float32).reshape(2, 3)[:n]


def train_step(optimizer, batch, lr):
    grad = jax.grad(lambda p: jnp.sum((p['w'] - batch) ** 2))(optimizer.target)
    grad = jax.lax.pmean(grad, axis_name='batch')
    return optimizer.apply_gradient(grad, learning_rate=lr)


p_train_step = jax.pmap(train_step, axis_name='batch')
for i in range(3):
    optimizer = p_train_step(optimizer, data, np.full((n,), 0.1 / (i + 1), np.float32))
step = int(optimizer.state.step[0])
w = jax_utils.unreplicate(optimizer.target)['w']
single = jax_utils.unreplicate(optimizer)
print(json.dumps({'w': np.asarray(w).tolist(), 'step': step, 'same': np.asarray(single.target['w']).tolist()}))
