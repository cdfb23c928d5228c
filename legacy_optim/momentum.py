"""Heavy-ball and Nesterov momentum: `flax.optim.Momentum`."""

import jax
import jax.numpy as jnp
from flax import struct

from legacy_optim.base import OptimizerDef, require_learning_rate
from legacy_optim.typing import Array, Scalar


@struct.dataclass
class _MomentumHyperParams:
    learning_rate: Scalar | None
    beta: Scalar
    weight_decay: Scalar
    nesterov: bool


@struct.dataclass
class _MomentumParamState:
    momentum: Array


class Momentum(OptimizerDef):
    """Momentum with weight decay coupled to the gradient.

    Args:
      learning_rate: step size; None to pass it with every call.
      beta: factor by which the momentum decays at each step.
      weight_decay: multiple of the parameter that joins the gradient, before the momentum.
      nesterov: looks one step ahead.
    """

    def __init__(
        self,
        learning_rate: Scalar | None = None,
        beta: Scalar = 0.9,
        weight_decay: Scalar = 0,
        nesterov: bool = False,
    ):
        super().__init__(_MomentumHyperParams(learning_rate, beta, weight_decay, nesterov))

    def init_param_state(self, param: jax.Array) -> _MomentumParamState:
        return _MomentumParamState(jnp.zeros_like(param))

    def apply_param_gradient(
        self, step: Scalar, hyper_params: _MomentumHyperParams, param: Array,
        state: _MomentumParamState, grad: Array,
    ) -> tuple[Array, _MomentumParamState]:  # fmt: skip
        del step
        learning_rate = require_learning_rate(self, hyper_params)
        if hyper_params.weight_decay != 0:
            grad = grad + hyper_params.weight_decay * param
        momentum = hyper_params.beta * state.momentum + grad
        direction = grad + hyper_params.beta * momentum if hyper_params.nesterov else momentum
        return param - learning_rate * direction, _MomentumParamState(momentum)
