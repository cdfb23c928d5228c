"""Whole optimizers, each a chain of transformations."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr
from optax_bridge.spmd.optimizers.combining import chain, named_chain
from optax_bridge.spmd.optimizers.data import (
    PartitionedGradientTransformation,
    adam_partition,
    add_summary,
    copy_partition,
    count_spec,
    map_updates,
    opt_param_values,
    scale_by_lion,
    trace_partition,
)
from optax_bridge.spmd.optimizers.scaling import (
    PerParamFn,
    add_decay,
    add_decayed_weights,
    clip_by_block_rms,
    l2_regularizer,
    param_scales,
    rms,
    scale,
    scale_by_param_block_rms,
    scale_by_schedule,
    scale_by_trust_ratio,
    scale_from_learning_rate,
)
from optax_bridge.spmd.optimizers.schedules import Schedule, as_schedule_fn
from optax_bridge.spmd.optimizers.statistics import ema, scale_by_factored_rms
from optax_bridge.spmd.trees import expand_vdicts, flatten_items, vectorized_tree_map

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


class AdastarState(NamedTuple):
    """State of the averages; a tree is None where its decay is.

    Attributes:
      count: steps taken, int32 scalar.
      gradient_ema: average of the gradients.
      gradient_square_ema: average of their squares.
      update_ema: average of the updates.
    """

    count: Leaf
    gradient_ema: PyTree
    gradient_square_ema: PyTree
    update_ema: PyTree


def adastar_optimizer(
    learning_rate: float,
    *,
    gradient_ema_decay: float | None,
    gradient_ema_debias: bool,
    gradient_square_ema_decay: float | None,
    gradient_square_ema_debias: bool,
    eps: float,
    eps_square: float,
    raw_update_clipping_threshold: float | None,
    update_ema_decay: float | None,
    update_ema_debias: bool,
    adam_update_transformation: ConfigOr[PartitionedGradientTransformation] | None = None,
    weight_decay: float = 0,
    weight_decay_per_param_scale: ConfigOr[PerParamFn] | None = None,
    update_schedule: Schedule,
    verbosity: int = 0,
) -> PartitionedGradientTransformation:
    """Adam and Adafactor as special cases of one optimizer, with decoupled weight decay.

    A step is `-schedule * (learning_rate * average update + weight_decay * value * scale)`.

    Args:
      learning_rate: of the updates alone.
      gradient_ema_decay: decay of the gradients' average; None: no average.
      gradient_ema_debias: that average is over `1 - decay ** count`.
      gradient_square_ema_decay: decay of the average of their squares, likewise.
      gradient_square_ema_debias: likewise.
      eps: added to the root of the squares.
      eps_square: added to the squared gradients.
      raw_update_clipping_threshold: largest root mean square of a raw update, None for any.
      update_ema_decay: decay of the average of the raw updates, likewise.
      update_ema_debias: likewise.
      adam_update_transformation: applied to the average updates.
      weight_decay: the rate.
      weight_decay_per_param_scale: see `add_decayed_weights`.
      update_schedule: scales updates and decay; it is given 1 at the first step.
      verbosity: above 0 adds summaries of each parameter, such as `<path>/raw_update_norm`.

    Adds the summaries `schedule_step`, `schedule_scale`, `learning_rate` and `weight_decay_rate`;
    where parameters have decays of their own, `<path>/weight_decay_rate` of each.
    """
    averages = (
        _Ema(gradient_ema_decay, gradient_ema_debias),
        _Ema(gradient_square_ema_decay, gradient_square_ema_debias),
        _Ema(update_ema_decay, update_ema_debias),
    )
    clip = clip_by_block_rms(raw_update_clipping_threshold)
    first = _average_updates(averages, clip, eps, eps_square, has_summaries=verbosity > 0)
    parts: dict[str, ConfigOr[PartitionedGradientTransformation]] = {"compute_updates": first}
    if adam_update_transformation is not None:
        parts["transform_updates"] = adam_update_transformation
    parts["apply_lr_and_wd"] = _learning_rate_and_decay(
        learning_rate, weight_decay, weight_decay_per_param_scale, update_schedule
    )
    return named_chain(**parts)


def _learning_rate_and_decay(
    learning_rate: float,
    weight_decay: float,
    per_param_scale: ConfigOr[PerParamFn] | None,
    update_schedule: Schedule,
) -> PartitionedGradientTransformation:
    """Updates times the learning rate, and decay, both times a schedule; the state is a count."""
    schedule = as_schedule_fn(update_schedule)

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        step = optax.safe_increment(state)
        scale = schedule(step)
        add_summary("schedule_step", step)
        add_summary("schedule_scale", scale)
        add_summary("learning_rate", learning_rate * scale)
        _add_decay_rates(weight_decay * scale, param_scales(per_param_scale, params))
        updates = map_updates(lambda u: learning_rate * u, updates)
        updates = add_decay(weight_decay, per_param_scale, updates, params)
        return map_updates(lambda u: (-scale * u).astype(u.dtype), updates), step

    return PartitionedGradientTransformation(
        lambda params: jnp.zeros([], jnp.int32), update, lambda specs: count_spec()
    )


def _add_decay_rates(rate: Leaf, scales: PyTree) -> None:
    """Adds the decay rate of all parameters, or of each where their scales differ."""
    by_path = flatten_items(scales)
    first = by_path[0][1] if by_path else 1.0
    if len(by_path) < 2 or all(type(s) is float and s == first for _, s in by_path):
        add_summary("weight_decay_rate", rate * first)
        return
    for path, param_scale in by_path:
        add_summary(f"{path}/weight_decay_rate", rate * param_scale)


class _Ema(NamedTuple):
    """A moving average from 0; without a decay, the identity, and no state."""

    decay: float | None
    debias: bool

    def init(self, values: Params) -> PyTree:
        return None if self.decay is None else jax.tree.map(jnp.zeros_like, values)

    def partition(self, specs: PyTree) -> PyTree:
        return None if self.decay is None else copy_partition(specs)

    def update(self, updates: Updates, average: PyTree, count: jax.Array) -> tuple[Updates, PyTree]:
        """Returns the average with the updates in it, debiased and as stored."""
        if self.decay is None:
            return updates, None
        decay = self.decay
        average = map_updates(lambda u, a: (1.0 - decay) * u + decay * a, updates, average)
        if not self.debias:
            return average, average
        correction = 1.0 - decay ** jnp.asarray(count)
        return map_updates(lambda a: a / correction.astype(a.dtype), average), average


def _average_updates(
    averages: tuple[_Ema, _Ema, _Ema],
    clip: PartitionedGradientTransformation,
    eps: float,
    eps_square: float,
    *,
    has_summaries: bool,
) -> PartitionedGradientTransformation:
    """The average of the raw updates: the average gradient over the root of its average square."""
    gradient, square, update = averages

    def init(params: Params) -> AdastarState:
        values = opt_param_values(params)
        return AdastarState(jnp.zeros([], jnp.int32), *(ema.init(values) for ema in averages))

    def compute(grads: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        count: Leaf = optax.safe_increment(state.count)
        squares = map_updates(lambda g: jnp.square(g) + eps_square, grads)
        mean, mean_state = gradient.update(grads, state.gradient_ema, count)
        mean_square, square_state = square.update(squares, state.gradient_square_ema, count)
        raw = map_updates(lambda m, n: m / (jnp.sqrt(n) + eps), mean, mean_square)
        raw, _ = clip.update(raw, optax.EmptyState(), None)
        smooth, update_state = update.update(raw, state.update_ema, count)
        if has_summaries:
            _add_summaries(grads, raw, smooth, opt_param_values(params))
        return smooth, AdastarState(count, mean_state, square_state, update_state)

    def partition(specs: PyTree) -> AdastarState:
        return AdastarState(count_spec(), *(ema.partition(specs) for ema in averages))

    return PartitionedGradientTransformation(init, compute, partition)


def _add_summaries(grads: Updates, raw: Updates, smooth: Updates, values: Params) -> None:
    """Adds norms, and correlations of updates with the parameters, for each parameter."""
    values = map_updates(lambda _, value: value, grads, values)
    norms = {
        "raw_grad_norm": _compute_rms_norms(grads),
        "raw_update_norm": _compute_rms_norms(raw),
        "smoothed_update_norm": _compute_rms_norms(smooth),
        "param_norm": _compute_rms_norms(values),
    }
    trees = dict(norms)
    for name, tree, norm in (
        ("corr_param_raw_updates", raw, norms["raw_update_norm"]),
        ("corr_param_smoothed_updates", smooth, norms["smoothed_update_norm"]),
    ):
        products = map_updates(jnp.multiply, norms["param_norm"], norm)
        trees[name] = map_updates(jnp.divide, _compute_covariance(values, tree), products)
    for name, tree in trees.items():
        for path, value in flatten_items(expand_vdicts(tree)):
            add_summary(f"{path}/{name}", value)


def _compute_rms_norms(tree: PyTree) -> PyTree:
    """The root mean square of each array, per repeat of a repeated layer."""
    return vectorized_tree_map(rms, tree)


def _compute_covariance(x: PyTree, y: PyTree) -> PyTree:
    """The mean of the product of each two arrays, per repeat of a repeated layer."""
    return vectorized_tree_map(lambda a, b: jnp.mean(a * b), x, y)
