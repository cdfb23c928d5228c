"""RMSProp (Tieleman and Hinton 2012; centered: Graves 2013): `flax.optim.RMSProp`."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from legacy_optim.base import OptimizerDef, require_learning_rate
from legacy_optim.typing import Array, Scalar


@struct.dataclass
class _RMSPropHyperParams:
    learning_rate: Scalar | None
    beta2: Scalar
    eps: Scalar
    centered: bool


@struct.dataclass
class _RMSPropParamState:
    v: Array
    mg: Any  # an array if centered, else None


class RMSProp(OptimizerDef):
    """RMSProp.

    Args:
      learning_rate: step size; None to pass it with every call.
      beta2: decay of the moving averages.
      eps: added to the root of the second moment.
      centered: divides by the gradient's variance rather than by its second moment; the state then
        has a moving average `mg` of the gradient, which is None otherwise.
    """

    def __init__(
        self,
        learning_rate: Scalar | None = None,
        beta2: Scalar = 0.9,
        eps: Scalar = 1e-8,
        centered: bool = False,
    ):
        super().__init__(_RMSPropHyperParams(learning_rate, beta2, eps, centered))

    def init_param_state(self, param: jax.Array) -> _RMSPropParamState:
        mg = jnp.zeros_like(param) if self.hyper_params.centered else None
        return _RMSPropParamState(jnp.zeros_like(param), mg)

    def apply_param_gradient(
        self, step: Scalar, hyper_params: _RMSPropHyperParams, param: Array,
        state: _RMSPropParamState, grad: Array,
    ) -> tuple[Array, _RMSPropParamState]:  # fmt: skip
        del step
        learning_rate = require_learning_rate(self, hyper_params)
        beta2 = hyper_params.beta2
        v, mg = beta2 * state.v + (1.0 - beta2) * jnp.square(grad), state.mg
        variance = v
        if hyper_params.centered:
            mg = beta2 * state.mg + (1.0 - beta2) * grad
            variance = v - jnp.square(mg)
        new_param = param - learning_rate * grad / (jnp.sqrt(variance) + hyper_params.eps)
        return new_param, _RMSPropParamState(v, mg)
