"""Code that asks what it got."""
import json

import flax
import jax.numpy as jnp
from flax import optim


def get_params(x):
    if isinstance(x, flax.optim.Optimizer):
        return x.target
    return x


opt = optim.GradientDescent(0.1).create({'w': jnp.ones(2)})
opt = opt.apply_gradient(get_params(opt))
print(json.dumps([get_params(opt)['w'].tolist(), get_params({'w': jnp.zeros(1)})['w'].tolist()]))
