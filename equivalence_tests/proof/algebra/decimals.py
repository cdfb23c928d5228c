# pyright: strict
"""Floating-point constants, read as the numbers that they stand for."""

from fractions import Fraction
from typing import Any

import numpy as np
from flint import fmpq

_MOST_DENOMINATOR = 99


def decimal(value: Any) -> tuple[fmpq, bool]:
    """The number that a floating-point constant stands for: the shortest decimal that rounds to it.

    What Python has computed in float64, 1 - 0.9 say, is read as a short decimal within a few units
    in the last place, if there is one; what has all digits of its dtype, as a simple fraction.

    Args:
      value: NumPy scalar, finite.

    Returns:
      The number, and whether it rounds to the constant.
    """
    kind, wide = value.dtype.type, float(value)
    with np.errstate(over="ignore"):  # of the largest number, some short decimals are too large
        text = next(t for n in range(1, 20) if kind(float(t := f"{wide:.{n}g}")) == value)
    digits = len(text.split("e")[0].strip("-").replace(".", "").strip("0"))
    if value.dtype == np.float64 and digits > 13:
        for length in range(1, 13):
            shorter = f"{wide:.{length}g}"
            if abs(float(shorter) - wide) <= 4 * np.spacing(abs(wide)):
                return _fraction(shorter), float(shorter) == wide
        return (_simple(value) or _fraction(text)), True
    if digits > 6 and value.dtype == np.float32:
        return (_simple(value) or _fraction(text)), True
    return _fraction(text), True


def _simple(value: Any) -> fmpq | None:
    """A fraction with a small denominator, times a power of ten, that rounds to the constant.

    A third of 0.1, say. None if there is none.
    """
    exact = Fraction(float(value))
    scale = Fraction(10) ** (1 - len(str(int(1 / abs(exact))))) if abs(exact) < 1 else Fraction(1)
    near = (exact / scale).limit_denominator(_MOST_DENOMINATOR) * scale
    if near.denominator == 1 or value.dtype.type(float(near)) != value:
        return None
    return fmpq(near.numerator, near.denominator)


def _fraction(text: str) -> fmpq:
    mantissa, _, exponent = text.partition("e")
    digits, _, part = mantissa.partition(".")
    power = int(exponent or 0) - len(part)
    number = fmpq(int(digits + part))
    return number * fmpq(10) ** power if power >= 0 else number / fmpq(10) ** -power
