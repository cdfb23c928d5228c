"""Checks of the trees that a user hands in or a side hands back, by the paths of their leaves."""

from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import KeyPath

from optax_bridge.metadata.trees import PyTree


def leaf_name(path: KeyPath, root: str = "") -> str:
    """A leaf's path behind the name of its tree, or its first key: `params['dense']['kernel']`."""
    if not root:
        root, path = jax.tree_util.keystr(path[:1], simple=True), path[1:]
    return root + jax.tree_util.keystr(path)


def signature(tree: PyTree, root: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Path -> (shape, dtype) of every leaf."""
    return {
        leaf_name(path, root): (np.shape(leaf), str(np.asarray(leaf).dtype))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def shapes_text(signatures: Iterable[tuple[tuple[int, ...], str]]) -> str:
    """Returns dtypes and shapes in words: `float32: scalar, 5x4; bfloat16: 4x3`."""
    by_dtype: dict[str, dict[str, None]] = {}
    for shape, dtype in signatures:
        by_dtype.setdefault(dtype, {})["x".join(map(str, shape)) or "scalar"] = None
    return "; ".join(f"{dtype}: {', '.join(shapes)}" for dtype, shapes in by_dtype.items())


def is_numeric(dtype: str) -> bool:
    """True if arrays of the dtype can be compared: real numbers or flags, no names or objects."""
    if dtype in ("bool", "object"):
        return dtype == "bool"
    kinds = (jnp.floating, jnp.integer)
    return any(jnp.issubdtype(jnp.dtype(dtype), kind) for kind in kinds)


def first_mismatch(
    expected: Mapping[str, tuple[tuple[int, ...], str | None]],
    actual: Mapping[str, tuple[tuple[int, ...], str]],
) -> str | None:
    """Returns the fault of the first leaf that does not fit; None if all do. No dtype is any."""
    for path in [*expected, *actual]:
        if path not in actual:
            return f"{path}: expected shape {expected[path][0]}, found no such leaf"
        if path not in expected:
            return f"{path}: found shape {actual[path][0]}, expected no such leaf"
        for what, wanted, seen in zip(
            ("shape", "dtype"), expected[path], actual[path], strict=True
        ):
            if wanted not in (None, seen):
                return f"{path}: expected {what} {wanted}, found {seen}"
    return None
