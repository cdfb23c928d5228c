"""A comparison in one line: what differs, from which step, and by how much of its scale.

A NaN or an infinity among the gradients leaves nothing to measure after it, so what comes before
speaks first, and what such inputs do is told apart.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from equivalence_tests.compare.comparison import (
    NOTICEABLE,
    VISIBLE,
    Comparison,
    LeafDistance,
    Verdict,
)


@dataclass(frozen=True)
class Extent:
    """The distance of two trajectories in a part of what was compared.

    Attributes:
      leaf: path of the leaf that is farthest apart, a parameter's where one is.
      ulp: its largest distance, in ULP at the tensor's scale.
      relative: the largest one over the tensor's largest magnitude so far.
      step: number of the first step, the first being 1, at which any leaf is apart by more than
        what was asked for.
      first_leaf: path of that leaf.
      is_integer: whether the leaf has no floating-point numbers.
    """

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


def ordinary(found: Comparison, above: float = 0.0) -> Extent | None:
    """The extent where no input had been a NaN or an infinity; None if nothing is apart.

    Args:
      found: the comparison.
      above: a step counts as the first one from this distance on, in ULP.
    """
    return _extent(found, lambda leaf, values: values[: leaf.poisoned_from], 0, above)


def poisoned(found: Comparison) -> Extent | None:
    """The extent from the first NaN or infinity among the inputs on; None if nothing is apart."""
    return _extent(found, lambda leaf, values: values[leaf.poisoned_from :], None, 0.0)


def poisoned_from(gradients: Any, apart: Sequence[str] = ()) -> dict[str, int]:
    """Returns the `poisoned` of `compare`: part of a path -> first step that is not finite.

    Args:
      gradients: tree of arrays of shape (steps, ...).
      apart: keys at the top of the tree whose parts have nothing to do with one another; else what
        one leaf has may come to all, as through a norm of all of them.
    """
    parts = {f"['{name}']": gradients[name] for name in apart} or {"": gradients}
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


# Rounding shrinks with the spacing of the numbers, by 2^29 from float32 to float64; what another
# formula gives stays as large as it is. Halfway, in powers of two, stands between them.
HALFWAY = 2.0**-14


def is_rounding_before(found: Comparison, wide: Comparison, bound: float) -> bool:
    """True if what is apart on finite inputs is as little in float64 as rounding is.

    Args:
      found: the comparison.
      wide: that of the same runs in float64.
      bound: the distance in float64 that still counts as rounding, in ULP, for 100 steps.
    """
    extent, usual = ordinary(found), ordinary(wide)
    if usual is None:
        return True
    few = bound * max(len(wide.ulp_by_step) / 100, 1.0)
    shrank = extent is not None and usual.relative <= extent.relative * HALFWAY
    return math.isfinite(usual.relative) and (shrank or usual.ulp <= few)


def headline(
    found: Comparison,
    verdict: Verdict,
    bound: float | None = None,
    wide: Comparison | None = None,
) -> str:
    """Returns the line that a reader sees first.

    Args:
      found: the comparison.
      verdict: under the claim, or the bound.
      bound: the distance that counts as rounding, in ULP.
      wide: the comparison of the same runs in float64, which shows whether a small distance is
        rounding; without it the bound alone does.
    """
    if verdict is Verdict.IDENTICAL:
        return "identical at every step"
    above = NOTICEABLE if bound is None else bound
    is_different = verdict is Verdict.DIFFERENT
    usual, apart = ordinary(found, above if is_different else 0.0), poisoned(found)
    if usual is None and apart is None:
        return f"{verdict.value}: the signs of zeros"
    allowed = above * max(len(found.ulp_by_step) / 100, 1.0)
    is_small = usual is not None and usual.ulp <= allowed and usual.relative <= VISIBLE
    if is_small and is_different and wide is not None:
        is_small = is_rounding_before(found, wide, above)
        if not is_small:  # another algorithm from where it begins, however little that is
            usual = ordinary(found, _ANY)
    if usual is not None and not (is_different and apart is not None and is_small):
        return f"{verdict.value}: {_where(usual)}"
    before = "" if usual is None else f"; before it by {usual.ulp:.3g} ULP at most"
    assert apart is not None
    return f"{verdict.value}, but not before {_POISON}: {_where(apart)}{before}"


def poisoned_line(found: Comparison, text: str) -> str:
    """Returns the effect of gradients that are not finite; empty where it adds nothing new.

    Args:
      found: the comparison.
      text: the headline.
    """
    apart, usual = poisoned(found), ordinary(found)
    if apart is None or usual is None or apart.ulp <= 4 * usual.ulp or _POISON in text:
        return ""
    return f"after {_POISON}: {_where(apart)}"


_ANY = math.ulp(0.0)  # apart by anything, where a parameter is one of those
_POISON = "a gradient that is not finite"


def relative_text(relative: float) -> str:
    """A part of a tensor's scale."""
    return f"{100 * relative:.3g} %" if 0.001 <= relative < 10 else f"{relative:.2g}"


def _where(extent: Extent) -> str:
    also = "" if extent.leaf == extent.first_leaf else f", first {extent.first_leaf}"
    return f"{extent.leaf} by {extent}, from step {extent.step}{also}"


def _extent(
    found: Comparison,
    part: Callable[[LeafDistance, np.ndarray], np.ndarray],
    offset: int | None,
    above: float,
) -> Extent | None:
    apart = [(leaf, part(leaf, leaf.ulp_by_step)) for leaf in found.by_leaf]
    apart = [(leaf, values) for leaf, values in apart if values.max(initial=0.0) > 0]
    if not apart:
        return None

    def beyond(pair: tuple[LeafDistance, np.ndarray]) -> np.ndarray:
        return pair[1] > min(above, VISIBLE / pair[0].eps)

    chosen = [pair for pair in apart if beyond(pair).any()] or apart
    # What is trained says more than what trains it, and what stays finite more than what does not;
    # rounding is held to its bound wherever it is.
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
