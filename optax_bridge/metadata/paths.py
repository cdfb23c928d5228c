"""Paths to the leaves of a tree: JAX's paths into pytrees, and tuples of names into state dicts."""

from collections.abc import Iterable, Iterator, Mapping

import jax
from jax.tree_util import DictKey

from optax_bridge.metadata.trees import Leaf, PathKey, PyTree

Names = tuple[str, ...]


def keystr(path: Iterable[PathKey]) -> str:
    """Returns a path as all messages write it: `['dense']['kernel']`."""
    return jax.tree_util.keystr(tuple(path))


def leaf_name(path: Names) -> str:
    """Returns a path of names as all messages write it: `['target']['kernel']`."""
    return keystr(map(DictKey, path))


def key_names(path: Iterable[PathKey]) -> Names:
    """A path without its containers' types: a dict's mask fits the same names in a FrozenDict."""
    return tuple(_key_name(key) for key in path)


def _key_name(key: PathKey) -> str:
    """As `keystr(simple=True)`, in a tenth of its time: large models ask for every leaf."""
    attribute = _KEY_ATTRIBUTES.get(type(key))
    if attribute is None:
        return jax.tree_util.keystr((key,), simple=True)
    return str(getattr(key, attribute))


_KEY_ATTRIBUTES = {
    jax.tree_util.DictKey: "key",
    jax.tree_util.FlattenedIndexKey: "key",
    jax.tree_util.GetAttrKey: "name",
    jax.tree_util.SequenceKey: "idx",
}


def with_indices(tree: PyTree) -> PyTree:
    """Returns a list or a tuple as a dict by index, as state dicts do; anything else unchanged."""
    if isinstance(tree, list | tuple):
        return {str(index): value for index, value in enumerate(tree)}
    return tree


def by_index(tree: PyTree) -> list[PyTree] | None:
    """Returns a list, also from a dict by index, as state dicts have it; None for anything else."""
    if isinstance(tree, list):
        return tree
    if not isinstance(tree, Mapping) or set(tree) != {str(index) for index in range(len(tree))}:
        return None
    return [tree[str(index)] for index in range(len(tree))]


def leaves(tree: PyTree, path: Names = ()) -> Iterator[tuple[Names, Leaf]]:
    """The leaves of nested dicts and lists with their paths; empty dicts have none."""
    tree = with_indices(tree)
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from leaves(value, (*path, str(name)))
    else:
        yield path, tree


def paths_of(tree: PyTree, path: Names) -> list[Names]:
    """Returns the paths of the leaves of a tree that stands at a path; None is no leaf."""
    return [at for at, leaf in leaves(tree, path) if leaf is not None]
