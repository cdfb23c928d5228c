"""Which optimizer it is, a config says: a table of classes, and their names in the module."""
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import optim

OPTIMIZERS = {
    'sgd': optim.GradientDescent,
    'momentum': optim.Momentum,
    'adam': optim.Adam,
    'lamb': optim.LAMB,
    'adamw': functools.partial(optim.Adam, weight_decay=0.1),
}

CONFIGS = [
    {'optimizer': 'sgd', 'kwargs': {'learning_rate': 0.1}},
    {'optimizer': 'momentum', 'kwargs': {'learning_rate': 0.05, 'beta': 0.7, 'nesterov': True}},
    {'optimizer': 'adam', 'kwargs': {'learning_rate': 0.02}},
    {'optimizer': 'adamw', 'kwargs': {'learning_rate': 0.02}},
    {'optimizer': 'lamb', 'kwargs': {'learning_rate': 0.02}},
    {'optim_name': 'Adagrad', 'kwargs': {'learning_rate': 0.1}},
    {'optim_name': 'RMSProp', 'kwargs': {'learning_rate': 0.01, 'centered': True}},
]


def create_optimizer(config, params):
    if 'optim_name' in config:
        optimizer_cls = getattr(optim, config['optim_name'])
        optimizer_def = optimizer_cls(**config['kwargs'])
    else:
        optimizer_def = OPTIMIZERS[config['optimizer']](**config['kwargs'])
    return optimizer_def.create(params)


def loss_fn(params, x):
    return jnp.sum(jnp.cos(params['w'] * x) + params['b'] ** 2)


@jax.jit
def train_step(optimizer, x):
    loss, grad = jax.value_and_grad(loss_fn)(optimizer.target, x)
    return optimizer.apply_gradient(grad), loss


results = []
for config in CONFIGS:
    optimizer = create_optimizer(config, {'w': jnp.linspace(0.5, 2.0, 4), 'b': jnp.ones(())})
    for i in range(4):
        optimizer, loss = train_step(optimizer, 1.0 + 0.1 * i)
    results.append({
        'loss': float(loss),
        'w': np.asarray(optimizer.target['w']).tolist(),
        'step': int(optimizer.state.step),
    })
print(json.dumps(results))
