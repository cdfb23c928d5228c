"""Kinds of dtypes, and the numbers that they hold.

Of signed integers with 32 bits or more a proof assumes, and says so, that they do not overflow: a
count of steps does not get there. All others wrap round within a few hundred steps, or at 0, so
what they hold is the number only where it is sure to fit. A floating-point constant is read as the
decimal that it means.
"""

from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flint import arb, fmpq
from jax.typing import DTypeLike

Json = dict[str, Any]  # plain data, as JSON holds it
DType = np.dtype  # or that of typed random keys, which NumPy does not know
NO_OVERFLOW = "whole numbers do not overflow"
# What overflows at fewer steps than this is not assumed away: a product of two counts, say.
FEWEST_STEPS = 2**24


class Aval(Protocol):
    """The shape and the dtype of an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        ...

    @property
    def dtype(self) -> DType:
        """The dtype of its elements."""
        ...


def is_float(dtype: DTypeLike) -> bool:
    """True if elements are rounded real numbers."""
    return jnp.issubdtype(dtype, jnp.floating)


def is_integer(dtype: DTypeLike) -> bool:
    """True if elements are integers, which booleans are not."""
    return jnp.issubdtype(dtype, jnp.integer)


def is_complex(dtype: DTypeLike) -> bool:
    """True if elements are complex numbers."""
    return jnp.issubdtype(dtype, jnp.complexfloating)


def is_key(dtype: DTypeLike) -> bool:
    """True if elements are typed random keys, which are no numbers."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def is_discrete(dtype: DTypeLike) -> bool:
    """True if elements are neither real nor complex numbers: integers or booleans, for example."""
    return not jnp.issubdtype(dtype, jnp.inexact)


def is_unsigned(dtype: DTypeLike) -> bool:
    """True if elements are integers of 0 or more."""
    return jnp.issubdtype(dtype, jnp.unsignedinteger)


def is_wide(dtype: DTypeLike) -> bool:
    """True if it is a signed integer dtype with 32 bits or more."""
    return jnp.issubdtype(dtype, jnp.signedinteger) and jnp.iinfo(dtype).bits >= 32


def represents_integers(source: DTypeLike, target: DTypeLike) -> bool:
    """True if every number of an integer or boolean dtype is one of the other."""
    if source == np.bool_ or source == target:
        return True
    source_info, target_info = jnp.iinfo(source), jnp.iinfo(target)
    return target_info.min <= source_info.min and source_info.max <= target_info.max


def is_in_range(number: int, dtype: DTypeLike) -> bool:
    """True if an integer dtype has a number."""
    info = jnp.iinfo(dtype)
    return info.min <= number <= info.max


def wrapped(number: int, dtype: DTypeLike) -> int:
    """The number of an integer dtype that arithmetic makes of a whole number."""
    info = jnp.iinfo(dtype)
    return (number - int(info.min)) % 2**info.bits + int(info.min)


def represents_values(narrow: DTypeLike, wide: DTypeLike) -> bool:
    """True if every value of a floating-point or boolean dtype is one of the other."""
    if narrow == np.bool_:
        return jnp.issubdtype(wide, jnp.number)
    if not (is_float(narrow) and is_float(wide)):
        return False
    narrow_info, wide_info = jnp.finfo(narrow), jnp.finfo(wide)
    return (
        wide_info.bits > narrow_info.bits
        and wide_info.nmant >= narrow_info.nmant
        and wide_info.maxexp >= narrow_info.maxexp
        and wide_info.minexp <= narrow_info.minexp
    )


_MOST_DENOMINATOR, _MOST_DIGITS = 99, 5


class Meaning(NamedTuple):
    """The number that a floating-point constant means.

    Attributes:
      number: a rational number.
      order: 1, or 2 of a constant that means the square root of that.
      exact: whether it rounds to the constant.
    """

    number: fmpq
    order: int
    exact: bool

    @property
    def ball(self) -> arb:
        """The number itself, or that root of it."""
        return arb(self.number) if self.order == 1 else arb(self.number).sqrt()


def meaning(value: np.ndarray | np.generic) -> Meaning:
    """The number that a floating-point constant means: the shortest decimal that rounds to it.

    What Python has computed in float64, 1 - 0.9 say, is read as a short decimal within a few units
    in the last place, if there is one; what has all digits of its dtype, as a simple fraction or
    the root of a short decimal or of the inverse of one.

    Args:
      value: NumPy scalar, finite.
    """
    kind, wide = value.dtype.type, float(value)
    with np.errstate(over="ignore"):  # of the largest number, some short decimals are too large
        text = next(t for n in range(1, 20) if kind(float(t := f"{wide:.{n}g}")) == value)
    digits = len(text.split("e")[0].strip("-").replace(".", "").strip("0"))
    if value.dtype == np.float64 and digits > 13:
        for length in range(1, 13):
            shorter = f"{wide:.{length}g}"
            if abs(float(shorter) - wide) <= 4 * np.spacing(abs(wide)):
                return Meaning(_fraction(shorter), 1, float(shorter) == wide)
    if digits > {np.float64: 13, np.float32: 6}.get(kind, 99):
        if (simple := _simple(value)) is not None:
            return Meaning(simple, 1, True)
        if (square := _square(value)) is not None:
            return Meaning(square, 2, True)
    return Meaning(_fraction(text), 1, True)


def _square(value: np.ndarray | np.generic) -> fmpq | None:
    """A short decimal, or the inverse of one, whose root rounds to the constant; else None."""
    square = float(value) ** 2
    if value < 0 or not 1e-300 < square < 1e300:
        return None
    for near, inverted in ((square, False), (1 / square, True)):
        decimal = _fraction(f"{near:.{_MOST_DIGITS}g}")
        number = 1 / decimal if inverted else decimal
        if value.dtype.type(float(int(number.p) / int(number.q)) ** 0.5) == value:
            return number
    return None


def _simple(value: np.ndarray | np.generic) -> fmpq | None:
    """A fraction with a small denominator, times a power of ten, that rounds to the constant.

    For example a third of 0.1. None without such a fraction.
    """
    exact = Fraction(float(value))
    scale = Fraction(10) ** (1 - len(str(int(1 / abs(exact))))) if abs(exact) < 1 else Fraction(1)
    near = (exact / scale).limit_denominator(_MOST_DENOMINATOR) * scale
    digits = len(str(abs(near.numerator)).rstrip("0"))
    if near.denominator == 1 or digits > _MOST_DIGITS or value.dtype.type(float(near)) != value:
        return None
    return fmpq(near.numerator, near.denominator)


def _fraction(text: str) -> fmpq:
    mantissa, _, exponent = text.partition("e")
    digits, _, part = mantissa.partition(".")
    power = int(exponent or 0) - len(part)
    number = fmpq(int(digits + part))
    return number * fmpq(10) ** power if power >= 0 else number / fmpq(10) ** -power
