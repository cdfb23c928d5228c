"""Second moments kept as means over rows and columns, of the axes that a parameter names."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr, config_for_function
from optax_bridge.spmd.layer import FactorizationSpec, ParameterSpec
from optax_bridge.spmd.optimizers.data import (
    OptParam,
    OptStateSpec,
    PartitionedGradientTransformation,
    copy_partition,
    count_spec,
    stand_in,
    stand_in_spec,
)
from optax_bridge.spmd.optimizers.schedules import ScheduleFn, adafactor_decay_rate, as_schedule_fn
from optax_bridge.spmd.trees import is_none

T = TypeVar("T")


class _Axes(NamedTuple):
    row: int
    col: int


class _Leaf(NamedTuple):
    """The statistics and the update of one parameter: arrays, or specs of them."""

    update: Leaf
    v_row: Leaf
    v_col: Leaf
    v: Leaf


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

    def axes_of(shape: Sequence[int], spec: FactorizationSpec | None) -> _Axes | None:
        return _row_and_col(shape, spec) if factored and spec is not None else None

    def init_leaf(param: OptParam) -> _Leaf:
        axes = axes_of(param.shape, param.factorization_spec)
        if axes is None:
            return _Leaf(None, stand_in(), stand_in(), jnp.zeros(param.shape, jnp.float32))
        v_row, v_col = (jnp.zeros(_without(param.shape, a), jnp.float32) for a in axes)
        return _Leaf(None, v_row, v_col, stand_in())

    def partition_leaf(spec: ParameterSpec) -> _Leaf:
        axes = axes_of(spec.shape, spec.factorization)
        if axes is None:
            return _Leaf(None, stand_in_spec(), stand_in_spec(), copy_partition(spec))
        v_row, v_col = (_reduced_spec(spec, axis) for axis in axes)
        return _Leaf(None, v_row, v_col, stand_in_spec())

    def init(params: Params) -> OptState:
        return _state(jnp.zeros([], jnp.int32), jax.tree.map(init_leaf, params))

    def partition(specs: PyTree) -> PyTree:
        return _state(count_spec(), jax.tree.map(partition_leaf, specs))

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        if params is None:
            raise ValueError("scale_by_factored_rms: update(updates, state, params) needs params")
        count = optax.safe_increment(state.count)
        decay = schedule(count)

        def update_leaf(g: Leaf, v_row: Leaf, v_col: Leaf, v: Leaf, param: OptParam) -> _Leaf:
            if g is None:
                return _Leaf(None, v_row, v_col, v)
            axes = axes_of(param.shape, param.factorization_spec)
            return _scale_leaf(_Leaf(g, v_row, v_col, v), axes, decay, epsilon)

        leaves = jax.tree.map(update_leaf, updates, *state[1:], params, is_leaf=is_none)
        return _field(leaves, "update"), _state(count, leaves)

    return PartitionedGradientTransformation(init, update, partition)


def _scale_leaf(leaf: _Leaf, axes: _Axes | None, decay: Leaf, epsilon: float) -> _Leaf:
    """Returns the scaled gradient of one parameter, and its new statistics."""
    g, v_row, v_col, v = leaf
    squared = jnp.square(g.astype(jnp.float32)) + epsilon
    if axes is None:
        v = decay * v + (1.0 - decay) * squared
        return _Leaf(g * v**-0.5, v_row, v_col, v)
    row, col = axes
    v_row = decay * v_row + (1.0 - decay) * jnp.mean(squared, axis=row)
    v_col = decay * v_col + (1.0 - decay) * jnp.mean(squared, axis=col)
    col_in_v_row = col - 1 if col > row else col
    row_factor = (v_row / jnp.mean(v_row, axis=col_in_v_row, keepdims=True)) ** -0.5
    scaled = g * jnp.expand_dims(row_factor, row) * jnp.expand_dims(v_col**-0.5, col)
    return _Leaf(scaled, v_row, v_col, v)


def _row_and_col(shape: Sequence[int], spec: FactorizationSpec) -> _Axes | None:
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
    return _Axes(rows[0], cols[0])


def _without(items: Iterable[T], axis: int) -> list[T]:
    return [item for index, item in enumerate(items) if index != axis]


def _reduced_spec(spec: ParameterSpec, axis: int) -> OptStateSpec:
    mesh_axes = spec.mesh_axes
    if mesh_axes is not None:
        all_axes = [*mesh_axes, *[None] * (len(spec.shape) - len(mesh_axes))]
        mesh_axes = PartitionSpec(*_without(all_axes, axis))
    return OptStateSpec(shape=_without(spec.shape, axis), dtype=spec.dtype, mesh_axes=mesh_axes)


def _state(count: Leaf, leaves: PyTree) -> OptState:
    return optax.FactoredState(
        count, _field(leaves, "v_row"), _field(leaves, "v_col"), _field(leaves, "v")
    )


def _field(leaves: PyTree, name: str) -> PyTree:
    return jax.tree.map(
        lambda leaf: getattr(leaf, name), leaves, is_leaf=lambda node: isinstance(node, _Leaf)
    )
