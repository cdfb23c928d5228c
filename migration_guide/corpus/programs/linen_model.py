"""A Linen model whose whole variables dict is frozen and optimized."""
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import optim
from flax.core import freeze


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(4)(x))
        return nn.Dense(1)(x)


params = freeze({'Dense_0': {'kernel': jnp.linspace(-1, 1, 8).reshape(2, 4), 'bias': jnp.zeros(4)},
                 'Dense_1': {'kernel': jnp.linspace(-0.5, 1, 4).reshape(4, 1), 'bias': jnp.zeros(1)}})
model = MLP()
x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)
y = x[:, :1] * 2
optimizer = optim.Adam(learning_rate=0.02).create(params)


@jax.jit
def train_step(optimizer, batch):
    def loss_fn(params):
        logits = model.apply({'params': params}, batch['x'])
        return jnp.mean((logits - batch['y']) ** 2), logits
    (loss, logits), grad = jax.value_and_grad(loss_fn, has_aux=True)(optimizer.target)
    optimizer = optimizer.apply_gradient(grad)
    return optimizer, {'loss': loss, 'mean': jnp.mean(logits)}


@jax.jit
def eval_step(params, batch):
    return model.apply({'params': params}, batch['x'])


for _ in range(5):
    optimizer, metrics = train_step(optimizer, {'x': x, 'y': y})
logits = eval_step(optimizer.target, {'x': x})
print(json.dumps({'loss': float(metrics['loss']), 'logits': np.asarray(logits).tolist()}))
