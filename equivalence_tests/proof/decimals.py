"""Floating-point constants, read as the numbers that they stand for."""

from typing import Any

import numpy as np
from flint import fmpq


def decimal(value: Any) -> tuple[fmpq, bool]:
    """The number that a floating-point constant stands for: the shortest decimal that rounds to it.

    What Python has computed in float64, 1 - 0.9 say, is read as a short decimal within a few units
    in the last place, if there is one.

    Args:
      value: NumPy scalar, finite.

    Returns:
      The number, and whether it rounds to the constant.
    """
    kind, wide = value.dtype.type, float(value)
    text = next(t for n in range(1, 20) if kind(float(t := f"{wide:.{n}g}")) == value)
    digits = len(text.split("e")[0].strip("-").replace(".", "").strip("0"))
    if value.dtype == np.float64 and digits > 13:
        for length in range(1, 13):
            shorter = f"{wide:.{length}g}"
            if abs(float(shorter) - wide) <= 4 * np.spacing(abs(wide)):
                return _fraction(shorter), float(shorter) == wide
    return _fraction(text), True


def _fraction(text: str) -> fmpq:
    mantissa, _, exponent = text.partition("e")
    whole, _, part = mantissa.partition(".")
    power = int(exponent or 0) - len(part)
    number = fmpq(int(whole + part))
    return number * fmpq(10) ** power if power >= 0 else number / fmpq(10) ** -power
