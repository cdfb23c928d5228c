"""Leaves by path: what `a/b/0` is in a tree."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import jax

from optax_bridge.metadata.axis_metadata import key_names
from optax_bridge.metadata.trees import Leaf, PyTree

T = TypeVar("T")
IsLeaf = Callable[[PyTree], bool] | None


def flatten_items(
    tree: PyTree, separator: str = "/", is_leaf: IsLeaf = None
) -> list[tuple[str, Leaf]]:
    """Pairs of path and leaf, in JAX's order. None is no leaf."""
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
    """True if it is None: for `is_leaf` of trees in which None marks what is missing."""
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

    Children are asked before their parents, which then have what remains of them. Only dicts are
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
