"""Lion, as `flax.optim` would have had it."""

from typing import Any

import jax.numpy as jnp
from flax import struct

from legacy_optim.base import OptimizerDef, require_learning_rate


@struct.dataclass
class _LionHyperParams:
    learning_rate: Any
    beta1: Any
    beta2: Any


@struct.dataclass
class _LionParamState:
    grad_ema: Any


class Lion(OptimizerDef):
    """Lion: the sign of an average of gradients."""

    def __init__(self, learning_rate: Any = None, beta1: Any = 0.9, beta2: Any = 0.99):
        super().__init__(_LionHyperParams(learning_rate, beta1, beta2))

    def init_param_state(self, param: Any) -> _LionParamState:
        """As of the base class."""
        return _LionParamState(jnp.zeros_like(param))

    def apply_param_gradient(
        self, step: Any, hyper_params: Any, param: Any, state: Any, grad: Any
    ) -> tuple[Any, Any]:
        """As of the base class."""
        del step
        learning_rate = require_learning_rate(self, hyper_params)
        beta1, beta2 = hyper_params.beta1, hyper_params.beta2
        direction = jnp.sign((1.0 - beta1) * grad + beta1 * state.grad_ema)
        grad_ema = (1.0 - beta2) * grad + beta2 * state.grad_ema
        return param - learning_rate * direction, _LionParamState(grad_ema)
