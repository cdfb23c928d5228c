"""Adagrad (Duchi et al. 2011): `flax.optim.Adagrad`."""

import jax
import jax.numpy as jnp
from flax import struct

from legacy_optim.base import OptimizerDef, require_learning_rate
from legacy_optim.typing import Array, Scalar


@struct.dataclass
class _AdagradHyperParams:
    learning_rate: Scalar | None
    eps: Scalar


@struct.dataclass
class _AdagradParamState:
    G: Array


class Adagrad(OptimizerDef):
    """Adagrad.

    Args:
      learning_rate: step size; None to pass it with every call.
      eps: added to the root of the sum of squares.
    """

    def __init__(self, learning_rate: Scalar | None = None, eps: Scalar = 1e-8):
        super().__init__(_AdagradHyperParams(learning_rate, eps))

    def init_param_state(self, param: jax.Array) -> _AdagradParamState:
        return _AdagradParamState(jnp.zeros_like(param))

    def apply_param_gradient(
        self, step: Scalar, hyper_params: _AdagradHyperParams, param: Array,
        state: _AdagradParamState, grad: Array,
    ) -> tuple[Array, _AdagradParamState]:  # fmt: skip
        del step
        learning_rate = require_learning_rate(self, hyper_params)
        squares = state.G + jnp.square(grad)
        new_param = param - learning_rate * grad / (jnp.sqrt(squares) + hyper_params.eps)
        return new_param, _AdagradParamState(squares)
