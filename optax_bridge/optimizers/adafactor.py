"""Adafactor (Shazeer and Stern 2018), as `flax.optim.Adafactor` computes it."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optax_bridge.transformation import ExactTransformation, ScalarOrSchedule, leafwise


class AdafactorState(NamedTuple):
    """State of `adafactor`; float32 whatever the parameters' dtype, and of shape (1,) where unused.

    Attributes:
      count: steps taken, int32 scalar.
      v_row: mean of the squared gradient over the largest axis, for each factored parameter.
      v_col: the same over the second largest axis.
      v: the whole second moment, for each parameter that is not factored.
      m: the accumulated step, in `dtype_momentum`, if there is momentum.
    """

    count: jax.Array
    v_row: Any
    v_col: Any
    v: Any
    m: Any


def adafactor(
    learning_rate: ScalarOrSchedule | None = None,
    factored: bool = True,
    multiply_by_parameter_scale: bool = True,
    momentum: ScalarOrSchedule | None = None,
    decay_rate: ScalarOrSchedule = 0.8,
    step_offset: int = 0,
    clipping_threshold: ScalarOrSchedule | None = 1.0,
    weight_decay_rate: ScalarOrSchedule | None = None,
    min_dim_size_to_factor: int = 128,
    epsilon1: ScalarOrSchedule = 1e-30,
    epsilon2: ScalarOrSchedule = 1e-3,
    dtype_momentum: Any = jnp.float32,
) -> ExactTransformation:
    """Adafactor with every setting of the legacy one.

    Args:
      learning_rate: a number, a schedule, or None if every call gives it.
      factored: keeps row and column means for parameters with two axes that are large enough.
      multiply_by_parameter_scale: makes the learning rate relative to the parameter's root mean
        square.
      momentum: decay of the accumulated step (`beta1` in the paper), None for none.
      decay_rate: exponent of the second moment's decay, `1 - t ** -decay_rate`.
      step_offset: step at which the decay schedule starts, for fine-tuning.
      clipping_threshold: largest root mean square of the update before it is scaled, None for any.
      weight_decay_rate: the parameter is multiplied by `1 - weight_decay_rate`, whatever the
        learning rate.
      min_dim_size_to_factor: both axes must be at least this long to be factored.
      epsilon1: added to the squared gradient.
      epsilon2: smallest parameter scale. `optax.adafactor` has it fixed at 1e-3.
      dtype_momentum: dtype of the accumulated step.

    Returns:
      The transformation; bit for bit `flax.optim.Adafactor` by the exact path.
    """
    dtype_momentum = jax.dtypes.canonicalize_dtype(dtype_momentum)

    def factored_axes(shape: tuple[int, ...]) -> tuple[int, int] | None:
        if not factored or len(shape) < 2:
            return None
        # Stable, as NumPy sorted such short arrays in the days of flax.optim: of equally long axes
        # the last one counts as the largest. With AVX-512 the default sort of today may swap them.
        *_, second, largest = (int(axis) for axis in np.argsort(shape, kind="stable"))
        return None if shape[second] < min_dim_size_to_factor else (second, largest)

    def init(param: Any) -> tuple[jax.Array, ...]:
        shape = jnp.shape(param)
        unused = jnp.zeros((1,))
        v_row = v_col = v = m = unused
        if axes := factored_axes(shape):
            second, largest = axes
            v_row = jnp.zeros(_without(shape, largest), jnp.float32)
            v_col = jnp.zeros(_without(shape, second), jnp.float32)
        else:
            v = jnp.zeros(shape, jnp.float32)
        if momentum is not None:
            m = jnp.zeros(shape, dtype_momentum)
        return v_row, v_col, v, m

    def step(
        hp: SimpleNamespace,
        count: jax.Array,
        grad: Any,
        param: Any,
        v_row: Any,
        v_col: Any,
        v: Any,
        m: Any,
    ) -> tuple[Any, tuple[Any, ...]]:
        grad, param = jnp.asarray(grad, jnp.float32), jnp.asarray(param)
        decay = 1.0 - (jnp.array(count - hp.step_offset, jnp.float32) + 1.0) ** (-hp.decay_rate)
        scale = hp.learning_rate
        if multiply_by_parameter_scale:
            scale = scale * jnp.maximum(jnp.sqrt(jnp.mean(param * param)), hp.epsilon2)
        mixing = 1.0 - decay
        grad_sq = grad * grad + hp.epsilon1
        if axes := factored_axes(param.shape):
            second, largest = axes
            v_row = decay * v_row + mixing * jnp.mean(grad_sq, axis=largest)
            v_col = decay * v_col + mixing * jnp.mean(grad_sq, axis=second)
            second_in_row = second - 1 if second > largest else second
            row_mean = jnp.mean(v_row, axis=second_in_row, keepdims=True)
            row_factor = jnp.expand_dims((v_row / row_mean) ** -0.5, axis=largest)
            col_factor = jnp.expand_dims(v_col**-0.5, axis=second)
            update = grad * row_factor * col_factor
        else:
            v = decay * v + mixing * grad_sq
            update = grad * v**-0.5
        if hp.clipping_threshold is not None:
            rms = jnp.sqrt(jnp.mean(update * update))
            update = update / jnp.maximum(1.0, rms / hp.clipping_threshold)
        decrement = scale * update
        if hp.momentum is not None:
            decrement = hp.momentum * m + (1.0 - hp.momentum) * decrement
            m = decrement.astype(dtype_momentum)
        return decrement, (v_row, v_col, v, m)

    def apply(hp: SimpleNamespace, param: Any, decrement: Any) -> Any:
        kept = param if hp.weight_decay_rate is None else (1.0 - hp.weight_decay_rate) * param
        return (kept - decrement).astype(param.dtype)

    return leafwise(
        AdafactorState,
        init,
        step,
        dict(
            learning_rate=learning_rate,
            momentum=momentum,
            decay_rate=decay_rate,
            step_offset=step_offset,
            clipping_threshold=clipping_threshold,
            weight_decay_rate=weight_decay_rate,
            epsilon1=epsilon1,
            epsilon2=epsilon2,
        ),
        reads_params=lambda hp: multiply_by_parameter_scale,
        apply=apply,
        is_subtraction=lambda hp: hp.weight_decay_rate is None,
    )


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]
