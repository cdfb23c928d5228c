"""Saved in the middle and restored into a template."""
import json
import os
import sys
import tempfile

import jax.numpy as jnp
from flax import optim, serialization

path = os.path.join(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(), 'optimizer.flax')
if not os.path.exists(path):
    optimizer = optim.Adam(0.1).create({'w': jnp.ones(3)})
    optimizer = optimizer.apply_gradient({'w': jnp.arange(3.0)})
    with open(path, 'wb') as f:
        f.write(serialization.to_bytes(optimizer))
template = optim.Adam(0.1).create({'w': jnp.zeros(3)})
with open(path, 'rb') as f:
    optimizer = serialization.from_bytes(template, f.read())
saved = serialization.to_bytes(optimizer)
restored = serialization.from_bytes(template, saved)
nested = serialization.to_state_dict((optimizer, 3))
again, three = serialization.from_state_dict((template, 0), nested)
a = optimizer.apply_gradient({'w': jnp.ones(3)})
b = restored.apply_gradient({'w': jnp.ones(3)})
c = again.apply_gradient({'w': jnp.ones(3)})
print(json.dumps([x.target['w'].tolist() for x in (a, b, c)] + [int(b.state.step), int(three)]))
