"""Compares what the old half of a page computed with what the new half did."""

import jax
import numpy as np


def agree(old: object, new: object, *, ulp: float = 0.0) -> None:
    """Prints how far two results are apart, and fails where that is further than the page says."""
    old_arrays, new_arrays = _arrays(old), _arrays(new)
    assert old_arrays, "nothing to compare"
    assert old_arrays.keys() == new_arrays.keys(), sorted(old_arrays.keys() ^ new_arrays.keys())
    distances = {path: _distance(path, old_arrays[path], new_arrays[path]) for path in old_arrays}
    worst = max(distances, key=lambda path: distances[path])
    assert distances[worst] <= ulp, (
        f"{worst}: {distances[worst]:.3g} ULP apart, at most {ulp:g} expected"
    )
    count, size = len(old_arrays), sum(array.size for array in old_arrays.values())
    what = f"{size:,} number{'s' * (size != 1)} in {count} array{'s' * (count != 1)}"
    if distances[worst] == 0:
        print(f"Same to the last bit: {what}.")
    else:
        print(f"Same but for rounding: {what}, at most {distances[worst]:.2g} ULP apart.")


def _arrays(tree: object) -> dict[str, np.ndarray]:
    """Path -> array; a list of losses is one array."""
    if isinstance(tree, list):
        tree = np.asarray([np.asarray(value) for value in tree])
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
        for path, leaf in flat
    }


def _distance(path: str, old: np.ndarray, new: np.ndarray) -> float:
    """Largest difference in units in the last place at the larger of both magnitudes."""
    assert (old.shape, old.dtype) == (new.shape, new.dtype), (
        f"{path}: {old.dtype}{list(old.shape)} and {new.dtype}{list(new.shape)}"
    )
    assert old.size, f"{path}: empty"
    assert np.isfinite(old).all() and np.isfinite(new).all(), f"{path}: not finite"
    if old.tobytes() == new.tobytes():
        return 0.0
    assert old.dtype.kind not in "iub", f"{path}: other whole numbers"
    wide_old, wide_new = old.astype(np.float64), new.astype(np.float64)
    largest = max(np.abs(wide_old).max(), np.abs(wide_new).max())
    unit = float(np.spacing(largest.astype(old.dtype)))
    # Zeros of either sign are equal as numbers, and not the same bits.
    return max(float(np.abs(wide_old - wide_new).max() / unit), np.finfo(np.float64).tiny)
