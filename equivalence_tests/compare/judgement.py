"""Judges a comparison: rounding or another algorithm, with a headline of the difference."""

import enum
import math
from dataclasses import dataclass

import numpy as np

from equivalence_tests.compare.comparison import NOTICEABLE, VISIBLE, Comparison
from equivalence_tests.compare.extent import extent_after_poison, extent_before_poison
from optax_bridge.correspondence import Verdict

# Rounding shrinks with the spacing of the numbers, by 2^29 from float32 to float64; what another
# formula gives stays equally large. Halfway, in powers of two, stands between them.
_HALFWAY = 2.0**-14

# 0.1 in float32 is 0.1 + 1.5e-9, so a learning rate given as `jnp.float32(0.1)` on one side and as
# 0.1 on the other is another one in float64, by up to half a unit in the last place of float32; a
# decay of 0.999 is so at each step and in its power at the step: a few units.
_OF_A_CONSTANT = 2.0**-21

_ANY = math.ulp(0.0)  # apart by anything, where a parameter is one of those
_POISON = "a gradient that is not finite"


class Nature(enum.Enum):
    """The nature of a difference."""

    NONE = "no difference"
    ROUNDING = "rounding"
    ALGORITHM = "another algorithm"


@dataclass(frozen=True)
class Judgement:
    """A comparison, its verdict, and the evidence on whether a difference is rounding."""

    comparison: Comparison
    verdict: Verdict
    bound: float | None = None
    wide: Comparison | None = None
    about_wide: str = ""
    few: float = NOTICEABLE

    @property
    def nature(self) -> Nature:
        """Rounding or another algorithm."""
        narrow, wide = self.comparison, self.wide
        if narrow.identical:
            return Nature.NONE
        if wide is None:
            return _by_growth(narrow)
        if not math.isfinite(wide.relative):
            return Nature.ALGORITHM
        shrank = wide.relative <= narrow.relative * _HALFWAY and math.isfinite(narrow.relative)
        # Where the difference is rounding of a few units, it may be a few units in float64 too.
        is_few = wide.ulp <= narrow.allowed_ulp(self.few)
        return Nature.ROUNDING if shrank or is_few else Nature.ALGORITHM

    @property
    def is_of_a_constant(self) -> bool:
        """True if a constant that one side holds in float32 would explain the difference."""
        wide = self.wide
        is_other = self.nature is Nature.ALGORITHM
        return is_other and wide is not None and wide.relative <= _OF_A_CONSTANT

    @property
    def headline(self) -> str:
        """The first line of a report: the verdict, the leaf that differs, its step and distance."""
        if self.verdict is Verdict.IDENTICAL:
            return "identical at every step"
        above = NOTICEABLE if self.bound is None else self.bound
        is_different = self.verdict is Verdict.DIFFERENT
        narrow = self.comparison
        usual = extent_before_poison(narrow, above if is_different else 0.0)
        poison = extent_after_poison(narrow)
        if usual is None and poison is None:
            return f"{self.verdict.value}: the signs of zeros"
        is_small = (
            usual is not None
            and usual.ulp <= narrow.allowed_ulp(above)
            and usual.relative <= VISIBLE
        )
        if is_small and is_different and self.wide is not None:
            is_small = self._is_rounding_before_poison(above)
            if not is_small:  # another algorithm from where it begins, however little that is
                usual = extent_before_poison(narrow, _ANY)
        if poison is None or (usual is not None and not (is_different and is_small)):
            assert usual is not None
            return f"{self.verdict.value}: {usual.place}"
        before = "" if usual is None else f"; before it by at most {usual.ulp:.3g} ULP"
        return f"{self.verdict.value}, but not before {_POISON}: {poison.place}{before}"

    @property
    def after_poison(self) -> str:
        """The effect of gradients that are not finite; empty where it adds nothing new."""
        poison, usual = extent_after_poison(self.comparison), extent_before_poison(self.comparison)
        if (
            poison is None
            or usual is None
            or poison.ulp <= 4 * usual.ulp
            or _POISON in self.headline
        ):
            return ""
        return f"after {_POISON}: {poison.place}"

    @property
    def explanation(self) -> str:
        """The nature with its grounds."""
        nature, wide = self.nature, self.wide
        remark = f" ({self.about_wide})" if self.about_wide else ""
        if wide is None:
            why = self.about_wide or "there is no float64 run"
            return f"{nature.value}, judged by growth alone: {why}"
        narrow = self.comparison
        if (
            nature is Nature.ALGORITHM
            and extent_after_poison(wide) is not None
            and self._is_rounding_before_poison(self.few)
        ):
            return (
                f"{nature.value}, decided in float64, in how they handle {_POISON}; before it at "
                f"most rounding, {_relative(narrow, 0.0):.2g} of the scale, in float64 "
                f"{_relative(wide, 0.0):.2g}{remark}"
            )
        constant = ", as little as an epsilon makes, or a constant that one side holds in float32"
        return (
            f"{nature.value}, decided in float64: {_relative(narrow, narrow.relative):.2g} of the "
            f"scale, in float64 {_relative(wide, wide.relative):.2g}"
            f"{constant if self.is_of_a_constant else ''}{remark}"
        )

    def _is_rounding_before_poison(self, few: float) -> bool:
        """True if the difference on finite inputs is, in float64, as small as rounding."""
        assert self.wide is not None
        extent, usual = extent_before_poison(self.comparison), extent_before_poison(self.wide)
        if usual is None:
            return True
        shrank = extent is not None and usual.relative <= extent.relative * _HALFWAY
        is_few = usual.ulp <= self.wide.allowed_ulp(few)
        return math.isfinite(usual.relative) and (shrank or is_few)


def _relative(comparison: Comparison, otherwise: float) -> float:
    """The largest distance on inputs that are finite."""
    extent = extent_before_poison(comparison)
    return otherwise if extent is None else extent.relative


def _by_growth(comparison: Comparison) -> Nature:
    """Rounding starts at a few units and grows slowly; another formula is far off at once."""
    seen = comparison.ulp_by_step[comparison.ulp_by_step > 0]
    if not seen.size:
        return Nature.ROUNDING  # signs of zeros
    if not np.isfinite(seen).all():
        return Nature.ALGORITHM
    per_step = comparison.ulp / max(len(comparison.ulp_by_step), 1)
    return Nature.ROUNDING if seen[0] <= 16 and per_step <= 16 else Nature.ALGORITHM
