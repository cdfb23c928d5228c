"""Hyper-parameters are read from the definition and scaled."""
import json

import jax.numpy as jnp
from flax import optim

optimizer = optim.Adam(learning_rate=0.1, beta1=0.8).create(jnp.ones(3))
base = optimizer.optimizer_def.hyper_params.learning_rate
b1 = optimizer.optimizer_def.hyper_params.beta1
for i in range(3):
    hps = optimizer.optimizer_def.hyper_params
    grad = jnp.cos(optimizer.target) * (i + 1)
    optimizer = optimizer.apply_gradient(grad, hyper_params=hps.replace(learning_rate=base / (i + 1)))
print(json.dumps({'base': base, 'b1': b1, 'p': optimizer.target.tolist()}))
