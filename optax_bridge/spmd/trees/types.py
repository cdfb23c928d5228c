"""Names of the types of trees, the description of an array before it exists, and `VDict`.

A `VDict` is a dict of arrays that are stacked along axis 0, such as the layers of a repeat.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional, Protocol, TypeVar, Union, runtime_checkable

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import DictKey
from jax.typing import DTypeLike

from optax_bridge._internals import mesh_in_with, mesh_that_is_set
from optax_bridge.metadata.trees import Leaf, PyTree

T = TypeVar("T")
Tensor = jax.Array
# A leaf, or a dict of such trees.
Nested = Union[T, dict[str, "Nested[T]"]]  # noqa: UP007 (it takes a parameter)
NestedTensor = Nested[Tensor]
NestedTree = Nested[PyTree]
NestedPartitionSpec = Nested[Optional[PartitionSpec]]  # noqa: UP045
NestedParameterSpec = Nested[PyTree]
NestedOptParam = Nested[PyTree]
# What the axes of an array are cut along: axes of a mesh, several for one axis, or None.
MeshAxes = PartitionSpec | Sequence[str | Sequence[str] | None]


@runtime_checkable
class Summable(Protocol):
    """A value that can be added."""

    def __add__(self, other: Any) -> Any: ...


@dataclasses.dataclass
class TensorSpec:
    """Describes an array that does not exist yet; a leaf of trees.

    Attributes:
      shape: the lengths of its axes.
      dtype: its dtype.
      mesh_axes: the mesh's axes that its axes are cut along; None if it is whole on every device.
      memory_kind: where its parts are kept, "pinned_host" say; None for the device's own memory.
    """

    shape: Sequence[int]
    dtype: DTypeLike | None = None
    mesh_axes: MeshAxes | None = None
    memory_kind: str | None = None

    @property
    def sharding(self) -> NamedSharding:
        """The sharding on the current mesh.

        Raises:
          ValueError: no mesh is set.
        """
        mesh = current_mesh()
        if mesh is None:
            raise ValueError(
                "a TensorSpec has a sharding only in a mesh: set one with `jax.set_mesh(mesh)`."
            )
        axes = PartitionSpec() if self.mesh_axes is None else self.mesh_axes
        spec = axes if isinstance(axes, PartitionSpec) else PartitionSpec(*axes)
        return NamedSharding(mesh, spec, memory_kind=self.memory_kind)


def current_mesh() -> Mesh | AbstractMesh | None:
    """The mesh set by `jax.set_mesh`, or by `with mesh:`; None without one.

    While `jax.jit` traces, the one of `jax.set_mesh` is abstract: its axes without its devices.
    """
    abstract = jax.sharding.get_abstract_mesh()
    return mesh_in_with() if abstract.empty else mesh_that_is_set() or abstract


class VDict(dict[str, PyTree]):
    """A dict whose arrays are stacked along axis 0.

    A pytree node like dict. What is computed for a whole parameter, a norm or a scale, is computed
    for each index by `vectorized_tree_map`.
    """

    def __repr__(self) -> str:
        return f"VDict({super().__repr__()})"


_Keys = tuple[str, ...]


def _flatten_with_keys(tree: VDict) -> tuple[list[tuple[object, PyTree]], _Keys]:
    keys = tuple(sorted(tree))
    return [(DictKey(key), tree[key]) for key in keys], keys


def _flatten(tree: VDict) -> tuple[list[PyTree], _Keys]:
    keys = tuple(sorted(tree))
    return [tree[key] for key in keys], keys


def _unflatten(keys: _Keys, values: Iterable[PyTree]) -> VDict:
    return VDict(zip(keys, values, strict=True))


jax.tree_util.register_pytree_with_keys(VDict, _flatten_with_keys, _unflatten, _flatten)


def _is_vdict(node: PyTree) -> bool:
    return isinstance(node, VDict)


def vectorized_tree_map(fn: Callable[..., Leaf], tree: PyTree, *rest: PyTree) -> PyTree:
    """`jax.tree.map` that maps over the first axis of what is in a VDict, again in a VDict in it.

    Returns:
      A tree like the given one; a VDict without leaves is returned unchanged.
    """

    def visit(node: PyTree, *others: PyTree) -> PyTree:
        if not _is_vdict(node):
            return fn(node, *others)
        if not jax.tree.leaves(node):
            return node
        return jax.vmap(inside)(node, *others)

    def inside(node: PyTree, *others: PyTree) -> PyTree:
        return VDict(vectorized_tree_map(fn, dict(node), *(dict(other) for other in others)))

    return jax.tree.map(visit, tree, *rest, is_leaf=_is_vdict)


def expand_vdicts(tree: PyTree) -> PyTree:
    """The tree with a list of dicts, the slices along axis 0, in place of each VDict.

    A VDict without leaves stays.

    Raises:
      ValueError: a leaf of a VDict is no array or a scalar, or the leaves differ in length.
    """

    def expand(node: PyTree) -> PyTree:
        if not _is_vdict(node):
            return node
        leaves = jax.tree.leaves(node)
        if not leaves:
            return node
        for leaf in leaves:
            if not isinstance(leaf, jax.Array | np.ndarray):
                raise ValueError(
                    f"a VDict holds stacked arrays, not a {type(leaf).__name__}: {leaf!r}"
                )
            if leaf.ndim == 0:
                raise ValueError(f"a VDict holds stacked arrays, not a scalar: {leaf!r}")
        lengths = {leaf.shape[0] for leaf in leaves}
        if len(lengths) > 1:
            raise ValueError(
                f"the arrays of a VDict have different lengths along axis 0: {sorted(lengths)}."
            )
        return [
            jax.tree.map(expand, jax.tree.map(lambda x, i=i: x[i], dict(node)), is_leaf=_is_vdict)
            for i in range(lengths.pop())
        ]

    return jax.tree.map(expand, tree, is_leaf=_is_vdict)
