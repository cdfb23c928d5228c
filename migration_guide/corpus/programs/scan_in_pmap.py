"""Several steps in one scan within one pmap, gradients averaged by pmean; an outer loop of both."""
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import jax_utils
from flax import optim

STEPS_PER_CALL = 3


def loss_fn(params, x, y):
    return jnp.mean((jnp.tanh(x @ params['w1']) @ params['w2'] - y) ** 2)


def one_step(carry, batch, learning_rate_fn):
    optimizer, total = carry
    step = optimizer.state.step
    loss, grads = jax.value_and_grad(loss_fn)(optimizer.target, *batch)
    grads = jax.lax.pmean(grads, axis_name='devices')
    loss = jax.lax.pmean(loss, axis_name='devices')
    lr = learning_rate_fn(step)
    return (optimizer.apply_gradient(grads, learning_rate=lr), total + loss), (loss, lr)


@functools.partial(jax.pmap, axis_name='devices')
def train_many(optimizer, xs, ys):
    body = functools.partial(one_step, learning_rate_fn=lambda step: 0.3 / jnp.sqrt(step + 1.0))
    (optimizer, total), (losses, rates) = jax.lax.scan(body, (optimizer, 0.0), (xs, ys))
    return optimizer, losses, rates


n = jax.local_device_count()
rng = np.random.RandomState(5)
params = {'w1': jnp.asarray(rng.normal(size=(3, 4)), jnp.float32),
          'w2': jnp.asarray(rng.normal(size=(4, 2)), jnp.float32)}
optimizer_def = optim.Momentum(beta=0.9, weight_decay=1e-3)
optimizer = optimizer_def.create(params)
optimizer = jax_utils.replicate(optimizer)
all_losses, all_rates = [], []
while int(optimizer.state.step[0]) < 2 * STEPS_PER_CALL:
    xs = rng.normal(size=(n, STEPS_PER_CALL, 4, 3)).astype(np.float32)
    ys = np.stack([xs.sum(axis=-1), xs[..., 0]], axis=-1)
    optimizer, losses, rates = train_many(optimizer, xs, ys)
    all_losses += np.asarray(losses[0]).tolist()
    all_rates += np.asarray(rates[0]).tolist()
final = jax_utils.unreplicate(optimizer)
print(json.dumps({
    'losses': all_losses,
    'rates': all_rates,
    'w1': np.asarray(final.target['w1']).tolist(),
    'step': int(final.state.step),
}))
