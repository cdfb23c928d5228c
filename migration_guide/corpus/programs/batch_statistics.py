"""Model state beside the optimizer, warm-up in the loop, rate logged."""
import json

import jax
import jax.numpy as jnp
from flax import optim

params, stats = {'w': jnp.linspace(0.1, 0.4, 4)}, {'mean': jnp.zeros(4)}
optimizer = optim.Momentum(beta=0.9, nesterov=False).create(params)


@jax.jit
def train_step(optimizer, stats, x, learning_rate):
    def loss_fn(p):
        return jnp.sum((p['w'] * (x - stats['mean'])) ** 2), {'mean': 0.9 * stats['mean'] + 0.1 * x}
    (loss, new_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(optimizer.target)
    return optimizer.apply_gradient(grads, learning_rate=learning_rate), new_stats, loss


rates = []
for i in range(4):
    step = int(optimizer.state.step)
    lr = 0.1 * min(1.0, (step + 1) / 3)
    optimizer, stats, loss = train_step(optimizer, stats, jnp.full(4, 1.0 + i), lr)
    rates.append(lr)
print(json.dumps({'w': optimizer.target['w'].tolist(), 'mean': stats['mean'].tolist(), 'rates': rates}))
