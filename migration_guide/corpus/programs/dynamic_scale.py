"""Loss scaling with an overflow on the way."""
import json

import jax
import jax.numpy as jnp
from flax import optim
from flax.optim import dynamic_scale as dynamic_scale_lib

dynamic_scale = dynamic_scale_lib.DynamicScale(growth_interval=2)
optimizer = optim.Adam(0.1).create(jnp.ones(3))


@jax.jit
def step(dynamic_scale, optimizer, factor):
    grad_fn = dynamic_scale.value_and_grad(lambda p: jnp.sum(p * factor) ** 2)
    dynamic_scale, is_fin, loss, grad = grad_fn(optimizer.target)
    new_optimizer = optimizer.apply_gradient(grad)
    optimizer = jax.tree_multimap(lambda a, b: jnp.where(is_fin, a, b), new_optimizer, optimizer)
    return dynamic_scale, optimizer, loss


scales = []
for factor in (1.0, 2.0, 1e30, 1.0, 0.5):
    dynamic_scale, optimizer, loss = step(dynamic_scale, optimizer, factor)
    scales.append(float(dynamic_scale.scale))
print(json.dumps({'scales': scales, 'p': optimizer.target.tolist(), 'step': int(optimizer.state.step)}))
