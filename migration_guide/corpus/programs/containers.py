"""Optimizers in tuples, lists and dicts."""
import json

import jax
import jax.numpy as jnp
from flax import optim

definitions = {'adam': optim.Adam(0.1), 'sgd': optim.GradientDescent(0.1)}
optimizers = {name: d.create(jnp.linspace(1, 2, 3)) for name, d in definitions.items()}
for name, optimizer in optimizers.items():
    grad = jax.grad(lambda p: jnp.prod(p))(optimizer.target)
    optimizers[name] = optimizer.apply_gradient(grad)
pair = (optim.Momentum(0.1).create(jnp.ones(2)), 7)
opt, seven = pair
ensemble = [optim.Adam(0.1 * (i + 1)).create(jnp.ones(2)) for i in range(3)]
ensemble = [o.apply_gradient(o.target * 0.5) for o in ensemble]
print(json.dumps({'adam': optimizers['adam'].target.tolist(), 'sgd': optimizers['sgd'].target.tolist(),
                  'pair': opt.apply_gradient(opt.target).target.tolist(), 'seven': seven,
                  'ensemble': [o.target.tolist() for o in ensemble]}))
