"""Adam (Kingma and Ba 2014, arXiv:1412.6980): `flax.optim.Adam`."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from legacy_optim.base import OptimizerDef, require_learning_rate
from legacy_optim.typing import Array, Scalar


@struct.dataclass
class _AdamHyperParams:
    learning_rate: Scalar | None
    beta1: Scalar
    beta2: Scalar
    eps: Scalar
    weight_decay: Scalar


@struct.dataclass
class _AdamParamState:
    grad_ema: Array
    grad_sq_ema: Array


class Adam(OptimizerDef):
    """Adam, with decoupled weight decay that is scaled by the learning rate.

    Args:
      learning_rate: step size; None to pass it with every call.
      beta1: decay of the gradient's moving average.
      beta2: decay of the squared gradient's moving average.
      eps: added to the root of the second moment.
      weight_decay: `learning_rate * weight_decay * p` is subtracted after the step.
    """

    def __init__(
        self,
        learning_rate: Scalar | None = None,
        beta1: Scalar = 0.9,
        beta2: Scalar = 0.999,
        eps: Scalar = 1e-8,
        weight_decay: Scalar = 0.0,
    ):
        super().__init__(_AdamHyperParams(learning_rate, beta1, beta2, eps, weight_decay))

    def init_param_state(self, param: jax.Array) -> _AdamParamState:
        return _AdamParamState(jnp.zeros_like(param), jnp.zeros_like(param))

    def apply_param_gradient(
        self, step: Scalar, hyper_params: _AdamHyperParams, param: Array,
        state: _AdamParamState, grad: Array,
    ) -> tuple[Array, _AdamParamState]:  # fmt: skip
        learning_rate = require_learning_rate(self, hyper_params)
        hp = hyper_params
        grad_ema = hp.beta1 * state.grad_ema + (1.0 - hp.beta1) * grad
        grad_sq_ema = hp.beta2 * state.grad_sq_ema + (1.0 - hp.beta2) * lax.square(grad)
        t = jnp.array(step + 1, lax.dtype(param))  # in the parameter's dtype, bfloat16 included
        mean = grad_ema / (1 - hp.beta1**t)
        denominator = jnp.sqrt(grad_sq_ema / (1 - hp.beta2**t)) + hp.eps
        new_param = param - learning_rate * mean / denominator
        new_param = new_param - learning_rate * hp.weight_decay * param
        return new_param, _AdamParamState(grad_ema, grad_sq_ema)
