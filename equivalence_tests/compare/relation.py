"""Relations of two sides' states where their parameters agree: leaf by leaf, linear.

A trace that has the learning rate inside is the other one times the rate, a counter may start at 1
with its schedule shifted, two moments may have each other's name: the parameters agree, and so does
all that follows, though no leaf of the states is equal.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optax_bridge.metadata.trees import PyTree

# Of the tensor's scale, in units of its dtype's spacing: both sides round at every step.
_ROUNDING = 256.0


class Relation(NamedTuple):
    """A leaf of the right state as `factor * leaf + offset`, `leaf` of the left one."""

    leaf: str
    factor: float = 1.0
    offset: int = 0

    def is_equal(self, path: str) -> bool:
        """True if the leaf at a path is the same on both sides, but for rounding."""
        return self.leaf == path and abs(self.factor - 1) <= 1e-6 and not self.offset


def relations(left: PyTree, right: PyTree) -> Mapping[str, Relation] | None:
    """The relation of each leaf of the right state to one of the left state."""
    lefts, rights = (
        {"state" + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
        for leaves in map(jax.tree_util.tree_leaves_with_path, (left, right))
    )
    by_path: dict[str, Relation] = {}
    for path, leaf in rights.items():  # the leaf of the same name comes first
        if relation := _relation(path, lefts[path], leaf):
            by_path[path] = relation
    free = [path for path in lefts if path not in by_path]
    for path, leaf in rights.items():
        if path in by_path:
            continue
        tried = (_relation(other, lefts[other], leaf) for other in free)
        relation = next(filter(None, tried), None)
        if relation is None:
            return None
        free.remove(relation.leaf)
        by_path[path] = relation
    return {path: by_path[path] for path in rights}


def _relation(path: str, a: np.ndarray, b: np.ndarray) -> Relation | None:
    if a.shape != b.shape or a.dtype != b.dtype:
        return None
    if np.array_equal(a, b, equal_nan=bool(jnp.issubdtype(a.dtype, jnp.floating))):
        return Relation(path)
    if not jnp.issubdtype(a.dtype, jnp.floating):
        difference = np.unique(b.astype(np.int64) - a.astype(np.int64))
        counts = a.size > 1 and bool((a != a.reshape(-1)[0]).any())  # nothing shows of a constant
        return (
            Relation(path, offset=int(difference[0])) if counts and difference.size == 1 else None
        )
    spacing = float(jnp.finfo(a.dtype).eps)
    factor = fitted_factor(a, b, _ROUNDING * spacing)
    return None if factor is None else Relation(path, factor)


def fitted_factor(x: np.ndarray, y: np.ndarray, tolerance: float) -> float | None:
    """Returns c if y is c times x, but for a part of the scale; else None."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    if not x.any() or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    factor = float(np.vdot(x, y) / np.vdot(x, x))
    allowed = tolerance * max(np.abs(y).max(), abs(factor) * np.abs(x).max())
    return factor if factor and np.abs(y - factor * x).max() <= allowed else None


def relations_text(related: Mapping[str, Relation]) -> str:
    """The relations other than equality, for people."""
    by_text: dict[str, list[str]] = {}
    for path, relation in related.items():
        if not relation.is_equal(path):
            by_text.setdefault(_text(path, relation), []).append(path)
    return "; ".join(
        f"{text} at {paths[0]}" + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
        for text, paths in by_text.items()
    )


def _text(path: str, relation: Relation) -> str:
    what = "left" if relation.leaf == path else f"left's {relation.leaf}"
    if abs(relation.factor - 1) > 1e-6:
        what = f"{relation.factor:.6g} x {what}"
    return f"right = {what}" + (
        f" {'+-'[relation.offset < 0]} {abs(relation.offset)}" if relation.offset else ""
    )
