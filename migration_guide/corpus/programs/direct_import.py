"""Classes imported by name, from the package and from its submodules."""
import json

import jax
import jax.numpy as jnp
from flax.optim import Adam
from flax.optim import Momentum as Mom
from flax.optim.base import Optimizer, OptimizerDef
from flax.optim.rmsprop import RMSProp


def build(definition: OptimizerDef, params) -> Optimizer:
    return definition.create(params)


def run(opt: Optimizer, steps: int = 3) -> Optimizer:
    for _ in range(steps):
        opt = opt.apply_gradient(jax.grad(lambda p: jnp.sum(p ** 3))(opt.target))
    return opt


out = []
for definition in (Adam(0.1, 0.9, 0.99), Mom(0.01, nesterov=True), RMSProp(0.05)):
    out.append(run(build(definition, jnp.linspace(0.5, 1.5, 5))).target.tolist())
print(json.dumps(out))
