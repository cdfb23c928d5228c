"""Trees that a user hands in, held against what they should be like, and errors that say where."""

import jax

from optax_bridge.metadata.axis_metadata import is_box
from optax_bridge.metadata.trees import Params, PyTree


def check_no_text(tree: PyTree, where: str) -> None:
    """Checks that no leaf is text: a name, or a number that was read from a file or a flag.

    Raises:
      TypeError: one is; the message names the leaf.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(leaf, str | bytes):
            raise TypeError(
                f"{where}{jax.tree_util.keystr(path)}: expected an array or a number, found "
                f"{type(leaf).__name__} {leaf!r}"
            )


def check_like(tree: PyTree, params: Params, where: str, remedy: str) -> None:
    """Checks that a tree has the structure of parameters, boxes being leaves.

    Raises:
      ValueError: it has not; the message names leaves that one of the two has alone.
    """
    try:
        jax.tree.structure(params, is_leaf=is_box).flatten_up_to(tree)
    except (ValueError, TypeError):
        paths = [
            {
                jax.tree_util.keystr(path)
                for path, _ in jax.tree_util.tree_leaves_with_path(t, is_leaf=is_box)
            }
            for t in (params, tree)
        ]
        missing, more = sorted(paths[0] - paths[1]), sorted(paths[1] - paths[0])
        found = [
            *([f"no {', '.join(missing[:5])}"] if missing else []),
            *([f"{', '.join(more[:5])} besides"] if more else []),
        ]
        raise ValueError(
            f"{where}: expected a tree like the parameters, found "
            f"{'; '.join(found) or 'other containers'}. {remedy}"
        ) from None
