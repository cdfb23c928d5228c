"""Gradient descent: `flax.optim.GradientDescent`."""

from typing import Any

from flax import struct

from legacy_optim.base import OptimizerDef, require_learning_rate


@struct.dataclass
class _GradientDescentHyperParams:
    learning_rate: Any


class GradientDescent(OptimizerDef):
    """Gradient descent, `p - learning_rate * g`.

    Args:
      learning_rate: step size; None if every call gives it.
    """

    def __init__(self, learning_rate: Any = None):
        super().__init__(_GradientDescentHyperParams(learning_rate))

    def init_param_state(self, param: Any) -> tuple[()]:
        return ()

    def apply_param_gradient(
        self, step: Any, hyper_params: Any, param: Any, state: Any, grad: Any
    ) -> tuple[Any, Any]:
        del step
        learning_rate = require_learning_rate(self, hyper_params)
        return param - learning_rate * grad, state
