"""Moving averages: of updates, quantised if wanted, and of parameters."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates
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
from optax_bridge.spmd.optimizers.schedules import Schedule, as_schedule_fn
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
    the first axis over the largest integer. What is returned is not quantised. Scalars keep
    their own dtype.

    Args:
      decay: a number or a schedule.
      debias: what is returned is over `1 - decay ** count`.
      accumulator_dtype: float32, bfloat16, int16, int8, or None for the parameter's own.

    Raises:
      ValueError: another dtype.
    """
    if accumulator_dtype is not None and jnp.dtype(accumulator_dtype) not in map(
        jnp.dtype, _ACCUMULATORS
    ):
        names = ", ".join(jnp.dtype(dtype).name for dtype in _ACCUMULATORS)
        raise ValueError(f"ema: accumulator_dtype must be {names} or None: {accumulator_dtype}")
    schedule = as_schedule_fn(decay)

    accumulator = _Accumulator(accumulator_dtype)

    def init(params: Params) -> EmaState:
        return EmaState(
            count=jnp.zeros([], jnp.int32),
            ema=jax.tree.map(lambda p: jnp.zeros(p.shape, accumulator.dtype_of(p)), params),
            scale=jax.tree.map(accumulator.scale, params),
        )

    def partition(specs: PyTree) -> EmaState:
        return EmaState(
            count=count_spec(),
            ema=jax.tree.map(accumulator.average_spec, specs),
            scale=jax.tree.map(accumulator.scale_spec, specs),
        )

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        del params
        count = optax.safe_increment(state.count)
        d = schedule(count)

        def average_of(update: jax.Array, stored: jax.Array, scale: jax.Array) -> jax.Array:
            is_integer = jnp.issubdtype(stored.dtype, jnp.integer)
            old = stored.astype(jnp.float32) * scale if is_integer else stored
            return (1.0 - d) * update + d * old

        averages = map_updates(average_of, updates, state.ema, state.scale)
        scales = jax.tree.map(_stored_scale, averages, state.ema, state.scale, is_leaf=is_none)
        new = jax.tree.map(_store, averages, state.ema, scales, is_leaf=is_none)
        if debias:
            correction = 1.0 - d**count
            averages = map_updates(lambda v: v / jnp.asarray(correction, v.dtype), averages)
        return averages, EmaState(count=count, ema=new, scale=scales)

    return PartitionedGradientTransformation(init, update, partition)


class _Accumulator(NamedTuple):
    """The dtypes in which averages of parameters are stored.

    Attributes:
      dtype: of all but scalars; None: each parameter's own.
    """

    dtype: DTypeLike | None

    def dtype_of(self, param: Leaf) -> jnp.dtype:
        keeps_dtype = self.dtype is None or not len(param.shape)
        return jnp.dtype(param.dtype if keeps_dtype else self.dtype)

    def is_quantised(self, param: Leaf) -> bool:
        return bool(len(param.shape)) and jnp.issubdtype(self.dtype_of(param), jnp.integer)

    def scale(self, param: OptParam) -> jax.Array:
        return jnp.zeros(param.shape[1:], jnp.float32) if self.is_quantised(param) else stand_in()

    def average_spec(self, spec: TensorSpec) -> OptStateSpec:
        return OptStateSpec(shape=spec.shape, dtype=self.dtype_of(spec), mesh_axes=spec.mesh_axes)

    def scale_spec(self, spec: TensorSpec) -> OptStateSpec:
        if not self.is_quantised(spec):
            return stand_in_spec()
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
