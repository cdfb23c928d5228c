"""Optimizers are imported from a library of the program, by name and all at once."""
import json

import jax
import jax.numpy as jnp
import lib_of_optimizers
import numpy as np
from lib_of_optimizers import *  # noqa: F401,F403
from lib_of_optimizers import SGDMomentum as Momentum

params = {'layer': {'kernel': jnp.linspace(-1, 1, 6).reshape(2, 3), 'bias': jnp.zeros(3)}}
x = np.linspace(0, 1, 8, dtype=np.float32).reshape(4, 2)


def loss_fn(params):
    h = jax.nn.softplus(x @ params['layer']['kernel'] + params['layer']['bias'])
    return jnp.mean((h - 1.0) ** 2)


def fit(optimizer, learning_rate_fn=None):
    losses = []
    for step in range(4):
        loss, grad = jax.value_and_grad(loss_fn)(optimizer.target)
        if learning_rate_fn is None:
            optimizer = optimizer.apply_gradient(grad)
        else:
            optimizer = optimizer.apply_gradient(grad, learning_rate=learning_rate_fn(step))
        losses.append(float(loss))
    return losses, np.asarray(optimizer.target['layer']['bias']).tolist()


print(json.dumps([
    fit(Adam(learning_rate=0.1).create(params)),
    fit(lib_of_optimizers.Adam(beta2=0.99).create(params), warmup(0.1, 3)),
    fit(Momentum(learning_rate=0.2, beta=0.5).create(params)),
    fit(MultiOptimizer((ending_with('kernel'), Adam(0.05)),
                       (all_but('kernel'), lib_of_optimizers.SGDMomentum(0.1))).create(params)),
]))
