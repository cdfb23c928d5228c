"""JAX names of the time, around a training step."""
import json

import jax
import jax.numpy as jnp
from flax import optim
from jax import tree_leaves, tree_map
from jax.config import config
from jax.tree_util import tree_multimap

config.update('jax_numpy_rank_promotion', 'allow')
opt = optim.Adam(0.1).create({'a': jnp.ones(3), 'b': jnp.zeros((2, 2))})
grads = tree_map(lambda p: p + 1.0, opt.target)
grads = tree_multimap(lambda g, p: g - 0.5 * p, grads, opt.target)
grads['b'] = jax.ops.index_update(grads['b'], jax.ops.index[0, 1:], 3.0)
grads['a'] = jax.ops.index_add(grads['a'], 0, 0.25)
if jax.host_id() == 0:
    opt = opt.apply_gradient(grads)
print(json.dumps([float(jnp.sum(x)) for x in tree_leaves(opt.target)] + [jax.host_count()]))
