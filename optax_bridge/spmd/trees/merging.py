"""Trees put together, spread out and checked."""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from optax_bridge.metadata.trees import Leaf, PyTree

T = TypeVar("T")
_log = logging.getLogger(__name__)


def tree_merge(
    primary: PyTree, *, secondary: PyTree, leaf_merge_fn: Callable[[Leaf, Leaf], Leaf]
) -> PyTree:
    """The union of two trees of dicts, copied deep; `leaf_merge_fn` says what two leaves become.

    Raises:
      ValueError: a dict stands where the other tree has a leaf.
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
    """Returns the settings. A hook for looking at what is decided for each parameter.

    Args:
      settings: a tree with a setting for every parameter: a scale, the kind of its update.
      description: what the settings are.
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
      ValueError: it is no prefix.
    """
    full = jax.tree.unflatten(treedef, [object() for _ in range(treedef.num_leaves)])
    specs: list[PartitionSpec | None] = []

    def spread(spec: PartitionSpec | None, below: PyTree) -> None:
        specs.extend([spec] * len(jax.tree.leaves(below)))

    def is_leaf(node: PyTree) -> bool:
        return node is None or isinstance(node, PartitionSpec)

    try:
        jax.tree.map(spread, prefix_tree, full, is_leaf=is_leaf)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the partition specs are no prefix of the tree: {prefix_tree!r} for {treedef}: {error}"
        ) from None
    return jax.tree.unflatten(treedef, specs)


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
