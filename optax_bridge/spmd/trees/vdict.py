"""`VDict`: a dict of arrays that are stacked along axis 0, such as the layers of a repeat."""

from collections.abc import Callable, Iterable

import jax
import numpy as np
from jax.tree_util import DictKey

from optax_bridge.metadata.trees import Leaf, PyTree


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
