"""The tree of a checkpoint as the terminal shows it: a line for each leaf, up to a number."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.tree import Tree

from optax_bridge.checkpoints.errors import shown
from optax_bridge.checkpoints.recognise import is_array
from optax_bridge.metadata.trees import PyTree

AT_FIRST = 1000  # lines; a terminal has no use for more unless somebody asks


def print_outline(console: Console, name: str, node: PyTree, limit: int | None = AT_FIRST) -> None:
    """Prints a tree, and how much of it was left out.

    Args:
      console: where to, without markup: names are a file's own.
      name: of the root.
      node: nested dicts and lists.
      limit: lines at most; None for all of them.
    """
    tree = Tree(name)
    left = _grow(tree, node, limit)
    console.print(tree)
    if left:
        console.print(f"and {left:,} lines more: --all shows them")


def _grow(root: Tree, node: PyTree, limit: int | None) -> int:
    """Adds a line for each level and leaf, in order; returns how many are left out."""
    count = 0
    waiting = [(root, _items(node))]
    while waiting:
        tree, items = waiting[-1]
        item = next(items, None)
        if item is None:
            waiting.pop()
            continue
        count += 1
        name, value = item
        is_level = isinstance(value, Mapping | list | tuple)
        below = tree
        if limit is None or count <= limit:
            label = shown(str(name))[1:-1]
            if is_level:
                label = label if value else f"{label} (empty)"
            elif is_array(value):
                label = f"{label} {value.dtype}{list(value.shape)} {value.nbytes:,} bytes"
            else:
                label = f"{label} {shown(value)}"
            below = tree.add(label)
        if is_level:
            waiting.append((below, _items(value)))
    return count - limit if limit is not None and count > limit else 0


def _items(node: PyTree) -> Any:
    return iter(list(node.items()) if isinstance(node, Mapping) else list(enumerate(node)))
