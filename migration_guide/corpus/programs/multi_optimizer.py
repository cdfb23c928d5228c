"""Kernels and biases with optimizers of their own; the embedding stays as it is."""
import json

import jax
import jax.numpy as jnp
from flax import optim

params = {'dense': {'kernel': jnp.linspace(0.1, 1.0, 6).reshape(2, 3), 'bias': jnp.zeros(3)},
          'embedding': jnp.ones((2, 2))}
kernels = optim.ModelParamTraversal(lambda path, _: 'kernel' in path)
biases = optim.ModelParamTraversal(lambda path, _: 'bias' in path)
kernel_opt = optim.Momentum(learning_rate=0.01, beta=0.95)
bias_opt = optim.Adam(learning_rate=0.1)
opt_def = optim.MultiOptimizer((kernels, kernel_opt), (biases, bias_opt))
optimizer = opt_def.create(params)


@jax.jit
def step(optimizer):
    def loss_fn(p):
        h = p['embedding'] @ p['dense']['kernel'] + p['dense']['bias']
        return jnp.sum(jnp.sin(h))
    return optimizer.apply_gradient(jax.grad(loss_fn)(optimizer.target))


for _ in range(5):
    optimizer = step(optimizer)
print(json.dumps(jax.tree_util.tree_map(lambda x: x.tolist(), optimizer.target)))
