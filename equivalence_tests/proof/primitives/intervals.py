"""Real values within an interval, and how far from them the computed ones may be.

Endpoints and errors are FLINT's balls, so a bound is not itself rounded in the wrong direction.
Beside the absolute error goes a relative one where it is known, which is the sharper of the two for
products, quotients and roots.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from flint import arb

from equivalence_tests.proof.dtypes import DType
from equivalence_tests.proof.errors import Unclear

# Functions that XLA approximates are taken for good to so many units in the last place.
FUNCTION_ULP = 4
_INF = arb("inf")
_ZERO = arb(0)


@dataclass(frozen=True)
class Precision:
    """The rounding of a floating-point dtype."""

    half: arb
    tiny: arb
    huge: float

    @staticmethod
    @functools.cache
    def of(dtype: DType) -> "Precision":
        """That of a floating-point dtype."""
        info = jnp.finfo(dtype)
        return Precision(arb(float(info.eps)) / 2, arb(float(info.tiny)), float(info.max))

    def rounding(self, size: arb, units: int) -> arb:
        """Returns the largest rounding of results of at most that magnitude."""
        upper = float(size.abs_upper())
        if not upper < self.huge:
            return _INF
        octave = math.frexp(upper * (1 + 1e-15))[1] - 1
        once = self.half * arb(2) ** octave if upper else _ZERO
        return once + size * self.half * (units - 1) + self.tiny


class Rounded:
    """A real value within an interval, computed with an error."""

    __slots__ = ("error", "high", "low", "nonneg", "relative")

    def __init__(self, low: arb, high: arb, error: arb, relative: arb | None, nonneg: bool = False):
        """Takes over the smaller error of the two."""
        self.low, self.high, self.relative = low, high, relative
        if relative is not None:
            error = error.min(relative * abs(low).max(abs(high)))
        self.error = error
        self.nonneg = nonneg or bool(low >= error)

    @staticmethod
    def exact(low: arb | float, high: arb | float | None = None) -> "Rounded":
        """A value without an error."""
        first = arb(low)
        return Rounded(first, first if high is None else arb(high), _ZERO, _ZERO)

    @property
    def size(self) -> arb:
        """The largest magnitude of the real value."""
        return abs(self.low).max(abs(self.high))

    @property
    def least_size(self) -> arb:
        """The least magnitude of the real value."""
        if self.low > 0:
            return self.low
        return -self.high if self.high < 0 else _ZERO

    def as_computed(self) -> "Rounded":
        """The computed value, taken for an input: a wider interval, without an error."""
        low = self.low - self.error
        return Rounded.exact(low.max(_ZERO) if self.nonneg else low, self.high + self.error)

    def is_below(self, other: "Rounded") -> bool | None:
        """True if the computed value is less than the other one; None if that is open."""
        slack = self.error + other.error
        if self.high + slack < other.low:
            return True
        return False if self.low - slack >= other.high else None

    def is_equal(self, other: "Rounded") -> bool | None:
        """True if the computed values are equal; None if that is open."""
        if self.is_below(other) or other.is_below(self):
            return False
        both = (self, other)
        exact = all(each.low == each.high and each.error == 0 for each in both)
        return True if exact and self.low == other.low else None


def after_rounding(
    ends: Sequence[arb],
    error: arb,
    relative: arb | None,
    precision: Precision,
    units: int = 1,
    nonneg: bool = False,
) -> Rounded:
    """The result of an operation, after its own rounding."""
    low, high = least(ends), most(ends)
    size = abs(low).max(abs(high)) + error
    plain = Rounded(low, high, error, None)
    if relative is not None:
        # Below this a result may be rounded to 0, which is no small relative error.
        safe = plain.least_size * (1 - relative) > precision.tiny
        relative = (1 + relative) * (1 + precision.half) ** units - 1 if safe else None
    total = error + precision.rounding(size, units)
    return Rounded(low, high, total, relative, nonneg)


def least(values: Sequence[arb]) -> arb:
    """The smallest."""
    result = values[0]
    for value in values[1:]:
        result = result.min(value)
    return result


def most(values: Sequence[arb]) -> arb:
    """The largest."""
    return -least([-value for value in values])


def add(a: Rounded, b: Rounded, precision: Precision) -> Rounded:
    """The sum."""
    same_sign = (a.low >= 0 and b.low >= 0) or (a.high <= 0 and b.high <= 0)
    relative = _larger(a, b) if same_sign else None
    ends, nonneg = [a.low + b.low, a.high + b.high], a.nonneg and b.nonneg
    return after_rounding(ends, a.error + b.error, relative, precision, nonneg=nonneg)


def neg(a: Rounded) -> Rounded:
    """The negative."""
    return Rounded(-a.high, -a.low, a.error, a.relative)


def _both(a: Rounded, b: Rounded) -> arb | None:
    """The relative error of a product, before its rounding."""
    if a.relative is None or b.relative is None:
        return None
    return (1 + a.relative) * (1 + b.relative) - 1


def mul(a: Rounded, b: Rounded, precision: Precision) -> Rounded:
    """The product."""
    error = a.size * b.error + b.size * a.error + a.error * b.error
    if a is b:
        ends = [a.least_size**2, a.size**2]
    else:
        ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return after_rounding(
        ends, error, _both(a, b), precision, nonneg=a is b or (a.nonneg and b.nonneg)
    )


def div(a: Rounded, b: Rounded, precision: Precision) -> Rounded:
    """The quotient, which XLA may make a product with the inverse."""
    smallest = b.least_size
    if not smallest > b.error:
        return Rounded(-_INF, _INF, _INF, None)
    ends = [x / y for x in (a.low, a.high) for y in (b.low, b.high)]
    size = most([abs(end) for end in ends])
    error = (a.error + size * b.error) / (smallest - b.error)
    relative = None
    if a.relative is not None and b.relative is not None and b.relative < 1:
        relative = (1 + a.relative) / (1 - b.relative) - 1
    return after_rounding(ends, error, relative, precision, 2, a.nonneg and b.nonneg)


def sqrt(a: Rounded, precision: Precision) -> Rounded:
    """The root."""
    if not a.nonneg:
        raise Unclear("a root of what may be less than 0, were it by rounding")
    low, high = a.low.max(_ZERO).sqrt(), a.high.max(_ZERO).sqrt()
    error = a.error.sqrt()
    if a.low > a.error:
        error = a.error / (a.low.sqrt() + (a.low - a.error).sqrt())
    relative = None
    if a.relative is not None and a.relative < 1:
        relative = 1 - (1 - a.relative).sqrt()
    return after_rounding([low, high], error, relative, precision, nonneg=True)


def power(a: Rounded, b: Rounded, precision: Precision) -> Rounded:
    """A power of something positive, or a whole one."""
    exponent = b.low.unique_fmpz() if b.low == b.high and b.error == 0 else None
    if not a.low > a.error:
        if exponent is None or int(exponent) < 0 or (a.low < 0 and int(exponent) > 64):
            raise Unclear("a power of what may be 0 or less")
        if a.low >= 0:
            size, ends = a.size, [a.low ** int(exponent), a.high ** int(exponent)]
            error = (size + a.error) ** int(exponent) - size ** int(exponent)
            return after_rounding(ends, error, None, precision, 2 * FUNCTION_ULP, a.nonneg)
        result = Rounded.exact(1)
        for _ in range(int(exponent)):
            result = mul(result, a, precision)
        ends, units = [result.low, result.high], 2 * FUNCTION_ULP
        return after_rounding(ends, result.error, None, precision, units, int(exponent) % 2 == 0)
    ends = [(x.log() * y).exp() for x in (a.low, a.high) for y in (b.low, b.high)]
    relative = a.error / a.low if a.relative is None else a.relative.min(a.error / a.low)
    logs = abs(a.low.log()).max(abs(a.high.log()))
    wrong = b.size * -(-relative).log1p() + (logs - (-relative).log1p()) * b.error
    factor = wrong.expm1()
    size = most([abs(end) for end in ends])
    return after_rounding(ends, size * factor, factor, precision, 2 * FUNCTION_ULP)


def monotone(
    function: Callable[[arb], arb], slope: Callable[[arb], arb]
) -> Callable[[Rounded, Precision], Rounded]:
    """A rising function."""

    def of(a: Rounded, precision: Precision) -> Rounded:
        around = (a.low - a.error).union(a.high + a.error)
        steepest = abs(slope(around)).abs_upper()
        error = a.error * steepest if a.error != 0 else _ZERO
        if not error.is_finite():
            return Rounded(-_INF, _INF, _INF, None)
        ends = [function(a.low), function(a.high)]
        return after_rounding(ends, error, None, precision, 2 * FUNCTION_ULP)

    return of


def wave(function: Callable[[arb], arb]) -> Callable[[Rounded, Precision], Rounded]:
    """Sine or cosine, whose slope is 1 at most."""

    def of(a: Rounded, precision: Precision) -> Rounded:
        value = function(a.low.union(a.high))
        ends = [value.lower(), value.upper()]
        return after_rounding(ends, a.error, None, precision, 2 * FUNCTION_ULP)

    return of


def _larger(a: Rounded, b: Rounded) -> arb | None:
    """The larger of both relative errors."""
    if a.relative is None or b.relative is None:
        return None
    return a.relative.max(b.relative)


def largest(a: Rounded, b: Rounded) -> Rounded:
    """The larger of two."""
    low, high = a.low.max(b.low), a.high.max(b.high)
    return Rounded(low, high, a.error.max(b.error), None, a.nonneg or b.nonneg)


def smallest(a: Rounded, b: Rounded) -> Rounded:
    """The smaller of two."""
    low, high = a.low.min(b.low), a.high.min(b.high)
    return Rounded(low, high, a.error.max(b.error), None, a.nonneg and b.nonneg)


def either(a: Rounded, b: Rounded) -> Rounded:
    """One of two."""
    low, high = a.low.min(b.low), a.high.max(b.high)
    return Rounded(low, high, a.error.max(b.error), _larger(a, b), a.nonneg and b.nonneg)


def magnitude(a: Rounded) -> Rounded:
    """The absolute value."""
    return Rounded(a.least_size, a.size, a.error, a.relative, True)
