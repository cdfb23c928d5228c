"""Only the biases are trained."""
import json

import jax
import jax.numpy as jnp
from flax import optim, traverse_util

params = {'a': {'kernel': jnp.ones((2, 2)), 'bias': jnp.zeros(2)}, 'b': {'bias': jnp.ones(3)}}
biases = traverse_util.ModelParamTraversal(lambda path, _: path.endswith('bias'))
optimizer_def = optim.Momentum(0.1)
optimizer = optimizer_def.create(params, focus=biases)
loss = lambda p: sum(jnp.sum((x - 2.0) ** 2) for x in jax.tree_leaves(p))
for _ in range(3):
    optimizer = optimizer.apply_gradient(jax.grad(loss)(optimizer.target))
print(json.dumps(jax.tree_map(lambda x: x.tolist(), optimizer.target)))
