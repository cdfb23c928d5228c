"""Definitions come from modules of the program, one of them with a class called Optimizer."""
import json

import definitions_elsewhere_momentum as momentum_clip
import jax
import jax.numpy as jnp
import numpy as np
from definitions_elsewhere_groups import get_optimizer_def


def loss_fn(params, x):
    h = jnp.tanh(x @ params['kernel'] + params['bias'])
    return jnp.mean((h - 0.5) ** 2)


def train(opt, steps):
    update = jax.jit(lambda opt, x, lr: opt.apply_gradient(
        jax.grad(loss_fn)(opt.target, x), learning_rate=lr))
    for i in range(steps):
        x = np.linspace(-1, 1 + i, 8, dtype=np.float32).reshape(4, 2)
        opt = update(opt, x, 0.3 / (i + 1))
    return opt


params = {'kernel': jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), 'bias': jnp.zeros(3)}
result = {}
opt = momentum_clip.Optimizer(dtype='float32', grad_norm_clip=0.1).create(params)
result['clipped'] = train(opt, 4)
opt_def = get_optimizer_def(weight_decay=0.01)
result['decayed'] = train(opt_def.create(params), 4)
print(json.dumps({
    name: {key: np.asarray(value).tolist() for key, value in opt.target.items()}
    for name, opt in result.items()}))
