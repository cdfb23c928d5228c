"""Moving averages of updates and of parameters, and second moments by rows and columns."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr, config_for_function
from optax_bridge.spmd.layer import FactorizationSpec, ParameterSpec
from optax_bridge.spmd.optimizers.data import (
    OptParam,
    OptStateSpec,
    PartitionedGradientTransformation,
    copy_partition,
    count_spec,
    map_updates,
    opt_param_values,
    stand_in,
    stand_in_spec,
    without_state,
)
from optax_bridge.spmd.optimizers.schedules import (
    Schedule,
    ScheduleFn,
    adafactor_decay_rate,
    as_schedule_fn,
)
from optax_bridge.spmd.trees import TensorSpec, is_none

_ACCUMULATORS = (jnp.float32, jnp.bfloat16, jnp.int16, jnp.int8)


class ParamEmaState(NamedTuple):
    """State of `param_ema`.

    Attributes:
      count: steps taken, int32 scalar.
      ema: the average, a tree like the parameters.
    """

    count: Leaf
    ema: Params


class EmaState(NamedTuple):
    """State of `ema`.

    Attributes:
      count: steps taken, int32 scalar.
      ema: the average, a tree like the parameters, in the accumulator's dtype.
      scale: what an average of integers is times, float32, a tree like the parameters; each of the
        parameter's shape without its first axis, or of shape (1,) where it is not used.
    """

    count: Leaf
    ema: PyTree
    scale: PyTree


def param_ema(*, decay: Schedule | None = None) -> PartitionedGradientTransformation:
    """A moving average of parameters, from 0; updates pass through.

    Args:
      decay: a schedule, `ema_schedule()` say; None: no average is kept.

    Returns:
      The transformation; `update` raises ValueError without parameters.
    """
    if decay is None:
        return without_state(lambda updates, params: updates)
    schedule = as_schedule_fn(decay)

    def init(params: Params) -> ParamEmaState:
        zeros = jax.tree.map(jnp.zeros_like, opt_param_values(params))
        return ParamEmaState(count=jnp.zeros([], jnp.int32), ema=zeros)

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        if params is None:
            raise ValueError("param_ema: update(updates, state, params) needs params")
        count = optax.safe_increment(state.count)
        d = schedule(count)

        def average_of(value: jax.Array, ema: jax.Array) -> jax.Array:
            if not jnp.issubdtype(value.dtype, jnp.floating):
                return value
            return ((1.0 - d) * value + d * ema).astype(ema.dtype)

        return updates, ParamEmaState(
            count=count, ema=jax.tree.map(average_of, opt_param_values(params), state.ema)
        )

    def partition(specs: PyTree) -> ParamEmaState:
        return ParamEmaState(count=count_spec(), ema=copy_partition(specs))

    return PartitionedGradientTransformation(init, update, partition)


def ema(
    decay: Schedule, debias: bool = True, accumulator_dtype: DTypeLike | None = jnp.float32
) -> PartitionedGradientTransformation:
    """The moving average of updates, in place of them.

    An integer accumulator keeps `round(average / scale)`, `scale` being the largest magnitude along
    the first axis over the largest integer. The returned updates are not quantised. Scalars keep
    their own dtype.

    Args:
      decay: a number or a schedule.
      debias: True to divide the returned average by `1 - decay ** count`.
      accumulator_dtype: float32, bfloat16, int16, int8, or None for the parameter's own.

    Raises:
      ValueError: another dtype.
    """
    if accumulator_dtype is not None and jnp.dtype(accumulator_dtype) not in map(
        jnp.dtype, _ACCUMULATORS
    ):
        names = ", ".join(jnp.dtype(dtype).name for dtype in _ACCUMULATORS)
        raise ValueError(f"ema: accumulator_dtype must be {names} or None: {accumulator_dtype}")

    def dtype_of(param: Leaf) -> jnp.dtype:
        keeps_dtype = accumulator_dtype is None or not len(param.shape)
        return jnp.dtype(param.dtype if keeps_dtype else accumulator_dtype)

    def is_quantised(param: Leaf) -> bool:
        return bool(len(param.shape)) and jnp.issubdtype(dtype_of(param), jnp.integer)

    def first_scale(param: OptParam) -> jax.Array:
        return jnp.zeros(param.shape[1:], jnp.float32) if is_quantised(param) else stand_in()

    def init(params: Params) -> EmaState:
        return EmaState(
            count=jnp.zeros([], jnp.int32),
            ema=jax.tree.map(lambda p: jnp.zeros(p.shape, dtype_of(p)), params),
            scale=jax.tree.map(first_scale, params),
        )

    def partition(specs: PyTree) -> EmaState:
        return EmaState(
            count=count_spec(),
            ema=jax.tree.map(lambda s: OptStateSpec(s.shape, dtype_of(s), s.mesh_axes), specs),
            scale=jax.tree.map(
                lambda s: _scale_spec(s) if is_quantised(s) else stand_in_spec(), specs
            ),
        )

    return PartitionedGradientTransformation(init, _update_by_ema(decay, debias), partition)


def _update_by_ema(decay: Schedule, debias: bool) -> Callable[..., tuple[Updates, OptState]]:
    schedule = as_schedule_fn(decay)

    def average_of(d: Leaf, update: jax.Array, stored: jax.Array, scale: jax.Array) -> jax.Array:
        is_integer = jnp.issubdtype(stored.dtype, jnp.integer)
        old = stored.astype(jnp.float32) * scale if is_integer else stored
        return (1.0 - d) * update + d * old

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        del params
        count = optax.safe_increment(state.count)
        d = schedule(count)
        averages = map_updates(functools.partial(average_of, d), updates, state.ema, state.scale)
        scales = jax.tree.map(_stored_scale, averages, state.ema, state.scale, is_leaf=is_none)
        new = jax.tree.map(_store, averages, state.ema, scales, is_leaf=is_none)
        if debias:
            correction = 1.0 - d**count
            averages = map_updates(lambda v: v / jnp.asarray(correction, v.dtype), averages)
        return averages, EmaState(count=count, ema=new, scale=scales)

    return update


def _scale_spec(spec: TensorSpec) -> OptStateSpec:
    axes = None if spec.mesh_axes is None else PartitionSpec(*tuple(spec.mesh_axes)[1:])
    return OptStateSpec(shape=spec.shape[1:], dtype=jnp.float32, mesh_axes=axes)


def _stored_scale(average: jax.Array | None, stored: jax.Array, scale: jax.Array) -> jax.Array:
    if average is None or not jnp.issubdtype(stored.dtype, jnp.integer):
        return scale
    return jnp.max(jnp.abs(average), axis=0) / jnp.iinfo(stored.dtype).max


def _store(average: jax.Array | None, stored: jax.Array, scale: jax.Array) -> jax.Array:
    if average is None:
        return stored
    if jnp.issubdtype(stored.dtype, jnp.integer):
        average = jnp.round(average / jnp.where(scale == 0, 1.0, scale))
    return average.astype(stored.dtype)


T = TypeVar("T")


class _Moments(NamedTuple):
    """The statistics of one parameter, and its scaled gradient: arrays, or specs of them."""

    v_row: Leaf
    v_col: Leaf
    v: Leaf
    update: Leaf = None


def scale_by_factored_rms(
    factored: bool = True,
    decay_rate: float | ConfigOr[ScheduleFn] = config_for_function(adafactor_decay_rate),  # noqa: B008
    epsilon: float = 1e-30,
) -> PartitionedGradientTransformation:
    """Adafactor's scaling (Shazeer and Stern 2018), factored by `FactorizationSpec`.

    Of a parameter with one "row" and one "col" axis, `v_row` is the mean of the squared gradient
    over the row axis and `v_col` that over the col axis. `optax.scale_by_factored_rms` takes the
    longest axis as the row and the next as the col.

    Args:
      factored: False: no parameter is factored.
      decay_rate: a schedule.
      epsilon: added to the squared gradient.

    Returns:
      The transformation; its state is `optax.FactoredState`, in float32. `init` raises ValueError
      for other axes than one row and one col, or none of both.
    """
    schedule = as_schedule_fn(decay_rate)

    def axes_of(shape: Sequence[int], spec: FactorizationSpec | None) -> tuple[int, int] | None:
        return _row_and_col(shape, spec) if factored and spec is not None else None

    def init_leaf(param: OptParam) -> _Moments:
        axes = axes_of(param.shape, param.factorization_spec)
        if axes is None:
            return _Moments(stand_in(), stand_in(), jnp.zeros(param.shape, jnp.float32))
        v_row, v_col = (jnp.zeros(_without(param.shape, a), jnp.float32) for a in axes)
        return _Moments(v_row, v_col, stand_in())

    def partition_leaf(spec: ParameterSpec) -> _Moments:
        axes = axes_of(spec.shape, spec.factorization)
        if axes is None:
            return _Moments(stand_in_spec(), stand_in_spec(), copy_partition(spec))
        v_row, v_col = (_reduced_spec(spec, axis) for axis in axes)
        return _Moments(v_row, v_col, stand_in_spec())

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        if params is None:
            raise ValueError("scale_by_factored_rms: update(updates, state, params) needs params")
        count = optax.safe_increment(state.count)
        decay = schedule(count)

        def update_leaf(g: Leaf, v_row: Leaf, v_col: Leaf, v: Leaf, param: OptParam) -> _Moments:
            moments = _Moments(v_row, v_col, v)
            if g is None:
                return moments
            axes = axes_of(param.shape, param.factorization_spec)
            return _scale_by_moments(g, moments, axes, decay, epsilon)

        moments = jax.tree.map(update_leaf, updates, *state[1:], params, is_leaf=is_none)
        return _field(moments, "update"), _state(count, moments)

    return PartitionedGradientTransformation(
        lambda params: _state(jnp.zeros([], jnp.int32), jax.tree.map(init_leaf, params)),
        update,
        lambda specs: _state(count_spec(), jax.tree.map(partition_leaf, specs)),
    )


def _scale_by_moments(
    g: jax.Array, moments: _Moments, axes: tuple[int, int] | None, decay: Leaf, epsilon: float
) -> _Moments:
    """Returns the new statistics of one parameter, and its scaled gradient."""
    v_row, v_col, v, _ = moments
    squared = jnp.square(g.astype(jnp.float32)) + epsilon
    if axes is None:
        v = decay * v + (1.0 - decay) * squared
        return _Moments(v_row, v_col, v, g * v**-0.5)
    row, col = axes
    v_row = decay * v_row + (1.0 - decay) * jnp.mean(squared, axis=row)
    v_col = decay * v_col + (1.0 - decay) * jnp.mean(squared, axis=col)
    col_in_v_row = col - 1 if col > row else col
    row_factor = (v_row / jnp.mean(v_row, axis=col_in_v_row, keepdims=True)) ** -0.5
    scaled = g * jnp.expand_dims(row_factor, row) * jnp.expand_dims(v_col**-0.5, col)
    return _Moments(v_row, v_col, v, scaled)


def _row_and_col(shape: Sequence[int], spec: FactorizationSpec) -> tuple[int, int] | None:
    """The axes to reduce over; None if the parameter names none."""
    axes = tuple(spec.axes)
    rows = [index for index, role in enumerate(axes) if role == "row"]
    cols = [index for index, role in enumerate(axes) if role == "col"]
    if not rows and not cols:
        return None
    if len(axes) != len(shape) or len(rows) != 1 or len(cols) != 1:
        raise ValueError(
            f"FactorizationSpec: expected one 'row', one 'col' and None for all other axes of "
            f"shape {tuple(shape)}, or None throughout; found {axes}"
        )
    return rows[0], cols[0]


def _without(items: Iterable[T], axis: int) -> list[T]:
    return [item for index, item in enumerate(items) if index != axis]


def _reduced_spec(spec: ParameterSpec, axis: int) -> OptStateSpec:
    mesh_axes = spec.mesh_axes
    if mesh_axes is not None:
        all_axes = [*mesh_axes, *[None] * (len(spec.shape) - len(mesh_axes))]
        mesh_axes = PartitionSpec(*_without(all_axes, axis))
    return OptStateSpec(shape=_without(spec.shape, axis), dtype=spec.dtype, mesh_axes=mesh_axes)


def _state(count: Leaf, moments: PyTree) -> OptState:
    return optax.FactoredState(
        count, _field(moments, "v_row"), _field(moments, "v_col"), _field(moments, "v")
    )


def _field(moments: PyTree, name: str) -> PyTree:
    return jax.tree.map(
        lambda m: getattr(m, name), moments, is_leaf=lambda node: isinstance(node, _Moments)
    )
