"""Reads, removes and restores boxes around arrays (FLIP 2434).

A *box* is one of Flax's `AxisMetadata` (`nn.Partitioned`, `nn.LogicallyPartitioned`, a class of
the user's) or an `nnx.Variable`. Optimizers compute on the arrays within; what they keep for a
parameter comes back in a box like the parameter's, with the names of just the axes that it keeps.
"""

import contextlib
import contextvars
import dataclasses
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util
from flax.core import meta
from jax.tree_util import KeyPath

from optax_bridge.metadata.paths import key_names, keystr
from optax_bridge.metadata.trees import AxisName, Leaf, Params, PathKey, PyTree

# For each axis of an array, the axis of its parameter that it is, or None.
Axes = tuple[int | None, ...]


class Reduced(NamedTuple):
    """An array of a state that keeps some of its parameter's axes."""

    value: Leaf
    axes: Axes


def is_box(node: PyTree) -> bool:
    """True if the node holds exactly one array; a box around a `MaskedNode` holds none."""
    if not isinstance(node, meta.AxisMetadata) and not is_variable(node):
        return False
    return len(jax.tree.leaves(node)) == 1


def is_variable(node: PyTree) -> bool:
    """True if this is an `nnx.Variable`; asks without importing nnx."""
    module = sys.modules.get("flax.nnx")
    return module is not None and isinstance(node, getattr(module, "Variable", ()))


def has_boxes(tree: PyTree) -> bool:
    """True if a tree contains a box."""
    return any(is_box(leaf) for leaf in jax.tree.leaves(tree, is_leaf=is_box))


def value_of(leaf: Leaf) -> Leaf:
    """The array in a box, unchanged; `unbox` of Flax would constrain its sharding."""
    return jax.tree.leaves(leaf)[0] if is_box(leaf) else leaf


def boxed_like(box: Leaf, value: Leaf) -> Leaf:
    """The value in a box like this one; the value itself if this is no box."""
    return jax.tree.structure(box).unflatten([value]) if is_box(box) else value


def unboxed(tree: PyTree) -> PyTree:
    """Replaces every box of a tree by the array in it, and changes nothing else.

    >>> unboxed({"w": nn.Partitioned(1.0, ("embed",))})
    {'w': 1.0}
    """
    return jax.tree.map(value_of, tree, is_leaf=is_box)


def boxed_as(tree: PyTree, values: PyTree) -> PyTree:
    """The values in the boxes of a tree of the same structure; the values may be boxed or not."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_box)
    pairs = zip(leaves, treedef.flatten_up_to(values), strict=True)
    return treedef.unflatten([boxed_like(box, value_of(value)) for box, value in pairs])


def shapes_of(tree: PyTree) -> PyTree:
    """The tree with shapes and dtypes in place of arrays."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


@contextlib.contextmanager
def boxes_remembered(params: Params) -> Iterator[None]:
    """Context in which `box_of` knows the boxes of these parameters."""
    boxes = {key_names(path): leaf for path, leaf in leaves_with_path(params) if is_box(leaf)}
    token = _REMEMBERED.set({**_REMEMBERED.get(), **boxes})
    try:
        yield
    finally:
        _REMEMBERED.reset(token)


def box_of(path: Iterable[PathKey], leaf: Leaf) -> Leaf:
    """The box that a parameter was in before `boxes_remembered`; the leaf itself if in none."""
    if is_box(leaf):
        return leaf
    box = _REMEMBERED.get().get(key_names(path), leaf)
    return box if jnp.shape(value_of(box)) == jnp.shape(leaf) else leaf


def in_remembered_boxes(params: Params) -> Params:
    """Parameters in the boxes that they were in before `boxes_remembered`."""

    def put_in_box(path: KeyPath, leaf: Leaf) -> Leaf:
        return boxed_like(box_of(path, leaf), value_of(leaf))

    return jax.tree_util.tree_map_with_path(put_in_box, params, is_leaf=is_box)


_REMEMBERED: contextvars.ContextVar[Mapping[tuple[str, ...], Leaf]] = contextvars.ContextVar(
    "boxes of the parameters, by path", default=types.MappingProxyType({})
)


def leaves_with_path(tree: PyTree) -> list[tuple[KeyPath, Leaf]]:
    """Paths and leaves, boxes being leaves: paths are the same with boxes and without."""
    return jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_box)


def names_of(box: Leaf, where: str = "") -> tuple[AxisName, ...] | None:
    """The names of a boxed array's axes."""
    names = _names(box)
    if names is None:
        return None
    shape = jnp.shape(value_of(box))
    if is_variable(box):  # nnx leaves trailing axes out, as a PartitionSpec may
        names = (*names, *[None] * (len(shape) - len(names)))
    if len(names) != len(shape):
        raise ValueError(
            f"{where or type(box).__name__}: the {type(box).__name__} names {len(names)} axes, "
            f"{names}, but the array has shape {shape}. Give one name for each axis, None for an "
            "axis without one."
        )
    return names


def with_axes(box: Leaf, reduced: Reduced, where: str = "") -> Leaf:
    """An array of the state in the box of its parameter, with the names of the axes it keeps."""
    value, axes = reduced
    if not is_box(box):
        return value
    if axes == tuple(range(jnp.ndim(value_of(box)))):
        names_of(box, where)
        return boxed_like(box, value)
    if hasattr(box, "keep_axes"):
        return boxed_like(box.keep_axes(axes), value)
    names = names_of(box, where)
    if names is None:
        return boxed_like(box, value) if is_variable(box) else value
    narrowed = tuple(None if axis is None else names[axis] for axis in axes)
    if is_variable(box):
        return box.replace(value, **{_names_key(box): narrowed})
    if not dataclasses.is_dataclass(box) or not hasattr(box, "names"):
        return value
    changes: dict[str, tuple[AxisName, ...]] = {"names": narrowed}
    if (roles := getattr(box, "roles", None)) is not None:
        changes["roles"] = tuple(None if axis is None else roles[axis] for axis in axes)
    return boxed_like(dataclasses.replace(box, **changes), value)  # type: ignore[arg-type]


def whole_or_nothing(value: Leaf, param: Leaf) -> Reduced:
    """Returns all axes for an array of its parameter's shape, none for any other."""
    rank = jnp.ndim(value)
    same = jnp.shape(value) == jnp.shape(value_of(param))
    return Reduced(value, tuple(range(rank)) if same else (None,) * rank)


def check_names(tree: PyTree, root: str = "params") -> None:
    """Raises ValueError where a box does not have one name for each axis."""
    for path, leaf in leaves_with_path(tree):
        names_of(leaf, root + keystr(path))


def add_axis(tree: PyTree, index: int, name: AxisName) -> PyTree:
    """Gives every box of a tree one more axis, as `nn.scan` and `nn.vmap` do.

        >>> box = add_axis(nn.Partitioned(jnp.ones((3, 2)), ("embed",)), 0, "layers")
        >>> box.names
        ('layers', 'embed')
        >>> remove_axis(box, 0, "layers").names
        ('embed',)

    Args:
      tree: parameters or an optimizer's state, with boxes.
      index: where the axis goes.
      name: its name.

    Returns:
      The tree; `remove_axis` with the same arguments undoes it.

    Raises:
      TypeError: the index is not an integer.
    """
    _check_index(index)
    return meta.add_axis(tree, index, {meta.PARTITION_NAME: name})


def remove_axis(tree: PyTree, index: int, name: AxisName) -> PyTree:
    """Removes an axis from every box of a tree.

    Args:
      tree: parameters or an optimizer's state, with boxes.
      index: the axis.
      name: the name that it has.

    Returns:
      The tree.

    Raises:
      TypeError: the index is no integer.
      ValueError: a box has no such axis, or another name for it.
    """
    _check_index(index)
    for path, leaf in leaves_with_path(tree):
        names = _names(leaf) if is_box(leaf) else None
        if names is None:
            continue
        actual = names[index] if -len(names) <= index < len(names) else "no such axis"
        if actual != name:
            raise ValueError(
                f"tree{keystr(path)}: cannot remove axis {index}: expected the name {name!r}, "
                f"found {actual!r} in {names}. Give the index and the name that nn.scan, nn.vmap "
                "or add_axis added."
            )
    return meta.remove_axis(tree, index, {meta.PARTITION_NAME: name})


def _names_key(variable: Leaf) -> str:
    """Returns where an `nnx.Variable` keeps the names of its axes, which Flax renamed in 0.12."""
    return "sharding_names" if "sharding_names" in variable.get_metadata() else "out_sharding"


def _names(box: Leaf) -> tuple[AxisName, ...] | None:
    """The names in a box or in the boxes within it."""
    while isinstance(box, meta.AxisMetadata) or is_variable(box):
        if is_variable(box):
            metadata: Leaf = box
            names: AxisName = metadata.get_metadata().get(_names_key(box))
        else:
            names = getattr(box, "names", None)
        if isinstance(names, Sequence):
            return tuple(names)
        box = None if is_variable(box) else getattr(box, "value", None)
    return None


def nested_dict(leaves: Sequence[tuple[KeyPath, Leaf]]) -> PyTree:
    """Paths and leaves as a nested dict by the names in the paths; a lone leaf itself."""
    flat = {key_names(path): leaf for path, leaf in leaves}
    return flat[()] if () in flat else traverse_util.unflatten_dict(flat)


def _check_index(index: object) -> None:
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError(f"index: expected the number of an axis, found {index!r}")
