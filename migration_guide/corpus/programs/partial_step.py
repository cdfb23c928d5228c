"""Partials, wrapped and jitted, with everything but data bound."""
import functools
import json

import jax
import jax.numpy as jnp
from flax import optim


def cosine(step, base):
    return base * jnp.cos(step * 0.1)


def train_step(opt, batch, scale, lr_fn):
    g = jax.grad(lambda p: scale * jnp.sum(p * batch))(opt.target)
    return opt.apply_gradient(g, learning_rate=lr_fn(opt.state.step))


step_fn = jax.jit(functools.partial(train_step, scale=2.0, lr_fn=functools.partial(cosine, base=0.3)))
opt = optim.GradientDescent().create(jnp.ones((2, 2)))
for i in range(4):
    opt = step_fn(opt, jnp.full((2, 2), i + 1.0))
print(json.dumps(opt.target.tolist()))
