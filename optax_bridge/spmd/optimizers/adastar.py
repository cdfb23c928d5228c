"""AdaStar: averages of gradients, of their squares and of the updates, each with its own decay."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr
from optax_bridge.spmd.optimizers.chaining import named_chain
from optax_bridge.spmd.optimizers.data import (
    PartitionedGradientTransformation,
    add_summary,
    copy_partition,
    count_spec,
    map_updates,
    opt_param_values,
)
from optax_bridge.spmd.optimizers.scaling import clip_by_block_rms, rms
from optax_bridge.spmd.optimizers.schedules import Schedule, as_schedule_fn
from optax_bridge.spmd.optimizers.weight_decay import PerParamFn, add_decay
from optax_bridge.spmd.trees import expand_vdicts, flatten_items, vectorized_tree_map


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
    """
    averages = _Averages(
        _Ema(gradient_ema_decay, gradient_ema_debias),
        _Ema(gradient_square_ema_decay, gradient_square_ema_debias),
        _Ema(update_ema_decay, update_ema_debias),
    )
    clip = clip_by_block_rms(raw_update_clipping_threshold)

    def compute(grads: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        raw, smooth, state = averages.update(grads, state, clip, eps=eps, eps_square=eps_square)
        if verbosity > 0:
            _add_summaries(grads, raw, smooth, opt_param_values(params))
        return smooth, state

    first = PartitionedGradientTransformation(averages.init, compute, averages.partition)
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
        add_summary("weight_decay_rate", weight_decay * scale)
        updates = map_updates(lambda u: learning_rate * u, updates)
        updates = add_decay(weight_decay, per_param_scale, updates, params)
        return map_updates(lambda u: (-scale * u).astype(u.dtype), updates), step

    return PartitionedGradientTransformation(
        lambda params: jnp.zeros([], jnp.int32), update, lambda specs: count_spec()
    )


class _Ema(NamedTuple):
    """A moving average from 0; without a decay, what comes in, and no state."""

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


class _Averages(NamedTuple):
    """The averages of gradients, of their squares and of the updates."""

    gradient: _Ema
    square: _Ema
    update_: _Ema

    def init(self, params: Params) -> AdastarState:
        values = opt_param_values(params)
        return AdastarState(jnp.zeros([], jnp.int32), *(ema.init(values) for ema in self))

    def partition(self, specs: PyTree) -> AdastarState:
        return AdastarState(count_spec(), *(ema.partition(specs) for ema in self))

    def update(
        self,
        grads: Updates,
        state: OptState,
        clip: PartitionedGradientTransformation,
        *,
        eps: float,
        eps_square: float,
    ) -> tuple[Updates, Updates, AdastarState]:
        """Returns the raw updates, their average and the new state.

        A raw update is the average gradient over `sqrt(average square) + eps`, clipped.
        """
        count: Leaf = optax.safe_increment(state.count)
        squares = map_updates(lambda g: jnp.square(g) + eps_square, grads)
        mean, mean_state = self.gradient.update(grads, state.gradient_ema, count)
        square, square_state = self.square.update(squares, state.gradient_square_ema, count)
        raw = map_updates(lambda m, n: m / (jnp.sqrt(n) + eps), mean, square)
        raw, _ = clip.update(raw, optax.EmptyState(), None)
        smooth, update_state = self.update_.update(raw, state.update_ema, count)
        return raw, smooth, AdastarState(count, mean_state, square_state, update_state)


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
