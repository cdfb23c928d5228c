"""Saved in the middle and restored into a template."""
import json

import jax.numpy as jnp
from flax import optim, serialization

optimizer = optim.Adam(0.1).create({'w': jnp.ones(3)})
optimizer = optimizer.apply_gradient({'w': jnp.arange(3.0)})
saved = serialization.to_bytes(optimizer)
template = optim.Adam(0.1).create({'w': jnp.zeros(3)})
restored = serialization.from_bytes(template, saved)
nested = serialization.to_state_dict((optimizer, 3))
again, three = serialization.from_state_dict((template, 0), nested)
a = optimizer.apply_gradient({'w': jnp.ones(3)})
b = restored.apply_gradient({'w': jnp.ones(3)})
c = again.apply_gradient({'w': jnp.ones(3)})
print(json.dumps([x.target['w'].tolist() for x in (a, b, c)] + [int(b.state.step), int(three)]))
