"""Comparing two trajectories: identical to the bit, rounding only, or different, and from where.

Distances are in units in the last place *at the tensor's scale*: the spacing of floating-point
numbers at the largest magnitude that the tensor has had on either side up to that step. An element
near zero among large ones, or a scalar that crosses zero, is so not blown up; a tensor of tiny
numbers is held to its own scale.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from equivalence_tests.compare.trees import leaf_name
from optax_bridge.correspondence import Claim, Verdict
from optax_bridge.metadata.trees import PyTree


@dataclass(frozen=True)
class Difference:
    """The place where two trajectories first differ.

    Attributes:
      step: number of the step, the first one being 1.
      leaf: path of the leaf, e.g. `params['dense']['kernel']`.
      index: position in the leaf.
      left: the value there on the left side.
      right: the value there on the right side.
    """

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
    """The distance of one leaf from its other side.

    Attributes:
      path: of the leaf.
      eps: spacing of its dtype at 1, by which a distance in ULP becomes one relative to the
        tensor's scale; 1 of a leaf without floating-point numbers, whose distance is 0 or infinite.
      ulp_by_step: the largest distance at each step, float64 of shape (steps,).
      relative_by_step: the same over the tensor's largest magnitude so far on either side.
      poisoned_from: index of the first step with a NaN or an infinity among its inputs, the number
        of steps if all are finite.
      first: its first difference, which a distance of 0 has in the sign of a zero alone.
    """

    path: str
    eps: float
    ulp_by_step: np.ndarray
    relative_by_step: np.ndarray
    poisoned_from: int
    first: Difference


@dataclass(frozen=True)
class Comparison:
    """The outcome of comparing two trajectories.

    Attributes:
      identical: whether every bit is the same; any NaN equals any NaN.
      ulp: largest distance over all leaves and steps, in units in the last place at the tensor's
        scale; inf where one side is NaN or infinite and the other is not, or not in the same way.
      ulp_by_step: the largest distance at each step, float64 of shape (steps,).
      worst_leaf: path of the leaf with the largest distance.
      first: the first difference, None if identical.
      leaves: number of leaves compared.
      relative: the largest distance over the tensor's scale, so that runs in different dtypes can
        be set side by side.
      histogram: number of elements, over all leaves and steps, at each distance: `"same bits"`,
        `"0"` (equal but for the sign of zero), then `"<= 1"`, `"<= 2"`, `"<= 4"` and so on in ULP,
        and `"not finite"` (or integers that differ).
      by_leaf: the leaves that are not the same to the bit.
      of_one_element: whether all of these have one element.
    """

    identical: bool
    ulp: float
    ulp_by_step: np.ndarray
    worst_leaf: str
    first: Difference | None
    leaves: int
    relative: float = 0.0
    histogram: Mapping[str, int] = field(default_factory=dict)
    by_leaf: tuple[LeafDistance, ...] = ()
    of_one_element: bool = False

    @property
    def counts(self) -> str:
        """The histogram as text."""
        return ", ".join(f"{name}: {amount}" for name, amount in self.histogram.items())

    def verdict(self, claim: Claim) -> Verdict:
        """The verdict; where the claim sets no bound for rounding, `NOTICEABLE` is the bound."""
        return self.within(NOTICEABLE if claim.ulp is None else claim.ulp)

    def within(self, bound: float) -> Verdict:
        """The verdict under a bound in ULP.

        It is for 100 steps and grows in proportion for longer runs. Nothing beyond `VISIBLE` is
        rounding only.
        """
        if self.identical:
            return Verdict.IDENTICAL
        allowed = bound * max(len(self.ulp_by_step) / 100, 1.0)
        small = self.ulp <= allowed and self.relative <= VISIBLE
        return Verdict.ROUNDING if small else Verdict.DIFFERENT


# A distance of more ULP than this after 100 steps is called another algorithm where nothing was
# claimed. Rounding of a handful of operations a step adds up to well below: the entries say what
# was seen.
NOTICEABLE = 256.0

# A part of the tensor's scale; in half precision a bound in ULP alone would allow anything: 256 ULP
# of bfloat16 are twice the scale. A sixteenth is 8 ULP there, which is what 100 roundings of half
# an ULP amount to if they do not all go one way (sqrt(100) / 2 = 5), and 64 ULP in float16.
VISIBLE = 2.0**-4


def compare(
    left: PyTree, right: PyTree, *, poisoned: Mapping[str, int] | None = None
) -> Comparison:
    """Compares two trajectories.

    Args:
      left: tree of arrays of shape (steps, ...), one entry for each step.
      right: the same.
      poisoned: part of a leaf's path -> index of the first step at which what is given to such
        leaves has a NaN or an infinity; an empty part is in every path. Reports keep what comes
        from there on apart; the verdict does not.

    Returns:
      The comparison of all leaves at all steps.

    Raises:
      ValueError: the trees, shapes or dtypes do not match, with the leaf.
    """
    paths, left_leaves, right_leaves = _align(left, right)
    ulp_by_step = np.zeros(0)
    differing: list[LeafDistance] = []
    elements = set[int]()
    worst, relative = (-1.0, ""), 0.0
    histogram: dict[str, int] = {}
    for path, a, b in zip(paths, left_leaves, right_leaves, strict=True):
        distance, spacing = _distance(a, b)
        same = _same_bits(a, b)
        _count(distance, same, histogram)
        relative = max(relative, float(distance.max(initial=0.0)) * _eps(a.dtype))
        by_step = distance.max(axis=1, initial=0.0)
        ulp_by_step = np.maximum(by_step, ulp_by_step) if ulp_by_step.size else by_step
        worst = max(worst, (float(by_step.max(initial=0.0)), path))
        unequal = ~same.reshape(len(a), -1)
        if unequal.any():
            since = [step for part, step in (poisoned or {}).items() if part in path]
            first = _first(path, a, b, unequal)
            start, eps = min([len(a), *since]), _eps(a.dtype)
            differing.append(LeafDistance(path, eps, by_step, by_step * spacing, start, first))
            elements.add(a[0].size)
    first = min((leaf.first for leaf in differing), key=lambda each: each.step, default=None)
    return Comparison(
        identical=first is None,
        ulp=max(worst[0], 0.0),
        ulp_by_step=ulp_by_step,
        worst_leaf=worst[1],
        first=first,
        leaves=len(paths),
        relative=relative,
        histogram={name: histogram[name] for name in sorted(histogram, key=_bucket_order)},
        by_leaf=tuple(differing),
        of_one_element=elements == {1},
    )


def ulp_text(ulp: float) -> str:
    """A distance for people."""
    if math.isfinite(ulp):
        return f"{ulp:.3g} ULP"
    return "an infinite distance (NaN, infinity or unequal integers)"


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


def _count(distance: np.ndarray, same: np.ndarray, histogram: dict[str, int]) -> None:
    same = same.reshape(distance.shape)
    amounts = {"same bits": int(same.sum())}
    rest = distance[~same]
    amounts["not finite"] = int(np.isinf(rest).sum())
    rest = rest[np.isfinite(rest)]
    amounts["0"] = int((rest == 0).sum())
    rest = rest[rest > 0]
    powers, counts = np.unique(np.ceil(np.log2(np.maximum(rest, 1.0))), return_counts=True)
    amounts |= {f"<= {2.0**power:.0f}": int(n) for power, n in zip(powers, counts, strict=True)}
    for name, amount in amounts.items():
        if amount:
            histogram[name] = histogram.get(name, 0) + amount


def _bucket_order(name: str) -> float:
    fixed = {"same bits": -2.0, "0": -1.0, "not finite": np.inf}
    return fixed[name] if name in fixed else float(name.removeprefix("<= "))


def _first(path: str, a: np.ndarray, b: np.ndarray, unequal: np.ndarray) -> Difference:
    step = int(unequal.any(axis=1).argmax())
    index = tuple(int(i) for i in np.unravel_index(int(unequal[step].argmax()), a.shape[1:]))
    return Difference(step + 1, path, index, float(a[step][index]), float(b[step][index]))
