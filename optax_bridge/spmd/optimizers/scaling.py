"""Updates times a number, a schedule or a scale for each parameter; weight decay; clipping."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr, maybe_instantiate
from optax_bridge.spmd.optimizers.data import (
    OptParam,
    PartitionedGradientTransformation,
    add_summary,
    count_spec,
    map_updates,
    opt_param_values,
    without_state,
)
from optax_bridge.spmd.optimizers.schedules import Schedule, as_schedule_fn
from optax_bridge.spmd.trees import (
    expand_vdicts,
    flatten_items,
    match_regex_rules,
    register_per_param_settings,
    tree_paths,
    vectorized_tree_map,
    warn_of_unused_rules,
)

# A function of the parameters that returns a scale for each.
PerParamFn = Callable[[Params], PyTree]


def per_param_scale_by_path(
    *, scale_by_path: Sequence[tuple[str, float]], description: str, default_scale: float = 1.0
) -> PerParamFn:
    """Scales by the '/'-joined paths of the parameters.

    Args:
      scale_by_path: pairs of a regular expression for whole paths and a scale; the first that fits.
      description: a name of the scales, in listings of settings.
      default_scale: the scale of parameters that no expression fits.
    """

    def scales_of(params: Params) -> PyTree:
        warn_of_unused_rules(scale_by_path, params, f"per_param_scale_by_path, {description}")
        scales = jax.tree.map(
            lambda path: match_regex_rules(path, rules=scale_by_path, default_value=default_scale),
            tree_paths(params),
        )
        return register_per_param_settings(scales, description=description)

    return scales_of


def per_param_scale_by_rms(*, min_scale: float = 1e-4) -> PerParamFn:
    """Scales that are the parameters' root mean squares, per repeat of a repeated layer.

    Args:
      min_scale: the least scale.

    Returns:
      A function of the parameters; each scale has the rank of its parameter.
    """

    def scale(value: jax.Array) -> jax.Array:
        return jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(value), keepdims=True)), min_scale)

    return lambda params: vectorized_tree_map(scale, opt_param_values(params))


def param_scales(
    per_param_scale: ConfigOr[PerParamFn] | None, params: Params, *, use_param_scale: bool = True
) -> PyTree:
    """The scale of each parameter."""
    function = maybe_instantiate(per_param_scale)
    scales = jax.tree.map(lambda _: 1.0, params) if function is None else function(params)

    def scale_of(param: Leaf, scale: Leaf) -> Leaf:
        replaces = (
            use_param_scale and isinstance(param, OptParam) and param.weight_decay_scale is not None
        )
        return param.weight_decay_scale if replaces else scale

    return jax.tree.map(scale_of, params, scales)


class AddDecayedWeightsState(NamedTuple):
    """State of `add_decayed_weights`.

    Attributes:
      count: steps taken, int32 scalar; None if no learning rate is looked at.
    """

    count: Leaf


def add_decayed_weights(
    weight_decay: float,
    *,
    learning_rate_exponent: float | None = None,
    learning_rate: Schedule | None = None,
    per_param_scale: ConfigOr[PerParamFn] | None = None,
) -> PartitionedGradientTransformation:
    """Updates plus `weight_decay * learning_rate ** exponent * value * scale`.

    Args:
      weight_decay: the rate.
      learning_rate_exponent: exponent of the learning rate; None: the learning rate is left out.
      learning_rate: a schedule, given 1 at the first step.
      per_param_scale: the scales, unless a parameter has its own `weight_decay_scale`.

    Raises:
      ValueError: an exponent without a learning rate.
    """
    if learning_rate_exponent is not None and learning_rate is None:
        raise ValueError(
            f"add_decayed_weights: learning_rate_exponent={learning_rate_exponent} needs "
            "learning_rate"
        )
    schedule = as_schedule_fn(learning_rate)
    counts = learning_rate_exponent is not None

    def init(params: Params) -> AddDecayedWeightsState:
        del params
        return AddDecayedWeightsState(jnp.zeros([], jnp.int32) if counts else None)

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        if params is None:
            raise ValueError("add_decayed_weights: update(updates, state, params) needs params")
        rate, count = weight_decay, None
        if learning_rate_exponent is not None:
            count = optax.safe_increment(state.count)
            rate = weight_decay * schedule(count) ** learning_rate_exponent
        return add_decay(rate, per_param_scale, updates, params), AddDecayedWeightsState(count)

    def partition(specs: PyTree) -> AddDecayedWeightsState:
        del specs
        return AddDecayedWeightsState(count_spec() if counts else None)

    return PartitionedGradientTransformation(init, update, partition)


def l2_regularizer(
    regularizer_weight: float = 0.0, per_param_scale: ConfigOr[PerParamFn] | None = None
) -> PartitionedGradientTransformation:
    """Gradients plus `regularizer_weight * value * scale`, those of a squared norm in the loss.

    Args:
      regularizer_weight: the weight.
      per_param_scale: the scales, unless a parameter has its own `weight_decay_scale`.
    """
    return without_state(
        lambda updates, params: add_decay(regularizer_weight, per_param_scale, updates, params)
    )


def add_decay(
    rate: ArrayLike,
    per_param_scale: ConfigOr[PerParamFn] | None,
    updates: Updates,
    params: Params,
) -> Updates:
    """Returns updates plus `rate * scale * value`."""
    return map_updates(
        lambda update, value, scale: update + rate * scale * value,
        updates,
        opt_param_values(params),
        param_scales(per_param_scale, params),
    )


def scale(x: float) -> PartitionedGradientTransformation:
    """Updates times a number."""
    return without_state(
        lambda updates, params: map_updates(lambda update: x * update, updates), optax.ScaleState()
    )


def replace_with_updates() -> PartitionedGradientTransformation:
    """Turns updates that are new values of the parameters into differences from the old ones."""

    def update(updates: Updates, params: Params) -> Updates:
        return map_updates(jnp.subtract, updates, opt_param_values(params))

    return without_state(update)


def scale_by_schedule(
    step_size_fn: Schedule, *, name: str | None = None
) -> PartitionedGradientTransformation:
    """Updates times a schedule, which is given 1 at the first step.

    Adds the summaries `schedule_step` and `schedule_scale`, below `name` if there is one.

    Args:
      step_size_fn: the schedule.
      name: see above.

    Returns:
      The transformation; its state is `optax.ScaleByScheduleState(count)`.
    """
    schedule = as_schedule_fn(step_size_fn)
    prefix = "" if name is None else f"{name}/"

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        del params
        count = optax.safe_increment(state.count)
        step_size = schedule(count)
        add_summary(f"{prefix}schedule_step", count)
        add_summary(f"{prefix}schedule_scale", step_size)
        updates = map_updates(lambda u: jnp.asarray(step_size, u.dtype) * u, updates)
        return updates, optax.ScaleByScheduleState(count=count)

    return PartitionedGradientTransformation(
        lambda params: optax.ScaleByScheduleState(count=jnp.zeros([], jnp.int32)),
        update,
        lambda specs: optax.ScaleByScheduleState(count=count_spec()),  # type: ignore[arg-type]
    )


def scale_from_learning_rate(
    learning_rate: Schedule, *, flip_sign: bool = True
) -> Callable[[jax.Array], jax.Array]:
    """The schedule of a learning rate, negative so that its updates descend.

    Adds the summaries `learning_rate` and `lr_schedule_step`.

    Args:
      learning_rate: a schedule.
      flip_sign: False: the learning rate itself.
    """
    schedule = as_schedule_fn(learning_rate)

    def scale_fn(step: jax.Array) -> jax.Array:
        rate = schedule(step)
        add_summary("learning_rate", rate)
        add_summary("lr_schedule_step", step)
        return -rate if flip_sign else rate

    return scale_fn


def scale_update_per_param(
    per_param_scale: ConfigOr[PerParamFn],
) -> PartitionedGradientTransformation:
    """Updates times a scale for each parameter; 0 freezes it. `weight_decay_scale` is not asked."""

    def update(updates: Updates, params: Params) -> Updates:
        scales = param_scales(per_param_scale, params, use_param_scale=False)
        return map_updates(jnp.multiply, updates, scales)

    return without_state(update)


def scale_by_trust_ratio(
    min_norm: float = 0.0, trust_coefficient: float = 1.0, eps: float = 0.0
) -> PartitionedGradientTransformation:
    """`optax.scale_by_trust_ratio`, with norms per repeat of a repeated layer.

    Args:
      min_norm: the least norm of parameters and updates.
      trust_coefficient: the ratio is times this.
      eps: added to the norm of the updates.
    """
    return _per_slice(optax.scale_by_trust_ratio(min_norm, trust_coefficient, eps))


def scale_by_param_block_rms(min_scale: float = 1e-3) -> PartitionedGradientTransformation:
    """Updates times the root mean square of their parameter, per repeat of a repeated layer.

    Args:
      min_scale: the least scale.
    """
    return _per_slice(optax.scale_by_param_block_rms(min_scale))


def _per_slice(tx: optax.GradientTransformation) -> PartitionedGradientTransformation:
    """A transformation of Optax without state, of each parameter by itself and of each repeat."""
    state = tx.init({})

    def apply(update: jax.Array, value: jax.Array) -> PyTree:
        return tx.update(update, state, value)[0]

    def update(updates: Updates, params: Params) -> Updates:
        values = map_updates(lambda _, value: value, updates, opt_param_values(params))
        return vectorized_tree_map(apply, updates, values)

    return without_state(update, state)


def rms(x: jax.Array) -> jax.Array:
    """Root mean square of an array."""
    return jnp.sqrt(jnp.mean(jnp.square(x)))


def clip_by_global_norm(
    max_norm: float | None = None, *, drop_norm: float | None = None, eps: float = 1e-8
) -> PartitionedGradientTransformation:
    """Updates times `min(1, max_norm / (norm + eps))`, and 0 where the norm reaches `drop_norm`.

    Adds the summary `gradient_norm`, and `gradient_scale` if either is set.

    Args:
      max_norm: the largest norm of all updates together, None for any.
      drop_norm: the norm from which on a step is dropped, None for none.
      eps: added to the norm.
    """

    def update(updates: Updates, params: Params) -> Updates:
        del params
        norm = optax.tree.norm(updates)
        add_summary("gradient_norm", norm)
        if max_norm is None and drop_norm is None:
            return updates
        factor = jnp.ones([]) if max_norm is None else jnp.minimum(1.0, max_norm / (norm + eps))
        keep = True if drop_norm is None else norm < drop_norm
        add_summary("gradient_scale", jnp.where(keep, factor, 0.0))

        def clip(u: jax.Array) -> jax.Array:
            # A dropped update may be infinite, and 0 times that is no number.
            return jnp.where(keep, u * jnp.asarray(factor, u.dtype), jnp.zeros_like(u))

        return map_updates(clip, updates)

    return without_state(update)


def clip_by_block_rms(
    threshold: float | None, *, summary_suffix: str | None = None
) -> PartitionedGradientTransformation:
    """Each update over `max(1, rms / threshold)`, per repeat of a repeated layer.

    Args:
      threshold: the largest root mean square, None for any.
      summary_suffix: adds the summary `<path>/<summary_suffix>`, the root mean square before.
    """
    tx = optax.identity() if threshold is None else optax.clip_by_block_rms(threshold)

    def update(updates: Updates, params: Params) -> Updates:
        del params
        if summary_suffix is not None:
            norms = expand_vdicts(vectorized_tree_map(rms, updates))
            for path, norm in flatten_items(norms):
                add_summary(f"{path}/{summary_suffix}", norm)
        return vectorized_tree_map(lambda u: tx.update(u, optax.EmptyState())[0], updates)

    return without_state(update)
