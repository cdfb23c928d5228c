# pyright: strict
"""Names of the types of trees, and the description of an array before it exists."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional, Protocol, TypeVar, Union, runtime_checkable

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from optax_bridge._internals import mesh_in_with, mesh_that_is_set
from optax_bridge.metadata.trees import PyTree

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
