"""How the states of two sides are related where their parameters agree: leaf by leaf, by a factor.

A trace that has the learning rate inside is the other one times the rate: the parameters agree, and
so does all that follows, though no leaf of the states is equal.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from optax_bridge.metadata.trees import PyTree

# Of the tensor's scale, in units of its dtype's spacing: both sides round at every step.
_ROUNDING = 256.0


def factors(left: PyTree, right: PyTree) -> Mapping[str, float] | None:
    """The factor of each leaf of the right state over that of the left one.

    Args:
      left: a state's trajectory, each leaf of shape (steps, ...).
      right: the other's, with the same leaves.

    Returns:
      Path -> factor, the same at all steps and elements up to rounding; None if some leaf has none.
    """
    pairs = zip(jax.tree_util.tree_leaves_with_path(left), jax.tree.leaves(right), strict=True)
    result = {}
    for (path, a), b in pairs:
        factor = _factor(np.asarray(a), np.asarray(b))
        if factor is None:
            return None
        result["state" + jax.tree_util.keystr(path)] = factor
    return result


def _factor(a: np.ndarray, b: np.ndarray) -> float | None:
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return 1.0 if np.array_equal(a, b) else None
    spacing = float(jnp.finfo(a.dtype).eps)
    x, y = a.astype(np.float64), b.astype(np.float64)
    if np.array_equal(x, y, equal_nan=True):
        return 1.0
    if not x.size or not (np.isfinite(x).all() and np.isfinite(y).all()) or not x.any():
        return None
    factor = float(np.vdot(x, y) / np.vdot(x, x))
    allowed = _ROUNDING * spacing * max(np.abs(y).max(), abs(factor) * np.abs(x).max())
    return factor if factor and np.abs(y - factor * x).max() <= allowed else None


def shown(related: Mapping[str, float]) -> str:
    """The factors other than 1, for people."""
    by_factor: dict[str, list[str]] = {}
    for path, factor in related.items():
        by_factor.setdefault(f"{factor:.6g}", []).append(path)
    return "; ".join(
        f"right = {factor} x left at {paths[0]}"
        + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
        for factor, paths in by_factor.items()
        if factor != "1"
    )
