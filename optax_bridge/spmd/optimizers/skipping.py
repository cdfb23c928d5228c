"""Steps that are left out where the gradients are not finite or far too large."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr, maybe_instantiate
from optax_bridge.spmd.optimizers.data import (
    OptStateSpec,
    PartitionedGradientTransformation,
    add_summary,
    count_spec,
    global_norm,
    instantiate_transformation,
    map_updates,
    opt_param_values,
)
from optax_bridge.spmd.optimizers.from_optax import Run, around
from optax_bridge.spmd.optimizers.schedules import decay_bias_correction

# `thresholds(*, count, mean, stddev) -> {name: norm from which on a step is left out}`.
DropNormThresholdFn = Callable[..., dict[str, jax.Array]]
_ANY_NORM = 1e10


class SkipClipState(NamedTuple):
    """State of `skip_and_clip_by_global_norm`.

    Attributes:
      count: steps that were taken, int32 scalar; like all below but `nonvalid_count` and
        `inner_state` None unless `drop_norm` is a function.
      nonvalid_count: steps that were left out, int32 scalar.
      grad_norm_ema: average of the norms, float32 scalar, 1 at the start.
      grad_norm_square_ema: average of their squares, likewise.
      inner_state: the inner transformation's.
      drop_stats: for each threshold how many norms reached it, int32 scalars.
    """

    count: Leaf
    nonvalid_count: Leaf
    grad_norm_ema: Leaf
    grad_norm_square_ema: Leaf
    inner_state: OptState
    drop_stats: dict[str, Leaf] | None


def drop_norm_by_grad_norm_ema(multipliers: Sequence[float] = (20, 40, 100)) -> DropNormThresholdFn:
    """Thresholds that are multiples of the average norm.

    Args:
      multipliers: the multiples; the threshold of 20 is called "20x_mean".
    """

    def thresholds(*, count: Leaf, mean: Leaf, stddev: Leaf) -> dict[str, jax.Array]:
        del count, stddev
        return {f"{multiplier}x_mean": mean * multiplier for multiplier in multipliers}

    return thresholds


def drop_norm_by_grad_norm_stddev(
    *, min_count: int = 500, multipliers: Sequence[float] = (20, 40, 100)
) -> DropNormThresholdFn:
    """Thresholds that are multiples of the norms' standard deviation above their average.

    Args:
      min_count: no step is left out before so many were taken.
      multipliers: the multiples; the threshold of 20 is called "20x_stddev".
    """

    def thresholds(*, count: Leaf, mean: Leaf, stddev: Leaf) -> dict[str, jax.Array]:
        return {
            f"{multiplier}x_stddev": jnp.where(
                count < min_count, _ANY_NORM, mean + stddev * multiplier
            )
            for multiplier in multipliers
        }

    return thresholds


class _Verdict(NamedTuple):
    """Of one step: whether it is taken, and the statistics after it."""

    is_valid: jax.Array
    statistics: dict[str, PyTree]


class _Norms:
    """The part of the state that is about norms, and what it says of a step.

    Args:
      drop_norm: see `skip_and_clip_by_global_norm`.
      decay: likewise, `grad_norm_ema_decay`.
    """

    def __init__(self, drop_norm: float | DropNormThresholdFn | None, decay: float | None):
        self._drop_norm = drop_norm
        self._decay = None if decay is None else decay_bias_correction(decay)

    def init(self) -> dict[str, PyTree]:
        """Fields of the state at the start."""
        fields: dict[str, PyTree] = {"nonvalid_count": jnp.zeros([], jnp.int32)}
        if not callable(self._drop_norm):
            rest = ("count", "grad_norm_ema", "grad_norm_square_ema", "drop_stats")
            return fields | dict.fromkeys(rest)
        one = jnp.ones([], jnp.float32)
        names = self._drop_norm(count=jnp.zeros([], jnp.int32), mean=one, stddev=one)
        return fields | {
            "count": jnp.zeros([], jnp.int32),
            "grad_norm_ema": one,
            "grad_norm_square_ema": one,
            "drop_stats": {name: jnp.zeros([], jnp.int32) for name in names},
        }

    def judge(self, norm: jax.Array, is_finite: jax.Array, state: OptState) -> _Verdict:
        """Returns whether a step with this norm is taken, and the fields of the state after it."""
        is_valid, drop_stats = is_finite, None
        fields: dict[str, PyTree] = {"count": None, "grad_norm_ema": None}
        fields |= {"grad_norm_square_ema": None, "drop_stats": None}
        if callable(self._drop_norm) and self._decay is not None:
            mean, square = state.grad_norm_ema, state.grad_norm_square_ema
            stddev = jnp.sqrt(jnp.maximum(square - mean**2, 0.0))
            thresholds = self._drop_norm(count=state.count, mean=mean, stddev=stddev)
            below = {name: norm < threshold for name, threshold in thresholds.items()}
            for is_below in below.values():
                is_valid = is_valid & is_below
            drop_stats = {
                name: jnp.where(is_below, state.drop_stats[name], state.drop_stats[name] + 1)
                for name, is_below in below.items()
            }
            count = optax.safe_increment(state.count)
            decay = self._decay(count)
            fields = {
                "count": jnp.where(is_valid, count, state.count),
                "grad_norm_ema": _update_average(is_valid, decay, mean, norm),
                "grad_norm_square_ema": _update_average(is_valid, decay, square, norm**2),
                "drop_stats": drop_stats,
            }
            add_summary("gradient_norm_ema", fields["grad_norm_ema"])
            add_summary("gradient_norm_std_ema", stddev)
            add_summary("count", fields["count"])
            for name, number in drop_stats.items():
                add_summary(f"count_exceeds_{name}", number)
        elif isinstance(self._drop_norm, int | float):
            is_valid = is_valid & (norm < self._drop_norm)
        left_out = optax.safe_increment(state.nonvalid_count)
        fields["nonvalid_count"] = jnp.where(is_valid, state.nonvalid_count, left_out)
        add_summary("nonvalid_count", fields["nonvalid_count"])
        return _Verdict(is_valid, fields)


def skip_and_clip_by_global_norm(
    inner: ConfigOr[PartitionedGradientTransformation],
    *,
    drop_norm: float | ConfigOr[DropNormThresholdFn] | None = None,
    max_norm: float | None = None,
    grad_norm_ema_decay: float | None = None,
    eps: float = 1e-8,
) -> PartitionedGradientTransformation:
    """Leaves steps out whose gradients are not finite or too large, and clips the others.

    At a step that is left out, nothing moves, the inner state neither.

    Adds the summaries `gradient_norm`, `nonvalid_count`, with `max_norm` `gradient_scale`, and with
    a function `gradient_norm_ema`, `gradient_norm_std_ema`, `count`, `count_exceeds_<name>`.

    Args:
      inner: what takes the steps, after clipping.
      drop_norm: the norm of all gradients together from which on a step is left out; or a function
        `(*, count, mean, stddev) -> {name: norm}` of the norms so far, or a config of one, of whose
        norms each leaves a step out.
      max_norm: the norm that gradients are clipped to, None for any.
      grad_norm_ema_decay: decay of the averages that the function is given.
      eps: added to the norm.

    Raises:
      ValueError: `drop_norm` is a function and there is no `grad_norm_ema_decay`.
    """
    tx = instantiate_transformation(inner, "skip_and_clip_by_global_norm: inner")
    drop_norm = maybe_instantiate(drop_norm)
    if callable(drop_norm) and grad_norm_ema_decay is None:
        raise ValueError(
            "skip_and_clip_by_global_norm: drop_norm is a function of the average norm, which "
            "needs grad_norm_ema_decay: 0.99 say"
        )
    norms = _Norms(drop_norm, grad_norm_ema_decay)

    def init(params: Params) -> SkipClipState:
        return SkipClipState(inner_state=tx.init(params), **norms.init())

    def partition(specs: PyTree) -> SkipClipState:
        fields = jax.tree.map(_scalar_spec, norms.init())
        return SkipClipState(inner_state=tx.partition(specs), **fields)

    def through(run: Run, gives_values: bool) -> Run:
        def run_if_valid(
            updates: Updates, state: OptState, params: Params
        ) -> tuple[PyTree, OptState]:
            updates, verdict = _clip_and_judge(norms, max_norm, eps, updates, state)
            new, inner_state = run(updates, state.inner_state, params)
            unmoved = opt_param_values(params) if gives_values else map_updates(jnp.zeros_like, new)
            # A conditional, as what is picked element by element is fused with the step and rounded
            # otherwise.
            new, inner_state = jax.lax.cond(
                verdict.is_valid, lambda: (new, inner_state), lambda: (unmoved, state.inner_state)
            )
            return new, SkipClipState(inner_state=inner_state, **verdict.statistics)

        return run_if_valid

    return around(tx, init, partition, through)


def _clip_and_judge(
    norms: _Norms, max_norm: float | None, eps: float, updates: Updates, state: OptState
) -> tuple[Updates, _Verdict]:
    norm = global_norm(updates)
    add_summary("gradient_norm", norm)
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(updates)]
    verdict = norms.judge(norm, jnp.all(jnp.asarray(finite)), state)
    if max_norm is not None:
        scale = jnp.minimum(1.0, max_norm / (norm + eps))
        add_summary("gradient_scale", scale)
        updates = map_updates(lambda u: u * jnp.asarray(scale, u.dtype), updates)
    return updates, verdict


def _update_average(
    is_valid: jax.Array, decay: ArrayLike, average: jax.Array, value: jax.Array
) -> jax.Array:
    return jnp.where(is_valid, decay * average + (1.0 - decay) * value, average)


def _scalar_spec(leaf: jax.Array) -> OptStateSpec:
    if leaf.dtype == jnp.int32:
        return count_spec()
    return OptStateSpec(shape=[], dtype=leaf.dtype, mesh_axes=PartitionSpec())  # type: ignore[arg-type]
