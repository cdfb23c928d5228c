"""Created on the host, under jit, as Vision Transformer does."""
import json

import jax
import jax.numpy as jnp
from flax import optim

opt_def = optim.Momentum(beta=0.8)
opt = jax.jit(opt_def.create, backend='cpu')({'w': jnp.arange(4.0)})


def update_fn(opt, lr, batch):
    l, g = jax.value_and_grad(lambda p: jnp.sum(jnp.square(p['w'] - batch)))(opt.target)
    g_norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree_leaves(g)))
    g_factor = jnp.minimum(1, 1.0 / (g_norm + 1e-6))
    g = jax.tree_map(lambda p: g_factor * p, g)
    return opt.apply_gradient(g, learning_rate=lr), l


update = jax.jit(update_fn)
for i in range(3):
    opt, l = update(opt, 0.1 * (i + 1), 1.0)
print(json.dumps({'w': opt.target['w'].tolist(), 'l': float(l)}))
