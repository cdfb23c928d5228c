"""Parameters are decayed after the step, as BiT does."""
import json

import jax
import jax.numpy as jnp
from flax import optim


def decay(tree, lr):
    return jax.tree_map(lambda p: p * (1.0 - lr * 0.1), tree)


opt = optim.Momentum(learning_rate=None, beta=0.9).create({'k': jnp.linspace(1.0, 2.0, 4)})
ema = opt.target
for i in range(4):
    lr = 0.05 * (i + 1)
    opt = opt.apply_gradient(jax.grad(lambda p: jnp.sum(jnp.exp(-p['k'])))(opt.target), learning_rate=lr)
    opt = opt.replace(target=decay(opt.target, lr))
    ema = jax.tree_multimap(lambda e, p: 0.9 * e + 0.1 * p, ema, opt.target)
print(json.dumps({'k': opt.target['k'].tolist(), 'ema': ema['k'].tolist()}))
