"""Trees that must have the structure of the parameters, and what to say when they do not."""

from collections.abc import Collection
from typing import Any

import jax

from legacy_optim.typing import Params, PyTree

_REMEDY = {
    "grads": "Differentiate with respect to optimizer.target.",
    "optimizer.state.param_states": "Take the state from the definition's init_state(params).",
}


class _Leaf:
    """Stands for a parameter, below which anything may be."""


def flattened_like(treedef: Any, tree: PyTree, name: str) -> list[PyTree]:
    """The parts of a tree that stand where the parameters have their leaves."""
    try:
        return treedef.flatten_up_to(tree)
    except (TypeError, ValueError) as error:
        expected = treedef.unflatten([_Leaf() for _ in range(treedef.num_leaves)])
        difference = _first_difference(expected, tree, name) or f"{name}: {error}"
    raise ValueError(
        f"{difference}. Expected a tree like optimizer.target, {_summary(treedef)}; found "
        f"{_summary(jax.tree.structure(tree))}. {_REMEDY[name]}"
    )


def leaves_by_path(
    params: Params, tree: PyTree, needed: Collection[int], name: str
) -> list[PyTree]:
    """The leaves of a tree that stand at the paths of the parameters' leaves."""
    rows, treedef = jax.tree_util.tree_flatten_with_path(params)
    if jax.tree.structure(tree) == treedef:
        return jax.tree.leaves(tree)
    paths = [jax.tree_util.keystr(path) for path, _ in rows]
    by_path = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
    if not by_path.keys() <= set(paths) or any(paths[index] not in by_path for index in needed):
        return flattened_like(treedef, tree, name)  # says what is wrong
    return [by_path.get(path) for path in paths]


def _first_difference(expected: PyTree, actual: PyTree, place: str) -> str | None:
    if isinstance(expected, _Leaf):
        return None
    if type(expected) is not type(actual):
        return f"{place}: expected a {type(expected).__name__}, found a {type(actual).__name__}"
    wanted, present = _child_nodes(expected), _child_nodes(actual)
    if missing := [key for key in wanted if key not in present]:
        return f"{place}{missing[0]}: nothing there"
    if extra := [key for key in present if key not in wanted]:
        return f"{place}{extra[0]}: the parameters have nothing there"
    below = (_first_difference(wanted[key], present[key], place + key) for key in wanted)
    return next((difference for difference in below if difference), None)


def _child_nodes(tree: PyTree) -> dict[str, PyTree]:
    """The nodes one level down, by the key that leads there, as `jax.tree_util.keystr` shows it."""
    rows = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)[0]
    return {jax.tree_util.keystr(path): child for path, child in rows}


def _summary(treedef: Any) -> str:
    text = str(treedef).removeprefix("PyTreeDef(").removesuffix(")")
    return text if len(text) <= 500 else f"{text[:500]}..."
