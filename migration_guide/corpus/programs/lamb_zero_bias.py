"""A bias that starts at zero never moves under the legacy LAMB."""
import json

import jax.numpy as jnp
from flax import optim

opt = optim.LAMB(0.05, weight_decay=0.01).create({'k': jnp.linspace(0.1, 1.2, 6), 'b': jnp.zeros(2)})
for i in range(4):
    opt = opt.apply_gradient({'k': jnp.cos(opt.target['k']), 'b': jnp.ones(2)})
print(json.dumps({'k': opt.target['k'].tolist(), 'b': opt.target['b'].tolist()}))
