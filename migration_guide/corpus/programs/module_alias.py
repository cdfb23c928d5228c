"""`as optimizers`, and the module by its full name."""
import json

import flax.optim
import jax.numpy as jnp
from flax import optim as optimizers

a = optimizers.GradientDescent(learning_rate=0.1).create(jnp.ones(3))
b = flax.optim.Adagrad(learning_rate=0.1).create(jnp.ones(3))
for _ in range(3):
    a = a.apply_gradient(2 * a.target)
    b = b.apply_gradient(2 * b.target)
print(json.dumps([a.target.tolist(), b.target.tolist(), int(b.state.step)]))
