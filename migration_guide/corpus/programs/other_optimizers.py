"""The rarer optimizers, arguments by position and by keyword, kept in a dict."""
import json

import flax.optim as optimizers
import jax
import jax.numpy as jnp
import numpy as np

params = {'w': jnp.array([[0.5, -1.0], [2.0, 0.25]]), 'b': jnp.array([0.1, -0.2])}
all_of_them = {
    'rmsprop': optimizers.RMSProp(0.01, beta2=0.8, eps=1e-6).create(params),
    'centered': optimizers.RMSProp(learning_rate=0.01, centered=True).create(params),
    'adadelta': optimizers.Adadelta(0.5, 0.95, weight_decay=0.01).create(params),
    'adagrad': optimizers.Adagrad(0.1, 1e-6).create(params),
    'adabelief': optimizers.AdaBelief(0.05, beta1=0.7, weight_decay=0.1).create(params),
    'nesterov': optimizers.Momentum(0.05, 0.8, 0.001, nesterov=True).create(params),
}


@jax.jit
def step(optimizer):
    gradient = jax.grad(lambda p: jnp.sum(jnp.cos(p['w'])) + jnp.sum(p['b'] ** 3))(optimizer.target)
    return optimizer.apply_gradient(gradient)


for name in all_of_them:
    for _ in range(3):
        all_of_them[name] = step(all_of_them[name])
targets = jax.tree_map(
    lambda one: one.target, all_of_them, is_leaf=lambda x: isinstance(x, optimizers.Optimizer))
print(json.dumps(jax.tree_map(lambda x: np.asarray(x).tolist(), targets)))
