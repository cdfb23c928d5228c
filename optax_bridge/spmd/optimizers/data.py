"""Parameters with their roles, and transformations whose states have specs."""

import dataclasses
import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates
from optax_bridge.spmd.layer import FactorizationSpec
from optax_bridge.spmd.module import current_context
from optax_bridge.spmd.trees import TensorSpec, is_none, tree_paths

# A state's array as a spec: shape, dtype and axes of the mesh.
OptStateSpec = TensorSpec


@dataclasses.dataclass
class OptParam:
    """A parameter as an optimizer sees it; a leaf of trees.

    Attributes:
      value: the array.
      factorization_spec: which axes statistics may be reduced over, None for none.
      weight_decay_scale: replaces the scale of weight decay of this parameter, if not None.
    """

    value: jax.Array
    factorization_spec: FactorizationSpec | None
    weight_decay_scale: float | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self.value.shape

    @property
    def dtype(self) -> np.dtype:
        """The array's dtype."""
        return self.value.dtype


class PartitionedGradientTransformation(NamedTuple):
    """A gradient transformation that also defines the sharding of its state on a mesh.

    Entries of trees that are None or `optax.MaskedNode()` are not parameters, and do not change.

    Attributes:
      init: `init(opt_params) -> state`.
      update: `update(updates, state, params) -> (updates, state)`, `params` being `OptParam`s.
      partition: `partition(param_specs) -> state_specs`, a tree like the state with an
        `OptStateSpec` for each array.
    """

    init: Callable[[Params], OptState]
    update: Callable[..., tuple[Updates, OptState]]
    partition: Callable[[PyTree], PyTree]


def opt_param_values(params: Params) -> Params:
    """The arrays of a tree of `OptParam`s."""
    return jax.tree.map(lambda p: p.value if isinstance(p, OptParam) else p, params)


def with_partition_fn(
    tx: optax.GradientTransformation, partition_fn: Callable[[PyTree], PyTree]
) -> PartitionedGradientTransformation:
    """An Optax transformation, which is given arrays, with specs for its state.

    Args:
      tx: the transformation.
      partition_fn: `partition_fn(param_specs) -> state_specs`.
    """

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        return tx.update(updates, state, opt_param_values(params))

    return PartitionedGradientTransformation(
        lambda params: tx.init(opt_param_values(params)), update, partition_fn
    )


def copy_partition(
    specs: PyTree, *, pattern: str | re.Pattern[str] | None = None, memory_kind: str | None = None
) -> PyTree:
    """Specs of arrays that are like parameters, or like other arrays of a state.

    Args:
      specs: parameters' or states' specs.
      pattern: a regular expression for whole paths.
      memory_kind: the kind of memory of the states that the expression fits.

    Returns:
      A tree of `OptStateSpec`s with shape, dtype and axes of those given.
    """

    def copy_spec(path: str, spec: TensorSpec) -> OptStateSpec:
        fits = pattern is not None and re.fullmatch(pattern, path)
        return OptStateSpec(
            shape=spec.shape,
            dtype=spec.dtype,
            mesh_axes=spec.mesh_axes,
            memory_kind=memory_kind if fits else spec.memory_kind,
        )

    return jax.tree.map(copy_spec, tree_paths(specs), specs)


def count_spec() -> OptStateSpec:
    """The spec of a count of steps: an int32 scalar on every device."""
    return OptStateSpec(shape=[], dtype=jnp.int32, mesh_axes=PartitionSpec())  # type: ignore[arg-type]


def stand_in_spec() -> OptStateSpec:
    """The spec of `stand_in()`."""
    return OptStateSpec(shape=(1,), dtype=jnp.float32, mesh_axes=PartitionSpec(None))


def stand_in() -> jax.Array:
    """Returns the array of a state's tree for a parameter that has no such statistic."""
    return jnp.zeros((1,), jnp.float32)


def trace_partition(tx: optax.GradientTransformation) -> PartitionedGradientTransformation:
    """`optax.trace` with specs for its state."""
    return with_partition_fn(tx, lambda specs: optax.TraceState(trace=copy_partition(specs)))


def adam_partition(tx: optax.GradientTransformation) -> PartitionedGradientTransformation:
    """`optax.scale_by_adam`, and others with its state, with specs for it."""
    count = OptStateSpec(shape=(), dtype=jnp.int32, mesh_axes=PartitionSpec())
    return with_partition_fn(tx, _with_averages(tx, count))


def scale_by_lion(
    b1: float = 0.9, b2: float = 0.99, mu_dtype: DTypeLike | None = None
) -> PartitionedGradientTransformation:
    """`optax.scale_by_lion` with specs for its state.

    Args:
      b1: decay of the average that the sign is taken of.
      b2: decay of the average that is kept.
      mu_dtype: dtype of that, None for the parameter's.
    """
    tx = optax.scale_by_lion(b1, b2, mu_dtype)
    return with_partition_fn(tx, _with_averages(tx, count_spec()))


def _with_averages(
    tx: optax.GradientTransformation, count: OptStateSpec
) -> Callable[[PyTree], PyTree]:
    """The specs of a state that has a count, and averages like the parameters but for the dtype."""

    def partition(specs: PyTree) -> PyTree:
        values = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), specs)
        state: OptState = jax.eval_shape(tx.init, values)
        averages = jax.tree.map(
            lambda array, spec: dataclasses.replace(spec, dtype=array.dtype),
            {name: tree for name, tree in state._asdict().items() if name != "count"},
            dict.fromkeys(set(state._fields) - {"count"}, copy_partition(specs)),
        )
        return state._replace(count=count, **averages)

    return partition


def without_state(
    update: Callable[[Updates, Params], Updates], state: OptState = None
) -> PartitionedGradientTransformation:
    """A transformation without state."""
    empty = optax.EmptyState() if state is None else state
    return PartitionedGradientTransformation(
        lambda params: empty,
        lambda updates, state, params: (update(updates, params), state),
        lambda specs: empty,
    )


def map_updates(fn: Callable[..., Leaf], updates: Updates, *rest: PyTree) -> Updates:
    """`jax.tree.map` for updates, of which some may be None where parameters are not."""

    def map_leaf(update: Leaf, *others: Leaf) -> Leaf:
        return None if update is None else fn(update, *others)

    return jax.tree.map(map_leaf, updates, *rest, is_leaf=is_none)


def add_summary(name: str, value: object) -> None:
    """Adds a summary to the current context, if there is one."""
    context = current_context()
    if context is not None:
        context.add_summary(name, value)
