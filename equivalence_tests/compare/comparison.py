"""Comparing two trajectories: identical to the bit, rounding only, or different, and from where.

Distances are in units in the last place *at the tensor's scale*: the spacing of floating-point
numbers at the largest magnitude that the tensor has had on either side up to that step. An element
near zero among large ones, or a scalar that crosses zero, is so not blown up; a tensor of tiny
numbers is held to its own scale.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from equivalence_tests.compare.trees import leaf_name
from optax_bridge.correspondence import Claim, Verdict
from optax_bridge.metadata.trees import PyTree


@dataclass(frozen=True)
class Difference:
    """The place where two trajectories first differ."""

    step: int
    leaf: str
    index: tuple[int, ...]
    left: float
    right: float

    def __str__(self) -> str:
        at = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return f"step {self.step}, {self.leaf}{at}: {self.left:.9g} / {self.right:.9g}"


@dataclass(frozen=True)
class LeafDistance:
    """The distance of one leaf from its other side."""

    path: str
    elements: int
    eps: float
    ulp_by_step: np.ndarray
    relative_by_step: np.ndarray
    poisoned_from: int
    first: Difference


@dataclass(frozen=True)
class Comparison:
    """The outcome of comparing two trajectories."""

    leaves: int
    ulp_by_step: np.ndarray
    worst_leaf: str
    by_leaf: tuple[LeafDistance, ...]
    histogram: Mapping[str, int]

    @property
    def identical(self) -> bool:
        """True if every bit is the same; any NaN equals any NaN."""
        return not self.by_leaf

    @property
    def ulp(self) -> float:
        """The largest distance over all leaves and steps."""
        return float(self.ulp_by_step.max(initial=0.0))

    @property
    def relative(self) -> float:
        """The largest distance over the tensor's scale, to set runs in different dtypes by."""
        farthest = (float(leaf.ulp_by_step.max()) * leaf.eps for leaf in self.by_leaf)
        return max(farthest, default=0.0)

    @property
    def first(self) -> Difference | None:
        """The first difference, None if identical."""
        return min((leaf.first for leaf in self.by_leaf), key=lambda each: each.step, default=None)

    @property
    def counts(self) -> str:
        """The histogram as text."""
        return ", ".join(f"{name}: {amount}" for name, amount in self.histogram.items())

    def verdict(self, claim: Claim) -> Verdict:
        """The verdict; where the claim sets no bound for rounding, `NOTICEABLE` is the bound."""
        return self.within(NOTICEABLE if claim.ulp is None else claim.ulp)

    def within(self, bound: float) -> Verdict:
        """The verdict under a bound in ULP. Nothing beyond `VISIBLE` is rounding only."""
        if self.identical:
            return Verdict.IDENTICAL
        small = self.ulp <= self.allowed_ulp(bound) and self.relative <= VISIBLE
        return Verdict.ROUNDING if small else Verdict.DIFFERENT

    def allowed_ulp(self, bound: float) -> float:
        """The bound for these steps: one for 100 steps, in proportion for longer runs."""
        return bound * max(len(self.ulp_by_step) / 100, 1.0)


# A distance of more ULP than this after 100 steps is called another algorithm where nothing was
# claimed. Rounding of a handful of operations a step adds up to well below: the entries say what
# was seen.
NOTICEABLE = 256.0

# A part of the tensor's scale; in half precision a bound in ULP alone would allow anything: 256 ULP
# of bfloat16 are twice the scale. A sixteenth is 8 ULP there, which is what 100 roundings of half
# an ULP amount to if they do not all go one way (sqrt(100) / 2 = 5), and 64 ULP in float16.
VISIBLE = 2.0**-4

# Buckets of the histogram that are not powers of two.
_SAME_BITS, _ZERO = -2.0, -1.0
_BUCKETS = {_SAME_BITS: "same bits", _ZERO: "0", math.inf: "not finite"}


@np.errstate(all="ignore")  # NaN has no distance
def compare(
    left: PyTree, right: PyTree, *, poisoned: Mapping[str, int] | None = None
) -> Comparison:
    """Compares two trajectories."""
    paths, left_leaves, right_leaves = _align(left, right)
    by_step: list[np.ndarray] = []
    differing: list[LeafDistance] = []
    histogram = Counter[float]()
    for path, a, b in zip(paths, left_leaves, right_leaves, strict=True):
        distance, spacing = _distance(a, b)
        unequal = ~_same_bits(a, b).reshape(distance.shape)
        histogram[_SAME_BITS] += unequal.size - int(unequal.sum())
        histogram.update(_powers(distance[unequal]))
        by_step.append(distance.max(axis=1, initial=0.0))
        if unequal.any():
            since = [step for part, step in (poisoned or {}).items() if part in path]
            far, start = by_step[-1], min([len(a), *since])
            first, eps = _first(path, a, b, unequal), _eps(a.dtype)
            differing.append(LeafDistance(path, a[0].size, eps, far, far * spacing, start, first))
    farthest = (float(far.max(initial=0.0)) for far in by_step)
    return Comparison(
        leaves=len(paths),
        ulp_by_step=np.max(by_step, axis=0) if by_step else np.zeros(0),
        worst_leaf=max(zip(farthest, paths, strict=True), default=(0.0, ""))[1],
        by_leaf=tuple(differing),
        histogram={
            _BUCKETS.get(power, f"<= {2.0**power:.0f}"): histogram[power]
            for power in sorted(histogram)
            if histogram[power]
        },
    )


def as_data(comparison: Comparison, wide: Comparison | None) -> dict[str, object]:
    """A comparison as JSON has it, and the same runs in float64 where they were made."""
    return {
        "leaves": comparison.leaves,
        "ulp": as_json(comparison.ulp),
        "ulp_by_step": [as_json(float(ulp)) for ulp in comparison.ulp_by_step],
        "worst_leaf": comparison.worst_leaf,
        "relative": as_json(comparison.relative),
        "relative_in_float64": None if wide is None else as_json(wide.relative),
    }


def as_json(value: float) -> float | str:
    """A distance for JSON, which has neither infinity nor NaN: those as text."""
    return value if math.isfinite(value) else str(value)


def _align(left: PyTree, right: PyTree) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
    sides = [dict(jax.tree_util.tree_leaves_with_path(tree)) for tree in (left, right)]
    for path in [*sides[0], *sides[1]]:
        if path not in sides[0] or path not in sides[1]:
            has, lacks = ("left", "right") if path in sides[0] else ("right", "left")
            raise ValueError(
                f"{leaf_name(path)}: the {has} side has this leaf, the {lacks} side lacks it"
            )
    for path, a in sides[0].items():
        b = sides[1][path]
        for what in ("shape", "dtype"):
            if getattr(a, what) != getattr(b, what):
                values = f"{getattr(a, what)} on the left, {getattr(b, what)} on the right"
                raise ValueError(f"{leaf_name(path)}: {what} {values}")
    paths = list(sides[0])
    a, b = ([np.asarray(side[path]) for path in paths] for side in sides)
    return [leaf_name(path) for path in paths], a, b


def _same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    integer = np.dtype(f"u{a.dtype.itemsize}")
    return (a.view(integer) == b.view(integer)) | (_is_nan(a) & _is_nan(b))


def _is_nan(a: np.ndarray) -> np.ndarray:
    return a != a  # true of NaN alone; bfloat16 and integers can do it too


def _distance(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ULP at the tensor's scale, of shape (steps, elements), and what one is over the scale."""
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return np.where(a == b, 0.0, np.inf).reshape(len(a), -1), np.ones(len(a))
    info = jnp.finfo(a.dtype)
    x, y = (side.astype(np.float64).reshape(len(side), -1) for side in (a, b))
    finite = np.isfinite(x) & np.isfinite(y)
    x_or_zero, y_or_zero = (np.where(np.isfinite(side), side, 0.0) for side in (x, y))
    larger = np.maximum(np.abs(x_or_zero), np.abs(y_or_zero))
    so_far = np.maximum.accumulate(larger.max(axis=1, initial=0.0, keepdims=True), axis=0)
    scale = np.maximum(so_far, float(info.smallest_normal))
    spacing = 2.0 ** np.floor(np.log2(scale)) * float(info.eps)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    gap = np.abs(x_or_zero / spacing - y_or_zero / spacing)
    return np.where(same, 0.0, np.where(finite, gap, np.inf)), (spacing / scale)[:, 0]


def _eps(dtype: DTypeLike) -> float:
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.floating) else 1.0


def _powers(distance: np.ndarray) -> dict[float, int]:
    """The number of elements within each power of two; infinity counts as one."""
    powers = np.where(distance == 0, _ZERO, np.ceil(np.log2(np.maximum(distance, 1.0))))
    return {float(power): int(n) for power, n in zip(*np.unique_counts(powers), strict=True)}


def _first(path: str, a: np.ndarray, b: np.ndarray, unequal: np.ndarray) -> Difference:
    step = int(unequal.any(axis=1).argmax())
    index = tuple(int(i) for i in np.unravel_index(int(unequal[step].argmax()), a.shape[1:]))
    return Difference(step + 1, path, index, float(a[step][index]), float(b[step][index]))
