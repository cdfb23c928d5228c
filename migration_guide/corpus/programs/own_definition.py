"""A definition of one's own."""
import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import optim, struct


@struct.dataclass
class _HyperParams:
    learning_rate: np.ndarray
    decay: np.ndarray


@struct.dataclass
class _ParamState:
    m: np.ndarray


class SignMomentum(optim.OptimizerDef):
    """Moves by the sign of the momentum."""

    def __init__(self, learning_rate=None, decay=0.9):
        super().__init__(_HyperParams(learning_rate, decay))

    def init_param_state(self, param):
        return _ParamState(jnp.zeros_like(param))

    def apply_param_gradient(self, step, hyper_params, param, state, grad):
        m = hyper_params.decay * state.m + grad
        return param - hyper_params.learning_rate * jnp.sign(m), _ParamState(m)


optimizer_def = SignMomentum(0.1)
optimizer = optimizer_def.create({'w': jnp.linspace(-1, 1, 5)})
for i in range(3):
    optimizer = optimizer.apply_gradient(jax.tree_map(lambda p: p - 0.3, optimizer.target), learning_rate=0.1 * (i + 1))
print(json.dumps(optimizer.target['w'].tolist()))
