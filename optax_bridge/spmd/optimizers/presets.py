"""Whole optimizers, each a chain of transformations."""

import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from optax_bridge.spmd.config import ConfigOr
from optax_bridge.spmd.optimizers.averages import ema
from optax_bridge.spmd.optimizers.chaining import chain
from optax_bridge.spmd.optimizers.data import (
    PartitionedGradientTransformation,
    adam_partition,
    scale_by_lion,
    trace_partition,
)
from optax_bridge.spmd.optimizers.factored import scale_by_factored_rms
from optax_bridge.spmd.optimizers.scaling import (
    clip_by_block_rms,
    scale,
    scale_by_param_block_rms,
    scale_by_schedule,
    scale_by_trust_ratio,
    scale_from_learning_rate,
)
from optax_bridge.spmd.optimizers.schedules import Schedule
from optax_bridge.spmd.optimizers.weight_decay import (
    PerParamFn,
    add_decayed_weights,
    l2_regularizer,
)

Transformation = ConfigOr[PartitionedGradientTransformation]


def sgd_optimizer(
    learning_rate: Schedule,
    *,
    decouple_weight_decay: bool,
    momentum: float = 0,
    weight_decay: float = 0,
    weight_decay_per_param_scale: ConfigOr[PerParamFn] | None = None,
) -> PartitionedGradientTransformation:
    """Stochastic gradient descent with momentum.

    Args:
      learning_rate: a schedule.
      decouple_weight_decay: decay is added after the momentum, not before.
      momentum: decay of the accumulated gradient.
      weight_decay: see `add_decayed_weights`.
      weight_decay_per_param_scale: likewise.
    """
    trace = trace_partition(optax.trace(decay=momentum))
    decay = add_decayed_weights(weight_decay, per_param_scale=weight_decay_per_param_scale)
    parts = [trace, decay] if decouple_weight_decay else [decay, trace]
    return chain(*parts, scale_by_schedule(scale_from_learning_rate(learning_rate)))


def adam_optimizer(
    learning_rate: Schedule,
    *,
    b1: float,
    b2: float,
    eps: float,
    l2_regularizer_weight: float = 0,
    l2_regularizer_per_param_scale: ConfigOr[PerParamFn] | None = None,
    mu_dtype: DTypeLike | None = None,
) -> PartitionedGradientTransformation:
    """Adam (Kingma and Ba 2014), with an L2 regularizer that goes through the moments.

    Args:
      learning_rate: a schedule.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      l2_regularizer_weight: see `l2_regularizer`.
      l2_regularizer_per_param_scale: likewise.
      mu_dtype: dtype of the first moment, None for the parameter's.
    """
    return chain(
        l2_regularizer(l2_regularizer_weight, l2_regularizer_per_param_scale),
        *_adam(b1, b2, eps, mu_dtype, None),
        scale_by_schedule(scale_from_learning_rate(learning_rate)),
    )


def adamw_optimizer(
    learning_rate: Schedule,
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float = 0,
    weight_decay_per_param_scale: ConfigOr[PerParamFn] | None = None,
    mu_dtype: DTypeLike | None = None,
    adam_update_transformation: Transformation | None = None,
) -> PartitionedGradientTransformation:
    """Adam with decoupled weight decay, which the learning rate scales (Loshchilov and Hutter).

    Args:
      learning_rate: a schedule.
      b1: as of `adam_optimizer`.
      b2: likewise.
      eps: likewise.
      weight_decay: see `add_decayed_weights`.
      weight_decay_per_param_scale: likewise.
      mu_dtype: as of `adam_optimizer`.
      adam_update_transformation: applied to Adam's direction.
    """
    return chain(
        *_adam(b1, b2, eps, mu_dtype, adam_update_transformation),
        add_decayed_weights(weight_decay, per_param_scale=weight_decay_per_param_scale),
        scale_by_schedule(scale_from_learning_rate(learning_rate)),
    )


def adamw_decoupled_optimizer(
    learning_rate: float,
    *,
    b1: float,
    b2: float,
    eps: float,
    update_schedule: Schedule,
    weight_decay: float = 0,
    weight_decay_per_param_scale: ConfigOr[PerParamFn] | None = None,
    mu_dtype: DTypeLike | None = None,
    adam_update_transformation: Transformation | None = None,
) -> PartitionedGradientTransformation:
    """Adam with weight decay that the learning rate does not scale; a schedule scales both.

    Args:
      learning_rate: of Adam's direction alone.
      b1: as of `adam_optimizer`.
      b2: likewise.
      eps: likewise.
      update_schedule: scales direction and decay.
      weight_decay: see `add_decayed_weights`.
      weight_decay_per_param_scale: likewise.
      mu_dtype: as of `adam_optimizer`.
      adam_update_transformation: applied to Adam's direction.
    """
    return chain(
        *_adam(b1, b2, eps, mu_dtype, adam_update_transformation),
        scale_by_schedule(scale_from_learning_rate(learning_rate, flip_sign=False)),
        add_decayed_weights(weight_decay, per_param_scale=weight_decay_per_param_scale),
        scale_by_schedule(update_schedule),
        scale(-1.0),
    )


def _adam(
    b1: float, b2: float, eps: float, mu_dtype: DTypeLike | None, then: Transformation | None
) -> list[Transformation]:
    adam = adam_partition(optax.scale_by_adam(b1=b1, b2=b2, eps=eps, mu_dtype=mu_dtype))
    return [adam] if then is None else [adam, then]


def lion_optimizer(
    learning_rate: Schedule,
    b1: float,
    b2: float,
    mu_dtype: DTypeLike | None = None,
    weight_decay: float = 0.0,
    weight_decay_per_param_scale: ConfigOr[PerParamFn] | None = None,
    multiply_by_parameter_scale: bool = False,
) -> PartitionedGradientTransformation:
    """Lion (Chen et al. 2023): the sign of an average, with decoupled weight decay.

    Args:
      learning_rate: a schedule.
      b1: see `scale_by_lion`.
      b2: likewise.
      mu_dtype: likewise.
      weight_decay: see `add_decayed_weights`.
      weight_decay_per_param_scale: likewise.
      multiply_by_parameter_scale: steps are relative to the parameter's root mean square.
    """
    return chain(
        scale_by_lion(b1, b2, mu_dtype),
        *([scale_by_param_block_rms()] if multiply_by_parameter_scale else []),
        add_decayed_weights(weight_decay, per_param_scale=weight_decay_per_param_scale),
        scale_by_schedule(scale_from_learning_rate(learning_rate)),
    )


def adafactor_optimizer(
    learning_rate: Schedule | None,
    *,
    b1: Schedule | None,
    b2: Schedule,
    multiply_by_parameter_scale: bool,
    clipping_threshold: float | None,
    dtype_momentum: DTypeLike | None = jnp.float32,
    weight_decay: float | None = None,
    weight_decay_scale_by_learning_rate_exponent: float | None = None,
    weight_decay_per_param_scale: ConfigOr[PerParamFn] | None = None,
    eps: float = 1e-30,
    factored: bool = True,
    apply_scale_by_trust_ratio: bool = False,
) -> PartitionedGradientTransformation:
    """Adafactor (Shazeer and Stern 2018), factored by `FactorizationSpec`.

    Args:
      learning_rate: a schedule, None for none.
      b1: decay of the accumulated step, a number or a schedule; None for none.
      b2: decay of the second moment, likewise.
      multiply_by_parameter_scale: steps are relative to the parameter's root mean square.
      clipping_threshold: largest root mean square of the update, None for any.
      dtype_momentum: accumulator of the step, see `ema`.
      weight_decay: see `add_decayed_weights`; None for none.
      weight_decay_scale_by_learning_rate_exponent: likewise.
      weight_decay_per_param_scale: likewise.
      eps: added to the squared gradient.
      factored: False: the second moment is kept whole.
      apply_scale_by_trust_ratio: see `scale_by_trust_ratio`.

    Raises:
      ValueError: weight decay without an exponent of the learning rate.
    """
    parts = [scale_by_factored_rms(factored, decay_rate=b2, epsilon=eps)]  # type: ignore[arg-type]
    if clipping_threshold is not None:
        parts.append(clip_by_block_rms(clipping_threshold, summary_suffix="norm"))
    if learning_rate is not None:
        rate = scale_from_learning_rate(learning_rate, flip_sign=False)
        parts.append(scale_by_schedule(rate))
    if multiply_by_parameter_scale:
        parts.append(scale_by_param_block_rms())
    if b1 is not None:
        parts.append(ema(b1, debias=False, accumulator_dtype=dtype_momentum))
    if weight_decay is not None:
        exponent = weight_decay_scale_by_learning_rate_exponent
        scales = weight_decay_per_param_scale
        parts.append(_adafactor_decay(weight_decay, exponent, learning_rate, scales))
    if apply_scale_by_trust_ratio:
        parts.append(scale_by_trust_ratio(eps=eps))
    return chain(*parts, scale(-1.0))


def _adafactor_decay(
    weight_decay: float,
    exponent: float | None,
    learning_rate: Schedule | None,
    scales: ConfigOr[PerParamFn] | None,
) -> PartitionedGradientTransformation:
    if exponent is None:
        raise ValueError(
            "adafactor_optimizer: weight_decay needs "
            "weight_decay_scale_by_learning_rate_exponent; 0 leaves the learning rate out"
        )
    return add_decayed_weights(
        weight_decay,
        learning_rate_exponent=exponent,
        learning_rate=1.0 if learning_rate is None else learning_rate,
        per_param_scale=scales,
    )
