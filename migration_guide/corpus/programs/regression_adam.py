"""The shape of Flax's own first examples: a definition, create, a jitted step."""
import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import optim

X = np.cos(np.arange(24, dtype=np.float32)).reshape(8, 3)
Y = np.sin(X.sum(axis=1, keepdims=True))


def create_optimizer(params, learning_rate, beta):
    optimizer_def = optim.Adam(learning_rate=learning_rate, beta1=beta)
    optimizer = optimizer_def.create(params)
    return optimizer


def loss_fn(params, x, y):
    return jnp.mean((x @ params['kernel'] + params['bias'] - y) ** 2)


@jax.jit
def train_step(optimizer, x, y):
    """Trains one step."""
    loss, grad = jax.value_and_grad(loss_fn)(optimizer.target, x, y)
    optimizer = optimizer.apply_gradient(grad)
    return optimizer, loss


params = {'kernel': jnp.full((3, 1), 0.1), 'bias': jnp.zeros(1)}
optimizer = create_optimizer(params, 0.05, beta=0.8)
losses = []
for _ in range(5):
    optimizer, loss = train_step(optimizer, X, Y)
    losses.append(float(loss))
print(json.dumps({'losses': losses, 'kernel': np.asarray(optimizer.target['kernel']).tolist(),
                  'step': int(optimizer.state.step)}))
