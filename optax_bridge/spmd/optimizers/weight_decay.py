"""Weight decay, and its relative that goes through the moments."""

from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr
from optax_bridge.spmd.optimizers.data import (
    PartitionedGradientTransformation,
    count_spec,
    map_updates,
    opt_param_values,
    without_state,
)
from optax_bridge.spmd.optimizers.param_scales import PerParamFn, param_scales
from optax_bridge.spmd.optimizers.schedules import Schedule, as_schedule_fn


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
