"""Adafactor (Shazeer and Stern 2018, arXiv:1804.04235): `flax.optim.Adafactor`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import DTypeLike

from legacy_optim.base import OptimizerDef, require_learning_rate
from legacy_optim.typing import Array, Scalar


@struct.dataclass
class _AdafactorHyperParams:
    learning_rate: Scalar | None
    factored: bool
    multiply_by_parameter_scale: bool
    beta1: Scalar | None
    decay_rate: Scalar
    step_offset: Scalar
    clipping_threshold: Scalar | None
    weight_decay_rate: Scalar | None
    min_dim_size_to_factor: int
    epsilon1: Scalar
    epsilon2: Scalar


@struct.dataclass
class _AdafactorParamState:
    v_row: Array
    v_col: Array
    v: Array
    m: Array


class Adafactor(OptimizerDef):
    """Adafactor: second moments as row and column means for large matrices, in float32.

    Of the settings, `factored`, `multiply_by_parameter_scale` and `min_dim_size_to_factor` cannot
    be changed per call. The fields of the state have shape (1,) where they are unused.

    Args:
      learning_rate: step size, relative to the parameter's scale by default; None if every call
        gives it.
      factored: keeps means instead of the whole second moment, where two axes are long enough.
      multiply_by_parameter_scale: makes the learning rate relative to the parameter's root mean
        square.
      beta1: decay of the momentum; None for none.
      decay_rate: exponent of the second moment's decay, `1 - t ** -decay_rate`.
      step_offset: step at which that schedule starts.
      clipping_threshold: largest root mean square of the unscaled update; None for any.
      weight_decay_rate: the parameter is multiplied by `1 - weight_decay_rate` at each step; None
        for no decay.
      min_dim_size_to_factor: how long both axes must be.
      epsilon1: added to the squared gradient.
      epsilon2: smallest parameter scale.
      dtype_momentum: dtype of the momentum.
    """

    def __init__(
        self,
        learning_rate: Scalar | None = None,
        factored: bool = True,
        multiply_by_parameter_scale: bool = True,
        beta1: Scalar | None = None,
        decay_rate: Scalar = 0.8,
        step_offset: Scalar = 0,
        clipping_threshold: Scalar | None = 1.0,
        weight_decay_rate: Scalar | None = None,
        min_dim_size_to_factor: int = 128,
        epsilon1: Scalar = 1e-30,
        epsilon2: Scalar = 1e-3,
        dtype_momentum: DTypeLike = jnp.float32,
    ):
        self.dtype_momentum = jax.dtypes.canonicalize_dtype(dtype_momentum)
        super().__init__(
            _AdafactorHyperParams(
                learning_rate,
                factored,
                multiply_by_parameter_scale,
                beta1,
                decay_rate,
                step_offset,
                clipping_threshold,
                weight_decay_rate,
                min_dim_size_to_factor,
                epsilon1,
                epsilon2,
            )
        )

    def init_param_state(self, param: jax.Array) -> _AdafactorParamState:
        shape = jnp.shape(param)
        fields: dict[str, Array] = {name: jnp.zeros((1,)) for name in ("v_row", "v_col", "v", "m")}
        if axes := self._factored_dims(shape):
            second, largest = axes
            fields["v_row"] = jnp.zeros(np.delete(shape, largest), jnp.float32)
            fields["v_col"] = jnp.zeros(np.delete(shape, second), jnp.float32)
        else:
            fields["v"] = jnp.zeros(shape, jnp.float32)
        if self.hyper_params.beta1 is not None:
            fields["m"] = jnp.zeros(shape, self.dtype_momentum)
        return _AdafactorParamState(**fields)

    def apply_param_gradient(
        self,
        step: Scalar,
        hyper_params: Any,
        param: Array,
        state: _AdafactorParamState,
        grad: Array,
    ) -> tuple[Array, _AdafactorParamState]:
        scale = require_learning_rate(self, hyper_params)
        hp = hyper_params
        param, grad = jnp.asarray(param), jnp.asarray(grad, jnp.float32)
        fields = {name: jnp.zeros((1,)) for name in ("v_row", "v_col", "v", "m")}
        decay = self._decay_rate_pow(step - hp.step_offset, exponent=hp.decay_rate)
        if self.hyper_params.multiply_by_parameter_scale:
            scale = scale * jnp.maximum(jnp.sqrt(jnp.mean(param * param)), hp.epsilon2)
        mixing = 1.0 - decay
        grad_sq = grad * grad + hp.epsilon1
        if axes := self._factored_dims(param.shape):
            second, largest = axes
            v_row = decay * state.v_row + mixing * jnp.mean(grad_sq, axis=largest)
            v_col = decay * state.v_col + mixing * jnp.mean(grad_sq, axis=second)
            fields.update(v_row=v_row, v_col=v_col)
            second_in_row = second - 1 if second > largest else second
            row_mean = jnp.mean(v_row, axis=second_in_row, keepdims=True)
            row_factor = jnp.expand_dims((v_row / row_mean) ** -0.5, axis=largest)
            update = grad * row_factor * jnp.expand_dims(v_col**-0.5, axis=second)
        else:
            fields["v"] = decay * state.v + mixing * grad_sq
            update = grad * fields["v"] ** -0.5
        if hp.clipping_threshold is not None:
            rms = jnp.sqrt(jnp.mean(update * update))
            update = update / jnp.maximum(1.0, rms / hp.clipping_threshold)
        subtrahend = scale * update
        if hp.beta1 is not None:
            subtrahend = hp.beta1 * state.m + (1.0 - hp.beta1) * subtrahend
            fields["m"] = subtrahend.astype(self.dtype_momentum)
        decayed_param = (
            param if hp.weight_decay_rate is None else (1.0 - hp.weight_decay_rate) * param
        )
        return (decayed_param - subtrahend).astype(param.dtype), _AdafactorParamState(**fields)

    @staticmethod
    def _decay_rate_pow(i: Scalar, exponent: float = 0.8) -> jax.Array:
        """Decay of the second moment at step `i`: `1 - (i + 1) ** -exponent`, in float32."""
        return 1.0 - (jnp.array(i, jnp.float32) + 1.0) ** (-exponent)

    def _factored_dims(self, shape: Sequence[int]) -> tuple[int, int] | None:
        """The second longest and the longest axis; None if they are too short to factor over."""
        if not self.hyper_params.factored or len(shape) < 2:
            return None
        *_, second, largest = (int(axis) for axis in np.argsort(shape, kind="stable"))
        if shape[second] < self.hyper_params.min_dim_size_to_factor:
            return None
        return second, largest
