"""The definition travels alone; optimizers are made of it where they are needed."""
import json

import jax
import jax.numpy as jnp
from flax import optim


def make(optimizer_def: optim.OptimizerDef, params):
    return optimizer_def.create(params)


def improve(optimizer_def, params, steps):
    optimizer = make(optimizer_def, params)
    for _ in range(steps):
        grad = jax.grad(lambda p: jnp.sum(jnp.log(p)))(optimizer.target)
        optimizer = optimizer.apply_gradient(grad)
    fresh = optimizer.optimizer_def.create(optimizer.target)
    return optimizer.target, fresh.apply_gradient(grad).target


definition = optim.Adam(learning_rate=1e-2, weight_decay=1e-1)
a, b = improve(definition, jnp.linspace(1, 2, 4), 3)
print(json.dumps([a.tolist(), b.tolist()]))
