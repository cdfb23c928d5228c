"""Updates times something: a number, a schedule, a scale for each parameter; and clipped ones."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr
from optax_bridge.spmd.optimizers.data import (
    PartitionedGradientTransformation,
    add_summary,
    count_spec,
    global_norm,
    map_updates,
    opt_param_values,
    without_state,
)
from optax_bridge.spmd.optimizers.schedules import Schedule, as_schedule_fn
from optax_bridge.spmd.optimizers.weight_decay import PerParamFn, param_scales
from optax_bridge.spmd.trees import expand_vdicts, flatten_items, vectorized_tree_map


def scale(x: float) -> PartitionedGradientTransformation:
    """Updates times a number."""
    return without_state(
        lambda updates, params: map_updates(lambda update: x * update, updates), optax.ScaleState()
    )


def replace_with_updates() -> PartitionedGradientTransformation:
    """Updates that, added to the parameters, leave what came in as the parameters' new values."""

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
    inner = optax.scale_by_trust_ratio(min_norm, trust_coefficient, eps)

    state = optax.ScaleByTrustRatioState()

    def scale_update(update: jax.Array, value: jax.Array) -> PyTree:
        return inner.update(update, state, value)[0]

    return without_state(lambda updates, params: _per_slice(scale_update, updates, params), state)


def scale_by_param_block_rms(min_scale: float = 1e-3) -> PartitionedGradientTransformation:
    """Updates times the root mean square of their parameter, per repeat of a repeated layer.

    Args:
      min_scale: the least scale.
    """

    def scale_update(update: jax.Array, value: jax.Array) -> jax.Array:
        return update * jnp.maximum(rms(value), min_scale)

    return without_state(lambda updates, params: _per_slice(scale_update, updates, params))


def _per_slice(fn: Callable[..., Leaf], updates: Updates, params: Params) -> Updates:
    """`fn(update, value)` for each parameter, per repeat of a repeated layer."""
    values = map_updates(lambda _, value: value, updates, opt_param_values(params))
    return vectorized_tree_map(fn, updates, values)


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
        norm = global_norm(updates)
        add_summary("gradient_norm", norm)
        if max_norm is None and drop_norm is None:
            return updates
        factor = jnp.ones([]) if max_norm is None else jnp.minimum(1.0, max_norm / (norm + eps))
        keep = True if drop_norm is None else norm < drop_norm
        add_summary("gradient_scale", jnp.where(keep, factor, 0.0))

        def clip(u: jax.Array) -> jax.Array:
            # What is dropped may be infinite, and 0 times that is no number.
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

    def update(updates: Updates, params: Params) -> Updates:
        del params
        if summary_suffix is not None:
            norms = expand_vdicts(vectorized_tree_map(rms, updates))
            for path, norm in flatten_items(norms):
                add_summary(f"{path}/{summary_suffix}", norm)
        if threshold is None:
            return updates
        largest = threshold

        def clip(u: jax.Array) -> jax.Array:
            return u / jnp.maximum(1.0, rms(u) / largest).astype(u.dtype)

        return vectorized_tree_map(clip, updates)

    return without_state(update)
