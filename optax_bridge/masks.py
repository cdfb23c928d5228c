"""Choosing leaves by traversals, by trees of booleans and by functions on paths."""

from collections.abc import Callable
from typing import Any

import jax

from legacy_optim.traverse_util import leaf_indices

# A traversal (anything with `iterate`), a tree of booleans like the parameters, or a function to
# such a tree.
Selector = Any


def traversal_mask(traversal: Any) -> Callable[[Any], Any]:
    """A mask for `optax.masked` and `multi_optimizer` from a traversal.

    Args:
      traversal: anything with `iterate(tree)`: `legacy_optim.ModelParamTraversal`, say, or one of
        Flax's.

    Returns:
      A function from parameters to a tree of booleans in the same containers.
    """

    def mask(params: Any) -> Any:
        leaves, treedef = jax.tree.flatten(params)
        matched = set(leaf_indices(traversal, params))
        return treedef.unflatten([index in matched for index in range(len(leaves))])

    return mask


def path_mask(predicate: Callable[[str, Any], bool]) -> Callable[[Any], Any]:
    """A mask for `optax.masked` and `multi_optimizer` from a function on paths.

    Args:
      predicate: gets the leaf's '/'-joined path, `'/encoder/kernel'`, and the leaf.

    Returns:
      A function from parameters to a tree of booleans in the same containers.
    """

    def mask(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: bool(
                predicate("/" + jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
            ),
            params,
        )

    return mask


def selected(selector: Selector, params: Any) -> list[bool]:
    """Which leaves of `params` a selector holds, in the order of `jax.tree.leaves`.

    Raises:
      ValueError: a tree of booleans that is not like the parameters.
    """
    if hasattr(selector, "iterate"):
        selector = traversal_mask(selector)
    mask = selector(params) if callable(selector) else selector
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    given = {_names(path): bool(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(mask)}
    wanted = [_names(path) for path in paths]
    if set(given) != set(wanted):
        differing = sorted("/".join(names) for names in set(given) ^ set(wanted))
        raise ValueError(
            f"a mask must have one boolean for each leaf of params; they differ at {differing[:5]}"
        )
    return [given[names] for names in wanted]


def _names(path: Any) -> tuple[str, ...]:
    """A path without its containers' types: a dict's mask fits the same names in a FrozenDict."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
