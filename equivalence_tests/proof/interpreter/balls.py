"""Floating-point numbers as balls of python-flint, and how balls are compared."""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import flint
import numpy as np
from flint import arb, fmpq

from equivalence_tests.proof.errors import Unclear, Undefined

Array = np.ndarray
# Numbers that agree so far are one: 0.1 * 0.1 and 0.01, which balls cannot show to be equal.
_TIE = arb("1e-40")
_SHORT = 5  # digits


def precise(bits: int = 200) -> Any:
    """Returns a context in which balls have so many bits."""
    return flint.ctx.workprec(bits)


def order(a: Any, b: Any) -> int:
    """Returns -1, 0 or 1 as a number, or a ball, is less than another, equal or more."""
    if isinstance(a, arb) and not (a.is_exact() and b.is_exact()) and a.overlaps(b):
        if a.is_finite() and abs(a - b) < _TIE * (1 + abs(a)):
            return 0
        raise (Undefined if a.is_nan() or b.is_nan() else Unclear)(f"{a} against {b}")
    return int(a > b) - int(a < b)


def balls(array: Array) -> Array:
    """Returns floating-point numbers as balls around the numbers that they denote."""
    kind = array.dtype.type
    entries = (_ball(kind, number) for number in array.astype(float).reshape(-1).tolist())
    return objects(entries, array.shape)


def objects(entries: Iterable[object], shape: tuple[int, ...]) -> Array:
    """Returns an array of Python's objects."""
    return np.fromiter(entries, object, int(np.prod(shape))).reshape(shape)


@dataclass(frozen=True)
class Number:
    """The number that a constant denotes."""

    base: fmpq
    order: int = 1

    @property
    def ball(self) -> arb:
        """The number as a ball."""
        return arb(self.base) if self.order == 1 else arb(self.base).sqrt()


def shortest_decimal(value: Array | np.generic) -> Number:
    """Returns the number that a constant denotes: the shortest decimal that rounds to it."""
    return _shortest_decimal(value.dtype.type, float(value))


def _ball(kind: type[np.generic], number: float) -> arb:
    return _shortest_decimal(kind, number).ball if np.isfinite(number) else arb(str(number))


@functools.lru_cache(4096)
def _shortest_decimal(kind: type[np.generic], number: float) -> Number:
    value = np.asarray(number).astype(kind)
    with np.errstate(over="ignore"):
        texts = (f"{number:.{places}e}" for places in range(19))
        text = next(t for t in texts if np.asarray(float(t)).astype(kind) == value)
    digits = len(text.split("e")[0].lstrip("-").replace(".", "").rstrip("0"))
    if digits > {np.float64: 13, np.float32: 6}.get(kind, 99):
        for shorter in (f"{number:.{places}e}" for places in range(12 * (kind is np.float64))):
            if abs(float(shorter) - number) <= 4 * np.spacing(abs(number)):
                return _rational(Fraction(shorter))
        exact = Fraction(number)
        scale = 10 ** (len(str(int(1 / abs(exact)))) - 1) if abs(exact) < 1 else 1
        near = (exact * scale).limit_denominator(99) / scale
        short = len(str(abs(near.numerator)).rstrip("0")) <= _SHORT
        if near.denominator > 1 and short and np.asarray(float(near)).astype(kind) == value:
            return _rational(near)
        for power in (2, -2) if number > 1e-150 else ():
            square = Fraction(f"{number**power:.{_SHORT - 1}e}")
            square = square if power > 0 else 1 / square
            if np.asarray(math.sqrt(square)).astype(kind) == value:
                return _rational(square, 2)
    return _rational(Fraction(text))


def _rational(number: Fraction, order: int = 1) -> Number:
    return Number(fmpq(number.numerator, number.denominator), order)
