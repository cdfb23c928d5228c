"""bfloat16 parameters, whose legacy Adam hardly moves."""
import json

import jax.numpy as jnp
import numpy as np
from flax import optim

opt = optim.Momentum(learning_rate=0.1).create(jnp.linspace(0, 1, 4).astype(jnp.bfloat16))
for _ in range(3):
    opt = opt.apply_gradient(jnp.ones(4, jnp.bfloat16) * 0.5)
print(json.dumps(np.asarray(opt.target, np.float32).tolist()))
