"""LARS (You et al. 2017, arXiv:1708.03888): `flax.optim.LARS`."""

import jax
import jax.numpy as jnp
from flax import struct

from legacy_optim.base import OptimizerDef, require_learning_rate
from legacy_optim.typing import Array, Scalar


@struct.dataclass
class _LARSHyperParams:
    learning_rate: Scalar | None
    beta: Scalar
    weight_decay: Scalar
    trust_coefficient: Scalar
    eps: Scalar
    nesterov: bool


@struct.dataclass
class _LARSParamState:
    momentum: Array


class LARS(OptimizerDef):
    """LARS: momentum whose gradient is scaled to each parameter's norm.

    Args:
      learning_rate: step size; None to pass it with every call.
      beta: factor by which the momentum decays at each step.
      weight_decay: multiple of the parameter that joins the gradient; it counts in the ratio of
        norms as well.
      trust_coefficient: factor of that ratio.
      eps: added to the ratio's denominator.
      nesterov: looks one step ahead.
    """

    def __init__(
        self,
        learning_rate: Scalar | None = None,
        beta: Scalar = 0.9,
        weight_decay: Scalar = 0,
        trust_coefficient: Scalar = 0.001,
        eps: Scalar = 0,
        nesterov: bool = False,
    ):
        super().__init__(
            _LARSHyperParams(learning_rate, beta, weight_decay, trust_coefficient, eps, nesterov)
        )

    def init_param_state(self, param: jax.Array) -> _LARSParamState:
        return _LARSParamState(jnp.zeros_like(param))

    def apply_param_gradient(
        self, step: Scalar, hyper_params: _LARSHyperParams, param: Array,
        state: _LARSParamState, grad: Array,
    ) -> tuple[Array, _LARSParamState]:  # fmt: skip
        del step
        learning_rate = require_learning_rate(self, hyper_params)
        hp = hyper_params
        param_norm, grad_norm = jnp.linalg.norm(param), jnp.linalg.norm(grad)
        denominator = grad_norm + hp.weight_decay * param_norm + hp.eps
        ratio = hp.trust_coefficient * param_norm / denominator
        undefined = jnp.logical_or(grad_norm == 0.0, param_norm == 0.0)
        scale = learning_rate * jnp.where(undefined, 1.0, ratio)
        if hp.weight_decay != 0:
            grad = grad + hp.weight_decay * param
        scaled = scale * grad
        momentum = hp.beta * state.momentum + scaled
        direction = scaled + hp.beta * momentum if hp.nesterov else momentum
        return param - direction, _LARSParamState(momentum)
