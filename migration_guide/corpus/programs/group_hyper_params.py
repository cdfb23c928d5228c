"""Hyper-parameters per group and per call."""
import json

import jax
import jax.numpy as jnp
from flax import optim

params = {'body': jnp.linspace(0.2, 1.0, 4), 'head': jnp.ones(3)}
body = optim.ModelParamTraversal(lambda path, _: path == '/body')
head = optim.ModelParamTraversal(lambda path, _: path == '/head')
optimizer = optim.MultiOptimizer(
    (body, optim.Adam(learning_rate=0.0)), (head, optim.GradientDescent(learning_rate=0.0))).create(params)


@jax.jit
def step(optimizer, body_lr, head_lr):
    grad = jax.grad(lambda p: jnp.sum(p['body'] ** 2) + jnp.sum(jnp.cos(p['head'])))(optimizer.target)
    hps = optimizer.optimizer_def.hyper_params
    return optimizer.apply_gradient(
        grad,
        hyper_params=[
            hps[0].replace(learning_rate=body_lr),
            hps[1].replace(learning_rate=head_lr),
        ])


for i in range(4):
    optimizer = step(optimizer, 0.1 / (i + 1), 0.01 * i)
all_same = [hp.replace(learning_rate=0.5) for hp in optimizer.optimizer_def.hyper_params]
optimizer = optimizer.apply_gradient(jax.tree_map(jnp.ones_like, optimizer.target), hyper_params=all_same)
print(json.dumps({'body': optimizer.target['body'].tolist(), 'head': optimizer.target['head'].tolist()}))
