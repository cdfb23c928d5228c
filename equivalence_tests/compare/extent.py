"""The distance between two trajectories, with its leaf and first step.

After a gradient with a NaN or an infinity most numbers are not finite and no distance can be
measured, so the steps before it and the steps from it on are measured separately.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from equivalence_tests.compare.comparison import VISIBLE, Comparison, LeafDistance
from optax_bridge.metadata.trees import Updates


@dataclass(frozen=True)
class Extent:
    """The largest distance of two trajectories over some steps, and the first step with one."""

    leaf: str
    ulp: float
    relative: float
    step: int
    first_leaf: str
    is_integer: bool = False

    def __str__(self) -> str:
        if math.isfinite(self.ulp):
            return f"{relative_text(self.relative)} of its scale ({self.ulp:.3g} ULP)"
        return "unequal integers" if self.is_integer else "NaN or infinity on one side alone"

    @property
    def place(self) -> str:
        """Leaf, distance and step in words."""
        also = "" if self.leaf == self.first_leaf else f", first {self.first_leaf}"
        return f"{self.leaf} by {self}, from step {self.step}{also}"


def extent_before_poison(comparison: Comparison, above: float = 0.0) -> Extent | None:
    """Returns the extent before the first input that is not finite; None if nothing differs."""
    return _extent(comparison, lambda leaf, values: values[: leaf.poisoned_from], 0, above)


def extent_after_poison(comparison: Comparison) -> Extent | None:
    """Returns the extent from the first input that is not finite on; None if nothing differs."""
    return _extent(comparison, lambda leaf, values: values[leaf.poisoned_from :], None, 0.0)


def poisoned_from(gradients: Updates, separate: Sequence[str] = ()) -> dict[str, int]:
    """Returns the `poisoned` of `compare`: part of a path -> first step that is not finite."""
    parts = {f"['{name}']": gradients[name] for name in separate} or {"": gradients}
    result = {}
    for name, part in parts.items():
        bad = [
            int((~np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)).argmax())
            for leaf in map(np.asarray, jax.tree.leaves(part))
            if not np.isfinite(leaf).all()
        ]
        if bad:
            result[name] = min(bad)
    return result


def relative_text(relative: float) -> str:
    """A part of a tensor's scale."""
    return f"{100 * relative:.3g} %" if 0.001 <= relative < 10 else f"{relative:.2g}"


def _extent(
    comparison: Comparison,
    part: Callable[[LeafDistance, np.ndarray], np.ndarray],
    offset: int | None,
    above: float,
) -> Extent | None:
    differing = [(leaf, part(leaf, leaf.ulp_by_step)) for leaf in comparison.by_leaf]
    differing = [(leaf, values) for leaf, values in differing if values.max(initial=0.0) > 0]
    if not differing:
        return None

    def beyond(pair: tuple[LeafDistance, np.ndarray]) -> np.ndarray:
        return pair[1] > min(above, VISIBLE / pair[0].eps)

    chosen = [pair for pair in differing if beyond(pair).any()] or differing
    # A difference is shown by a parameter rather than by a state, and by a leaf that gets finite
    # gradients alone; rounding by the leaf with the largest distance.
    counts = (lambda path: path.startswith("params")) if above else (lambda path: True)
    params = [pair for pair in chosen if counts(pair[0].path)] or chosen
    unpoisoned = [pair for pair in params if pair[0].poisoned_from >= len(pair[0].ulp_by_step)]
    params = (unpoisoned if above else []) or params

    def relative(pair: tuple[LeafDistance, np.ndarray]) -> float:
        return float(part(pair[0], pair[0].relative_by_step).max())

    def in_ulp(pair: tuple[LeafDistance, np.ndarray]) -> float:
        return float(pair[1].max())

    leaf, values = max(params, key=relative if above else in_ulp)

    def first(pair: tuple[LeafDistance, np.ndarray]) -> tuple[int, bool]:
        steps = beyond(pair) if beyond(pair).any() else pair[1] > 0
        start = pair[0].poisoned_from if offset is None else offset
        return int(steps.argmax()) + start, pair[0] is not leaf

    earliest = min(params, key=first)
    return Extent(
        leaf=leaf.path,
        ulp=float(values.max()),
        relative=relative((leaf, values)),
        step=first(earliest)[0] + 1,
        first_leaf=earliest[0].path,
        is_integer=leaf.eps == 1.0,
    )
