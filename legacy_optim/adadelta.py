"""Adadelta (Zeiler 2012, arXiv:1212.5701): `flax.optim.Adadelta`."""

import jax
import jax.numpy as jnp
from flax import struct

from legacy_optim.base import OptimizerDef, require_learning_rate
from legacy_optim.typing import Array, Scalar


@struct.dataclass
class _AdadeltaHyperParams:
    learning_rate: Scalar | None
    rho: Scalar
    eps: Scalar
    weight_decay: Scalar


@struct.dataclass
class _AdadeltaParamState:
    sq_avg: Array
    acc_delta: Array


class Adadelta(OptimizerDef):
    """Adadelta, with decoupled weight decay.

    Args:
      learning_rate: step size; None to pass it with every call.
      rho: decay of both moving averages.
      eps: added inside both roots.
      weight_decay: `learning_rate * weight_decay * p` is subtracted after the step.
    """

    def __init__(
        self,
        learning_rate: Scalar | None = None,
        rho: Scalar = 0.9,
        eps: Scalar = 1e-6,
        weight_decay: Scalar = 0.0,
    ):
        super().__init__(_AdadeltaHyperParams(learning_rate, rho, eps, weight_decay))

    def init_param_state(self, param: jax.Array) -> _AdadeltaParamState:
        return _AdadeltaParamState(jnp.zeros_like(param), jnp.zeros_like(param))

    def apply_param_gradient(
        self, step: Scalar, hyper_params: _AdadeltaHyperParams, param: Array,
        state: _AdadeltaParamState, grad: Array,
    ) -> tuple[Array, _AdadeltaParamState]:  # fmt: skip
        del step
        learning_rate = require_learning_rate(self, hyper_params)
        rho, eps = hyper_params.rho, hyper_params.eps
        sq_avg = rho * state.sq_avg + jnp.square(grad) * (1 - rho)
        delta = (jnp.sqrt(state.acc_delta + eps) / jnp.sqrt(sq_avg + eps)) * grad
        new_param = param - learning_rate * delta
        new_param = new_param - learning_rate * hyper_params.weight_decay * param
        acc_delta = rho * state.acc_delta + jnp.square(delta) * (1 - rho)
        return new_param, _AdadeltaParamState(sq_avg, acc_delta)
