"""Gradient descent: `flax.optim.GradientDescent`."""

import jax
from flax import struct

from legacy_optim.base import OptimizerDef, require_learning_rate
from legacy_optim.typing import Array, Scalar


@struct.dataclass
class _GradientDescentHyperParams:
    learning_rate: Scalar | None


class GradientDescent(OptimizerDef):
    """Gradient descent, `p - learning_rate * g`.

    Args:
      learning_rate: step size; None to pass it with every call.
    """

    def __init__(self, learning_rate: Scalar | None = None):
        super().__init__(_GradientDescentHyperParams(learning_rate))

    def init_param_state(self, param: jax.Array) -> tuple[()]:
        return ()

    def apply_param_gradient(
        self, step: Scalar, hyper_params: _GradientDescentHyperParams, param: Array,
        state: tuple[()], grad: Array,
    ) -> tuple[Array, tuple[()]]:  # fmt: skip
        del step
        learning_rate = require_learning_rate(self, hyper_params)
        return param - learning_rate * grad, state
