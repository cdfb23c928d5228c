"""The optimizer's own methods to save and restore."""
import json

import jax.numpy as jnp
from flax import optim

optimizer = optim.Adam(0.1).create(jnp.ones(3))
optimizer = optimizer.apply_gradient(jnp.arange(3.0))
saved = optimizer.state_dict()
fresh = optim.Adam(0.1).create(jnp.zeros(3))
fresh = fresh.restore_state(saved)
fresh = fresh.apply_gradient(jnp.ones(3))
print(json.dumps([fresh.target.tolist(), int(fresh.state.step)]))
