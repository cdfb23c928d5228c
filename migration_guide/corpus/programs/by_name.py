"""An optimizer by its name in a config, written out."""
import json

import jax.numpy as jnp
from flax import optim


def get_optimizer(name, lr):
    if name == 'adam':
        return optim.Adam(lr)
    elif name == 'momentum':
        return optim.Momentum(lr, beta=0.5)
    elif name == 'rmsprop':
        return optim.RMSProp(lr, centered=True)
    elif name == 'adadelta':
        return optim.Adadelta(lr)
    elif name == 'adabelief':
        return optim.AdaBelief(learning_rate=lr, eps=1e-8)
    raise ValueError(name)


result = {}
for name in ('adam', 'momentum', 'rmsprop', 'adadelta', 'adabelief'):
    opt = get_optimizer(name, 0.05).create(jnp.linspace(0.5, 2.0, 4))
    for _ in range(3):
        opt = opt.apply_gradient(jnp.exp(-opt.target))
    result[name] = opt.target.tolist()
print(json.dumps(result))
