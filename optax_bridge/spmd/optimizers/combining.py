"""Transformations made of transformations: in a row, in another memory, left out at some steps."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr, maybe_instantiate
from optax_bridge.spmd.optimizers.data import (
    OptStateSpec,
    PartitionedGradientTransformation,
    add_summary,
    copy_partition,
    count_spec,
    map_updates,
    opt_param_values,
)
from optax_bridge.spmd.optimizers.from_optax import Run, Transformation, as_partitioned, wrap
from optax_bridge.spmd.optimizers.schedules import decay_bias_correction
from optax_bridge.spmd.trees import tree_paths

_SPACES = {"device": jax.memory.Space.Device, "pinned_host": jax.memory.Space.Host}


def chain(
    *args: Transformation,
) -> PartitionedGradientTransformation:
    """Applies transformations one after another.

    Args:
      *args: transformations, or configs of them.

    Returns:
      The transformation; its state is the tuple of theirs. It takes exact steps if the last one
      does, as when gradients are clipped before an optimizer of `optax_bridge`.

    Raises:
      ValueError: an argument is something else.
    """
    parts = [as_partitioned(arg, f"chain: argument {index}") for index, arg in enumerate(args)]

    def through(run_last: Run, gives_values: bool) -> Run:
        del gives_values

        def run(updates: Updates, state: OptState, params: Params) -> tuple[PyTree, OptState]:
            new_state = []
            for apply, part_state in zip(
                [*(part.update for part in parts[:-1]), run_last], state, strict=True
            ):
                updates, part_state = apply(updates, part_state, params)
                new_state.append(part_state)
            return updates, tuple(new_state)

        return run

    def init(params: Params) -> OptState:
        return tuple(part.init(params) for part in parts)

    def partition(specs: PyTree) -> PyTree:
        return tuple(part.partition(specs) for part in parts)

    if not parts:
        return PartitionedGradientTransformation(init, lambda u, state, _: (u, state), partition)
    return wrap(parts[-1], init, partition, through)


def named_chain(
    **kwargs: Transformation,
) -> PartitionedGradientTransformation:
    """Applies named transformations one after another.

    Args:
      **kwargs: name -> transformation, or a config of one.

    Returns:
      The transformation; its state is a dict with theirs.

    Raises:
      ValueError: an argument is something else.
    """
    parts = {name: as_partitioned(arg, f"named_chain: {name}") for name, arg in kwargs.items()}

    chained = chain(*parts.values())

    def by_name(state: OptState) -> OptState:
        return dict(zip(parts, state, strict=True))

    def through(run: Run, gives_values: bool) -> Run:
        del gives_values

        def run_named(updates: Updates, state: OptState, params: Params) -> tuple[PyTree, OptState]:
            updates, new_state = run(updates, tuple(state[name] for name in parts), params)
            return updates, by_name(new_state)

        return run_named

    return wrap(
        chained,
        lambda params: by_name(chained.init(params)),
        lambda specs: by_name(chained.partition(specs)),
        through,
    )


def offload_optimizer(
    optimizer: Transformation,
    *,
    pattern: str | re.Pattern[str] = ".*",
    offload_src: str = "device",
    offload_dst: str = "pinned_host",
) -> PartitionedGradientTransformation:
    """Keeps an optimizer's state in another memory between steps.

    A step fetches the state, and sends it back. A trainer's state lies there from the first step
    on, and a checkpoint is restored to there.

    Args:
      optimizer: the optimizer.
      pattern: a regular expression for the whole paths of the states to offload.
      offload_src: the memory in which steps are computed.
      offload_dst: the memory between them.

    Raises:
      ValueError: an argument is not the name of a memory, or the devices have no such memory.
    """
    where = "offload_optimizer"
    if optimizer is None or pattern is None:
        raise ValueError(f"{where}: optimizer={optimizer!r}, pattern={pattern!r}: both are needed")
    for name, kind in (("offload_src", offload_src), ("offload_dst", offload_dst)):
        _check_memory(f"{where}: {name}", kind)
    tx = as_partitioned(optimizer, f"{where}: optimizer")

    def move(state: OptState, kind: str) -> OptState:
        def put(path: str, leaf: jax.Array) -> jax.Array:
            return jax.device_put(leaf, _SPACES[kind]) if re.fullmatch(pattern, path) else leaf

        return jax.tree.map(put, tree_paths(state), state)

    def through(run: Run, gives_values: bool) -> Run:
        del gives_values

        def run_here(updates: Updates, state: OptState, params: Params) -> tuple[PyTree, OptState]:
            new, state = run(updates, move(state, offload_src), params)
            return new, move(state, offload_dst)

        return run_here

    def partition(specs: PyTree) -> PyTree:
        return copy_partition(tx.partition(specs), pattern=pattern, memory_kind=offload_dst)

    return wrap(tx, tx.init, partition, through)


def _check_memory(where: str, kind: str | None) -> None:
    """Raises ValueError unless this process's devices have such a memory."""
    if kind not in _SPACES:
        raise ValueError(f"{where}: expected one of {list(_SPACES)}, found {kind!r}")
    device = jax.local_devices()[0]
    kinds = sorted(memory.kind for memory in device.addressable_memories())
    if kind not in kinds:
        raise ValueError(
            f"{where}: {device.platform} devices ({device.device_kind}) have no memory {kind!r}, "
            f"only {kinds}. Leave offload_optimizer out here."
        )


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


def skip_and_clip_by_global_norm(
    inner: Transformation,
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
      inner: the transformation that takes the steps, after clipping.
      drop_norm: the norm of all gradients together from which on a step is left out; or a function
        `(*, count, mean, stddev) -> {name: norm}` of the norms so far, or a config of one, of whose
        norms each leaves a step out.
      max_norm: the norm that gradients are clipped to, None for any.
      grad_norm_ema_decay: decay of the averages that the function is given.
      eps: added to the norm.

    Raises:
      ValueError: `drop_norm` is a function and there is no `grad_norm_ema_decay`.
    """
    tx = as_partitioned(inner, "skip_and_clip_by_global_norm: inner")
    drop_norm = maybe_instantiate(drop_norm)
    if callable(drop_norm) and grad_norm_ema_decay is None:
        raise ValueError(
            "skip_and_clip_by_global_norm: drop_norm is a function of the average norm, which "
            "needs grad_norm_ema_decay, e.g. 0.99"
        )

    def partition(specs: PyTree) -> SkipClipState:
        state = jax.tree.map(_scalar_spec, _first_state(drop_norm, None))
        return state._replace(inner_state=tx.partition(specs))

    def through(run: Run, gives_values: bool) -> Run:
        def run_if_valid(
            updates: Updates, state: SkipClipState, params: Params
        ) -> tuple[PyTree, OptState]:
            norm = optax.tree.norm(updates)
            add_summary("gradient_norm", norm)
            is_valid, new_state = _judge(updates, norm, state, drop_norm, grad_norm_ema_decay)
            if max_norm is not None:
                updates = _clip(updates, norm, max_norm, eps)
            new, inner_state = run(updates, state.inner_state, params)
            unmoved = opt_param_values(params) if gives_values else map_updates(jnp.zeros_like, new)
            # A conditional: elements that are picked one by one are fused with the step and rounded
            # otherwise.
            new, inner_state = jax.lax.cond(
                is_valid, lambda: (new, inner_state), lambda: (unmoved, state.inner_state)
            )
            return new, new_state._replace(inner_state=inner_state)

        return run_if_valid

    return wrap(tx, lambda params: _first_state(drop_norm, tx.init(params)), partition, through)


def _first_state(
    drop_norm: float | DropNormThresholdFn | None, inner_state: OptState
) -> SkipClipState:
    zero, one = jnp.zeros([], jnp.int32), jnp.ones([], jnp.float32)
    if not callable(drop_norm):
        return SkipClipState(None, zero, None, None, inner_state, None)
    names = drop_norm(count=zero, mean=one, stddev=one)
    return SkipClipState(zero, zero, one, one, inner_state, dict.fromkeys(names, zero))


def _judge(
    updates: Updates,
    norm: jax.Array,
    state: SkipClipState,
    drop_norm: float | DropNormThresholdFn | None,
    decay: float | None,
) -> tuple[jax.Array, SkipClipState]:
    """Returns whether a step is taken, and the state after it but the inner one."""
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(updates)]
    is_valid = jnp.all(jnp.asarray(finite))
    if callable(drop_norm) and decay is not None:
        mean, square = state.grad_norm_ema, state.grad_norm_square_ema
        stddev = jnp.sqrt(jnp.maximum(square - mean**2, 0.0))
        thresholds = drop_norm(count=state.count, mean=mean, stddev=stddev)
        below = {name: norm < threshold for name, threshold in thresholds.items()}
        for is_below in below.values():
            is_valid = is_valid & is_below
        numbers: dict[str, Leaf] = state.drop_stats or {}
        count = optax.safe_increment(state.count)
        d = decay_bias_correction(decay)(count)
        state = state._replace(
            count=jnp.where(is_valid, count, state.count),
            grad_norm_ema=jnp.where(is_valid, d * mean + (1.0 - d) * norm, mean),
            grad_norm_square_ema=jnp.where(is_valid, d * square + (1.0 - d) * norm**2, square),
            drop_stats={
                name: jnp.where(is_below, numbers[name], numbers[name] + 1)
                for name, is_below in below.items()
            },
        )
        add_summary("gradient_norm_ema", state.grad_norm_ema)
        add_summary("gradient_norm_std_ema", stddev)
        add_summary("count", state.count)
        for name, number in (state.drop_stats or {}).items():
            add_summary(f"count_exceeds_{name}", number)
    elif isinstance(drop_norm, int | float):
        is_valid = is_valid & (norm < drop_norm)
    left_out = optax.safe_increment(state.nonvalid_count)
    state = state._replace(nonvalid_count=jnp.where(is_valid, state.nonvalid_count, left_out))
    add_summary("nonvalid_count", state.nonvalid_count)
    return is_valid, state


def _clip(updates: Updates, norm: jax.Array, max_norm: float, eps: float) -> Updates:
    scale = jnp.minimum(1.0, max_norm / (norm + eps))
    add_summary("gradient_scale", scale)
    return map_updates(lambda u: u * jnp.asarray(scale, u.dtype), updates)


def _scalar_spec(leaf: jax.Array) -> OptStateSpec:
    if leaf.dtype == jnp.int32:
        return count_spec()
    return OptStateSpec(shape=[], dtype=leaf.dtype, mesh_axes=PartitionSpec())  # type: ignore[arg-type]
