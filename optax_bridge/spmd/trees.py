"""Trees: paths, merging, partition specs, arrays stacked along an axis, names for their types.

A `VDict` is a dict of arrays that are stacked along axis 0, such as the layers of a repeat.
"""

import copy
import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Optional, Protocol, TypeVar, Union, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import DictKey
from jax.typing import ArrayLike, DTypeLike

from optax_bridge._internals import mesh_in_with, mesh_that_is_set
from optax_bridge.metadata.paths import key_names
from optax_bridge.metadata.trees import Leaf, PyTree

_log = logging.getLogger(__name__)

T = TypeVar("T")
Tensor = jax.Array
# A leaf, or a dict of such trees.
Nested = Union[T, dict[str, "Nested[T]"]]  # noqa: UP007 (it takes a parameter)
NestedTensor = Nested[Tensor]
NestedTree = Nested[PyTree]
NestedPartitionSpec = Nested[Optional[PartitionSpec]]  # noqa: UP045
NestedParameterSpec = Nested[PyTree]
NestedOptParam = Nested[PyTree]
# The axes of a mesh that an array's axes are cut along: one, several, or None.
MeshAxes = PartitionSpec | Sequence[str | Sequence[str] | None]


@runtime_checkable
class Summable(Protocol):
    """A value that can be added."""

    def __add__(self, other: Leaf) -> Leaf: ...


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

    A pytree node like dict. Whatever belongs to a whole parameter, a norm or a scale, is computed
    for each index by `vectorized_tree_map`.
    """

    def __repr__(self) -> str:
        return f"VDict({super().__repr__()})"


_Keys = tuple[str, ...]


def _flatten_with_keys(tree: VDict) -> tuple[list[tuple[object, PyTree]], _Keys]:
    keys = tuple(sorted(tree))
    return [(DictKey(key), tree[key]) for key in keys], keys


def _to_children(tree: VDict) -> tuple[list[PyTree], _Keys]:
    keys = tuple(sorted(tree))
    return [tree[key] for key in keys], keys


def _from_children(keys: _Keys, values: Iterable[PyTree]) -> VDict:
    return VDict(zip(keys, values, strict=True))


jax.tree_util.register_pytree_with_keys(VDict, _flatten_with_keys, _from_children, _to_children)


def _is_vdict(node: PyTree) -> bool:
    return isinstance(node, VDict)


def vectorized_tree_map(fn: Callable[..., Leaf], tree: PyTree, *rest: PyTree) -> PyTree:
    """`jax.tree.map` that maps over the first axis of a VDict's arrays, nested ones too.

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
      ValueError: a leaf of a VDict is a scalar or not an array, or the leaves differ in length.
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


IsLeaf = Callable[[PyTree], bool] | None


def flatten_items(
    tree: PyTree, separator: str = "/", is_leaf: IsLeaf = None
) -> list[tuple[str, Leaf]]:
    """Pairs of path and leaf, in JAX's order. None is not a leaf."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return [(separator.join(key_names(path)), leaf) for path, leaf in leaves]


def tree_paths(tree: PyTree, separator: str = "/", is_leaf: IsLeaf = None) -> PyTree:
    """The tree with each leaf's path in its place.

    Example:
      >>> tree_paths({"a": 1, "b": [2, {"c": 3}]})
      {'a': 'a', 'b': ['b/0', {'c': 'b/1/c'}]}
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: separator.join(key_names(path)), tree, is_leaf=is_leaf
    )


def is_none(leaf: object) -> bool:
    """True if it is None: for `is_leaf` of trees in which None marks a missing leaf."""
    return leaf is None


def shapes(tree: PyTree) -> PyTree:
    """The tree with each array's shape in its place; other leaves stay."""
    return jax.tree.map(lambda x: getattr(x, "shape", x), tree)


def match_regex_rules(
    x: str, *, rules: Iterable[tuple[str, T]], default_value: T | None = None
) -> T | None:
    """The value of the first rule whose regular expression matches the whole string."""
    for regex, value in rules:
        if re.fullmatch(regex, x):
            return value
    return default_value


def warn_of_unused_rules(
    rules: Iterable[tuple[str, object]], parameters: PyTree, where: str
) -> None:
    """Logs, once, each rule whose regular expression fits the path of no parameter.

    Args:
      rules: as of `match_regex_rules`.
      parameters: a tree with a leaf for each parameter.
      where: whose rules they are.
    """
    paths = [path for path, _ in flatten_items(parameters)]
    for regex, _ in rules:
        if paths and not any(re.fullmatch(regex, path) for path in paths):
            _warn_once(
                f"{where}: {regex!r} fits no parameter; it must fit a whole path, as {paths[-1]}"
            )


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning(message)


def _parts(path: str | Sequence[str], separator: str | None) -> list[str]:
    if not isinstance(path, str):
        return list(path)
    if not path:
        return []
    return path.split(separator) if separator else [path]


def get_recursively(tree: PyTree, path: str | Sequence[str], separator: str | None = "/") -> PyTree:
    """The part of nested dicts at a path, given as one string or as a sequence of keys.

    Raises:
      KeyError: with the part of the path, from the start, that is not there.
    """
    parts = _parts(path, separator)
    for i, part in enumerate(parts):
        if not isinstance(tree, dict) or part not in tree:
            raise KeyError((separator or "/").join(parts[: i + 1]))
        tree = tree[part]
    return tree


def set_recursively(
    tree: PyTree, *, value: PyTree, path: str | Sequence[str], separator: str | None = "/"
) -> None:
    """Sets the part of nested dicts at a path, in place; dicts on the way are made.

    Raises:
      ValueError: the path is empty, or leads through a leaf.
    """
    parts = _parts(path, separator)
    if not parts:
        raise ValueError("set_recursively: the path is empty; it must name a key at least.")
    for i, part in enumerate(parts[:-1]):
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            at = (separator or "/").join(parts[: i + 1])
            raise ValueError(f"set_recursively: a leaf is at {at!r}, nothing can be set below it.")
    tree[parts[-1]] = value


def prune_tree(
    tree: PyTree,
    should_prune: Callable[[str, PyTree], bool],
    *,
    prefix: str = "",
    separator: str = "/",
) -> PyTree:
    """The tree of dicts without the parts for which `should_prune(path, part)` is true.

    Children are asked before their parents, which then have the remaining ones. Only dicts are
    entered; their types are kept, and the tree itself is not changed.
    """
    if not isinstance(tree, dict):
        return tree
    remaining = {}
    for key, value in tree.items():
        path = f"{prefix}{separator}{key}" if prefix else str(key)
        part = prune_tree(value, should_prune, prefix=path, separator=separator)
        if not should_prune(path, part):
            remaining[key] = part
    return type(tree)(remaining)


def prune_empty(tree: PyTree) -> PyTree:
    """The tree without empty dicts, also those that become empty."""
    return prune_tree(tree, lambda _, part: isinstance(part, dict) and not part)


def tree_merge(
    primary: PyTree, *, secondary: PyTree, leaf_merge_fn: Callable[[Leaf, Leaf], Leaf]
) -> PyTree:
    """The union of two trees of dicts, copied deep; `leaf_merge_fn` merges two leaves.

    Raises:
      ValueError: one tree has a dict where the other has a leaf.
    """
    return _merge(primary, secondary, leaf_merge_fn, "")


def _merge(a: PyTree, b: PyTree, leaf_merge_fn: Callable[[Leaf, Leaf], Leaf], path: str) -> PyTree:
    if isinstance(a, dict) != isinstance(b, dict):
        kinds = [type(side).__name__ for side in (a, b)]
        raise ValueError(f"cannot merge a {kinds[0]} with a {kinds[1]} at {path or '/'!r}.")
    if not isinstance(a, dict):
        return copy.deepcopy(leaf_merge_fn(a, b))
    merged = type(a)()
    for key in [*a, *(key for key in b if key not in a)]:
        if key in a and key in b:
            below = f"{path}/{key}" if path else str(key)
            merged[key] = _merge(a[key], b[key], leaf_merge_fn, below)
        else:
            merged[key] = copy.deepcopy(a[key] if key in a else b[key])
    return merged


def non_empty_leaf_merge_fn(primary: PyTree, secondary: PyTree) -> PyTree:
    """The one of two leaves that is neither None nor of length 0.

    Raises:
      ValueError: neither is empty.
    """

    def empty(leaf: Leaf) -> bool:
        scalar = getattr(leaf, "shape", None) == ()
        return leaf is None or (not scalar and hasattr(leaf, "__len__") and len(leaf) == 0)

    if empty(primary):
        return secondary
    if empty(secondary):
        return primary
    raise ValueError(f"two leaves at one path and neither is empty: {primary!r}, {secondary!r}")


def register_per_param_settings(settings: T, *, description: str, path: str | None = None) -> T:
    """Returns the settings. A hook for inspecting the settings of each parameter.

    Args:
      settings: a tree with a setting for every parameter: a scale, the kind of its update.
      description: a name of the settings.
      path: which module they are of.
    """
    _log.debug("Settings per parameter: %s of %s: %s", description, path, settings)
    return settings


def complete_partition_spec_tree(treedef: PyTree, prefix_tree: PyTree) -> PyTree:
    """A tree of this structure with the partition spec of the prefix above it at every leaf.

    Args:
      treedef: the structure.
      prefix_tree: a prefix of such a tree with partition specs as leaves, None among them.

    Raises:
      ValueError: it is not a prefix.
    """
    full = jax.tree.unflatten(treedef, [object() for _ in range(treedef.num_leaves)])

    def is_leaf(node: PyTree) -> bool:
        return node is None or isinstance(node, PartitionSpec)

    try:
        return jax.tree.broadcast(prefix_tree, full, is_leaf=is_leaf)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the partition specs are no prefix of the tree: {prefix_tree!r} for {treedef}: {error}"
        ) from None


def raise_for_cycles(tree: PyTree) -> None:
    """Raises ValueError if a dict, list or tuple contains itself."""
    above: set[int] = set()

    def visit(node: PyTree) -> None:
        if isinstance(node, Mapping):
            children = list(node.values())
        elif isinstance(node, list | tuple):
            children = list(node)
        else:
            return
        if id(node) in above:
            raise ValueError(f"a cycle in the tree: a {type(node).__name__} contains itself.")
        above.add(id(node))
        for child in children:
            visit(child)
        above.discard(id(node))

    visit(tree)


def check_jax_type(
    *,
    args: Sequence[PyTree] | None = None,
    kwargs: Mapping[str, PyTree] | None = None,
    msg: str | None = None,
) -> None:
    """Checks that all leaves are None, arrays of JAX, ints or floats.

    Raises:
      ValueError: naming the argument, `args[i]` or `kwargs[k]`, and the type; msg in front.
    """
    named = {f"args[{i}]": arg for i, arg in enumerate(args or ())}
    named.update({f"kwargs[{key}]": arg for key, arg in (kwargs or {}).items()})
    for name, arg in named.items():
        for leaf in jax.tree.leaves(arg):
            if not isinstance(leaf, jax.Array | int | float):
                front = "" if msg is None else f"{msg} "
                raise ValueError(
                    f"{front}Argument {name} has a leaf of type {type(leaf)}, which is no JAX type "
                    "(a jax.Array, int, float or None)."
                )


_CAST = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32))


def cast_floats(tree: PyTree, to_dtype: DTypeLike) -> PyTree:
    """The tree with its bfloat16 and float32 arrays in one of these dtypes; others stay.

    Raises:
      ValueError: for another dtype.
    """
    if jnp.dtype(to_dtype) not in _CAST:
        raise ValueError(f"cast_floats casts to bfloat16 and float32, not to {to_dtype}.")

    def cast(leaf: Leaf) -> Leaf:
        return leaf.astype(to_dtype) if getattr(leaf, "dtype", None) in _CAST else leaf

    return jax.tree.map(cast, tree)


def safe_not(mask: ArrayLike | None) -> jax.Array | None:
    """The negation of a mask; None for None."""
    return None if mask is None else jnp.logical_not(mask)
