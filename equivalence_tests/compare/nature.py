"""The nature of a difference: rounding, or another algorithm."""

import enum
import math

import numpy as np

from equivalence_tests.compare.comparison import NOTICEABLE, Comparison
from equivalence_tests.compare.headline import (
    HALFWAY,
    is_rounding_before,
    ordinary,
    poisoned,
)

# 0.1 in float32 is 0.1 + 1.5e-9, so a learning rate given as `jnp.float32(0.1)` on one side and as
# 0.1 on the other is another one in float64, by up to half a unit in the last place of float32; a
# decay of 0.999 is so at each step and in its power at the step: a few units.
_OF_A_CONSTANT = 2.0**-21


class Nature(enum.Enum):
    """The nature of a difference."""

    NONE = "no difference"
    ROUNDING = "rounding"
    ALGORITHM = "another algorithm"


def nature(found: Comparison, wide: Comparison | None, bound: float = NOTICEABLE) -> Nature:
    """Rounding or another algorithm.

    Args:
      found: the comparison of the two sides.
      wide: that of the same runs in float64, which decides; without it the growth has to.
      bound: the distance in float64 that still counts as rounding, in ULP, for 100 steps.
    """
    if found.identical:
        return Nature.NONE
    if wide is None:
        return _by_growth(found)
    if not math.isfinite(wide.relative):
        return Nature.ALGORITHM
    few = bound * max(len(found.ulp_by_step) / 100, 1.0)
    shrank = wide.relative <= found.relative * HALFWAY and math.isfinite(found.relative)
    # Where the difference is rounding of a few units, it may be a few units in float64 too.
    return Nature.ROUNDING if shrank or wide.ulp <= few else Nature.ALGORITHM


def is_of_a_constant(found: Comparison, wide: Comparison | None, bound: float = NOTICEABLE) -> bool:
    """True if a difference is as little as a constant makes that one side holds in float32.

    A moment or a step that is lost makes another update altogether.

    Args:
      found: as for `nature`.
      wide: as for `nature`.
      bound: as for `nature`.
    """
    other = nature(found, wide, bound) is Nature.ALGORITHM
    return other and wide is not None and wide.relative <= _OF_A_CONSTANT


def explained(
    found: Comparison,
    wide: Comparison | None,
    about_wide: str = "",
    bound: float = NOTICEABLE,
) -> str:
    """The nature with what decided it, as text.

    Args:
      found: as for `nature`.
      wide: as for `nature`.
      about_wide: a remark on the float64 run, or why there is none.
      bound: as for `nature`.
    """
    made_of = nature(found, wide, bound)
    kind = made_of.value
    if wide is None:
        why = f" ({about_wide})" if about_wide else ""
        return f"{kind}, judged by its growth; there is no float64 run{why}"
    text = (
        f"{kind}, decided in float64: {_relative(found):.2g} of the scale here, "
        f"{_relative(wide):.2g} there"
    )
    before = is_rounding_before(found, wide, bound)
    if made_of is Nature.ALGORITHM and poisoned(wide) is not None and before:
        text = (
            f"{kind}, decided in float64, in what they make of a gradient that is not finite; "
            f"before it at most rounding, {_relative(found, 0.0):.2g} of the scale here, "
            f"{_relative(wide, 0.0):.2g} there"
        )
    elif is_of_a_constant(found, wide, bound):
        text += ", as little as a constant that one side holds in float32 makes, or an epsilon"
    return text + (f" ({about_wide})" if about_wide else "")


def _relative(found: Comparison, otherwise: float | None = None) -> float:
    """The largest distance on inputs that are finite; on any where there is none."""
    extent = ordinary(found)
    if extent is not None:
        return extent.relative
    return found.relative if otherwise is None else otherwise


def _by_growth(found: Comparison) -> Nature:
    """Rounding starts at a few units and grows slowly; another formula is far off at once."""
    seen = found.ulp_by_step[found.ulp_by_step > 0]
    if not seen.size:
        return Nature.ROUNDING  # signs of zeros
    if not np.isfinite(seen).all():
        return Nature.ALGORITHM
    starts_small = seen[0] <= 16
    per_step = found.ulp / max(len(found.ulp_by_step), 1)
    return Nature.ROUNDING if starts_small and per_step <= 16 else Nature.ALGORITHM
