"""Choosing leaves by traversals, by trees of booleans and by functions on paths."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax.core import FrozenDict

from legacy_optim.traverse_util import leaf_indices
from optax_bridge.axis_metadata import is_box, key_names, leaves_with_path, unboxed, value_of

# A traversal (anything with `iterate`), a tree of booleans like the parameters, or a function to
# such a tree.
Selector = Any


def traversal_mask(traversal: Any) -> Callable[[Any], Any]:
    """A mask for `optax.masked` and `multi_optimizer` from a traversal.

    Args:
      traversal: anything with `iterate(tree)`: `legacy_optim.ModelParamTraversal`, say, or one of
        Flax's.

    Returns:
      A function from parameters to a tree of booleans in the same containers, with a boolean in
      place of a box (`nn.Partitioned`, `nnx.Param`).
    """

    def mask(params: Any) -> Any:
        treedef = jax.tree.structure(params, is_leaf=is_box)
        plain = unboxed(params)
        if isinstance(plain, Mapping) and not isinstance(plain, dict | FrozenDict):
            plain = nested_dict(leaves_with_path(plain))  # an nnx.State: traversals go over dicts
        paths = [key_names(path) for path, _ in leaves_with_path(plain)]
        matched = {paths[index] for index in leaf_indices(traversal, plain)}
        return treedef.unflatten([key_names(p) in matched for p, _ in leaves_with_path(params)])

    return mask


def path_mask(predicate: Callable[[str, Any], bool]) -> Callable[[Any], Any]:
    """A mask for `optax.masked` and `multi_optimizer` from a function on paths.

    Args:
      predicate: gets the leaf's '/'-joined path, `'/encoder/kernel'`, and the leaf; of a box the
        array in it.

    Returns:
      A function from parameters to a tree of booleans in the same containers, with a boolean in
      place of a box (`nn.Partitioned`, `nnx.Param`).
    """

    def mask(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: bool(predicate("/" + "/".join(key_names(path)), value_of(leaf))),
            params,
            is_leaf=is_box,
        )

    return mask


def selected(selector: Selector, params: Any) -> list[bool]:
    """Which leaves of `params` a selector holds, in the order of `jax.tree.leaves`.

    A tree of booleans fits by the names in its paths, whatever the containers, and one boolean may
    stand for all that is below its place.

    Raises:
      ValueError: a tree of booleans that is not like the parameters.
    """
    if hasattr(selector, "iterate"):
        selector = traversal_mask(selector)
    mask = selector(params) if callable(selector) else selector
    given = {key_names(path): bool(value_of(leaf)) for path, leaf in leaves_with_path(mask)}
    wanted = [key_names(path) for path, _ in leaves_with_path(params)]
    chosen, used, missing = [], set(), []
    for names in wanted:
        above = next((names[:n] for n in range(len(names), -1, -1) if names[:n] in given), None)
        if above is None:
            missing.append(names)
            continue
        used.add(above)
        chosen.append(given[above])
    differing = sorted("/".join(names) for names in {*missing, *(given.keys() - used)})
    if differing:
        raise ValueError(
            f"a mask must have one boolean for each leaf of params; they differ at {differing[:5]}"
        )
    return chosen


def nested_dict(leaves: Sequence[tuple[Any, Any]]) -> Any:
    """Paths and leaves as a nested dict by the names in the paths; a lone leaf as it is."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves:
        *above, last = key_names(path) or ("",)
        if not path:
            return leaf
        node = tree
        for name in above:
            node = node.setdefault(name, {})
        node[last] = leaf
    return tree
