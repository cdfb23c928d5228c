"""Weight decay, its relative that goes through the moments, and scales for each parameter."""

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
    count_spec,
    map_updates,
    opt_param_values,
    without_state,
)
from optax_bridge.spmd.optimizers.schedules import Schedule, as_schedule_fn
from optax_bridge.spmd.trees import (
    match_regex_rules,
    register_per_param_settings,
    tree_paths,
    vectorized_tree_map,
)

# A function of the parameters that returns a scale for each.
PerParamFn = Callable[[Params], PyTree]


def per_param_scale_by_path(
    *, scale_by_path: Sequence[tuple[str, float]], description: str, default_scale: float = 1.0
) -> PerParamFn:
    """Scales by the '/'-joined paths of the parameters.

    Args:
      scale_by_path: pairs of a regular expression for whole paths and a scale; the first that fits.
      description: what the scales are for, in listings of settings.
      default_scale: the scale of what no expression fits.
    """

    def scales_of(params: Params) -> PyTree:
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
    """The scale of each parameter.

    Args:
      per_param_scale: a function of the parameters, or a config of one; None: 1.
      params: `OptParam`s.
      use_param_scale: whether a parameter's `weight_decay_scale`, if set, replaces that scale.

    Returns:
      A tree like `params`.
    """
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
      per_param_scale: the scales, unless a parameter has a `weight_decay_scale` of its own.

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
      per_param_scale: the scales, unless a parameter has a `weight_decay_scale` of its own.
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
