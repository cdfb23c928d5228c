"""Heavy-ball and Nesterov momentum: `flax.optim.Momentum`."""

from typing import Any

import jax.numpy as jnp
from flax import struct

from legacy_optim.base import OptimizerDef, require_learning_rate


@struct.dataclass
class _MomentumHyperParams:
    learning_rate: Any
    beta: Any
    weight_decay: Any
    nesterov: bool


@struct.dataclass
class _MomentumParamState:
    momentum: Any


class Momentum(OptimizerDef):
    """Momentum with weight decay coupled to the gradient.

    Args:
      learning_rate: step size; None if every call gives it.
      beta: what is kept of the momentum at each step.
      weight_decay: multiple of the parameter that joins the gradient, before the momentum.
      nesterov: looks one step ahead.
    """

    def __init__(
        self,
        learning_rate: Any = None,
        beta: Any = 0.9,
        weight_decay: Any = 0,
        nesterov: bool = False,
    ):
        super().__init__(_MomentumHyperParams(learning_rate, beta, weight_decay, nesterov))

    def init_param_state(self, param: Any) -> _MomentumParamState:
        return _MomentumParamState(jnp.zeros_like(param))

    def apply_param_gradient(
        self, step: Any, hyper_params: Any, param: Any, state: Any, grad: Any
    ) -> tuple[Any, Any]:
        del step
        learning_rate = require_learning_rate(self, hyper_params)
        if hyper_params.weight_decay != 0:
            grad = grad + hyper_params.weight_decay * param
        momentum = hyper_params.beta * state.momentum + grad
        direction = grad + hyper_params.beta * momentum if hyper_params.nesterov else momentum
        return param - learning_rate * direction, _MomentumParamState(momentum)
