"""A rate computed from the optimizer's own step, given at each call."""
import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import optim


def create_learning_rate_fn(base, steps):
    def step_fn(step):
        return base * 0.5 * (1.0 + jnp.cos(step / steps * jnp.pi))
    return step_fn


learning_rate_fn = create_learning_rate_fn(0.1, 10)
params = {'w': jnp.arange(6.0).reshape(2, 3) / 7}
optimizer = optim.Momentum(beta=0.9, nesterov=True).create(params)


@jax.jit
def step(optimizer, batch):
    grad = jax.grad(lambda p: jnp.sum(jnp.tanh(p['w'] * batch) ** 2))(optimizer.target)
    lr = learning_rate_fn(optimizer.state.step)
    new_optimizer = optimizer.apply_gradient(grad, learning_rate=lr)
    return new_optimizer, lr


rates = []
for i in range(6):
    optimizer, lr = step(optimizer, np.float32(0.2 * (1 + i)))
    rates.append(float(lr))
print(json.dumps({'rates': rates, 'w': np.asarray(optimizer.target['w']).tolist()}))
