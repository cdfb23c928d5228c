"""replicate() and unreplicate() as methods: each step averages the gradients."""
import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import optim

optimizer = optim.Adam(learning_rate=0.05).create({'w': jnp.arange(3.0), 'b': jnp.ones(())})
optimizer = optimizer.replicate()
data = np.linspace(-1, 1, 2 * 3, dtype=np.float32).reshape(2, 3)[:jax.local_device_count()]


def loss_fn(params, batch):
    return jnp.sum((params['w'] * batch + params['b']) ** 2)


def train_step(optimizer, batch):
    grad = jax.grad(loss_fn)(optimizer.target, batch)
    optimizer = optimizer.apply_gradient(grad)
    return optimizer


p_train_step = jax.pmap(train_step, axis_name='batch')
for _ in range(4):
    optimizer = p_train_step(optimizer, data)
copies = np.asarray(optimizer.target['w'])
optimizer = optimizer.unreplicate()
print(json.dumps({
    'w': np.asarray(optimizer.target['w']).tolist(),
    'b': float(optimizer.target['b']),
    'step': int(optimizer.state.step),
    'same': bool((copies[0] == copies[-1]).all()),
}))
