"""The optimizer's own methods to save and restore."""
import json
import os
import sys
import tempfile

import jax.numpy as jnp
from flax import optim, serialization

path = os.path.join(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(), 'state.msgpack')
if not os.path.exists(path):
    optimizer = optim.Adam(0.1).create(jnp.ones(3))
    optimizer = optimizer.apply_gradient(jnp.arange(3.0))
    saved = optimizer.state_dict()
    with open(path, 'wb') as f:
        f.write(serialization.msgpack_serialize(saved))
with open(path, 'rb') as f:
    saved = serialization.msgpack_restore(f.read())
fresh = optim.Adam(0.1).create(jnp.zeros(3))
fresh = fresh.restore_state(saved)
fresh = fresh.apply_gradient(jnp.ones(3))
print(json.dumps([fresh.target.tolist(), int(fresh.state.step)]))
