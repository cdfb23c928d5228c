"""LAMB (You et al. 2019, arXiv:1904.00962): `flax.optim.LAMB`."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from legacy_optim.base import OptimizerDef, require_learning_rate
from legacy_optim.typing import Array, Scalar


@struct.dataclass
class _LAMBHyperParams:
    learning_rate: Scalar | None
    beta1: Scalar
    beta2: Scalar
    weight_decay: Scalar
    eps: Scalar


@struct.dataclass
class _LAMBParamState:
    grad_ema: Array
    grad_sq_ema: Array


class LAMB(OptimizerDef):
    """LAMB: Adam whose step is scaled to each parameter's norm.

    The ratio of the norms is 1 only if both are zero: a parameter of zeros never moves, and an
    update of zeros for any other parameter divides by zero.

    Args:
      learning_rate: step size; None to pass it with every call.
      beta1: decay of the gradient's moving average.
      beta2: decay of the squared gradient's moving average.
      weight_decay: multiple of the parameter that joins the update before its norm is taken.
      eps: added to the root of the second moment.
    """

    def __init__(
        self,
        learning_rate: Scalar | None = None,
        beta1: Scalar = 0.9,
        beta2: Scalar = 0.999,
        weight_decay: Scalar = 0,
        eps: Scalar = 1e-6,
    ):
        super().__init__(_LAMBHyperParams(learning_rate, beta1, beta2, weight_decay, eps))

    def init_param_state(self, param: jax.Array) -> _LAMBParamState:
        return _LAMBParamState(jnp.zeros_like(param), jnp.zeros_like(param))

    def apply_param_gradient(
        self, step: Scalar, hyper_params: _LAMBHyperParams, param: Array,
        state: _LAMBParamState, grad: Array,
    ) -> tuple[Array, _LAMBParamState]:  # fmt: skip
        learning_rate = require_learning_rate(self, hyper_params)
        hp = hyper_params
        grad_ema = hp.beta1 * state.grad_ema + (1.0 - hp.beta1) * grad
        grad_sq_ema = hp.beta2 * state.grad_sq_ema + (1.0 - hp.beta2) * lax.square(grad)
        t = jnp.array(step + 1, lax.dtype(param))  # in the parameter's dtype, bfloat16 included
        mean = grad_ema / (1.0 - hp.beta1**t)
        update = mean / (jnp.sqrt(grad_sq_ema / (1.0 - hp.beta2**t)) + hp.eps)
        if hp.weight_decay != 0.0:
            update = update + hp.weight_decay * param
        param_norm, update_norm = jnp.linalg.norm(param), jnp.linalg.norm(update)
        ratio = jnp.where(param_norm + update_norm > 0.0, param_norm / update_norm, 1.0)
        return param - ratio * learning_rate * update, _LAMBParamState(grad_ema, grad_sq_ema)
