"""Keeps the best optimizer, goes back to it, and uses target networks that are no optimizers."""
import json

import jax
import jax.numpy as jnp
from flax import optim


class Network:
    def __init__(self, weights):
        self.target = weights


network = Network(jnp.zeros(3))
opt = optim.GradientDescent(learning_rate=0.6).create(jnp.ones(3) * 2)
best_opt, best_loss = None, float('inf')
for i in range(5):
    loss, grad = jax.value_and_grad(lambda p: jnp.sum((p - network.target) ** 4) / 40)(opt.target)
    if float(loss) < best_loss:
        best_opt, best_loss = opt, float(loss)
    opt = opt.apply_gradient(grad)
opt = best_opt if best_opt is not None else opt
print(json.dumps({'best': best_loss, 'p': opt.target.tolist(), 'network': network.target.tolist()}))
