"""Floating-point numbers as balls of python-flint, and how balls are compared."""

import functools
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import flint
import numpy as np
from flint import arb, fmpq

Array = np.ndarray
# Numbers that agree so far are one: 0.1 * 0.1 and 0.01, which balls cannot show to be equal.
_TIE = arb("1e-40")


class NoRule(Exception):
    """A primitive that has no rule for balls."""


class Unclear(Exception):
    """A question that a ball, or an interval, cannot answer: it holds numbers on both sides."""


class Undefined(Unclear):
    """A comparison with what is no number: something was divided by 0."""


def precise(bits: int = 200) -> Any:
    """Returns a context in which balls have so many bits."""
    return flint.ctx.workprec(bits)


def order(a: Any, b: Any) -> int:
    """Returns -1, 0 or 1 as a number, or a ball, is less than another, equal or more.

    Raises:
      Unclear: they are balls that overlap, and too wide to be one number.
    """
    if isinstance(a, arb) and not (a.is_exact() and b.is_exact()) and a.overlaps(b):
        if a.is_finite() and abs(a - b) < _TIE * (1 + abs(a)):
            return 0
        raise (Undefined if a.is_nan() or b.is_nan() else Unclear)(f"{a} against {b}")
    return int(a > b) - int(a < b)


def balls(array: Array) -> Array:
    """Returns floating-point numbers as balls around the numbers that they denote."""
    kind = array.dtype.type
    entries = (
        arb(_decimal(kind, x)) if np.isfinite(x) else arb(str(x))
        for x in array.astype(float).reshape(-1).tolist()
    )
    return objects(entries, array.shape)


def objects(entries: Iterable[object], shape: tuple[int, ...]) -> Array:
    """Returns an array of Python's objects."""
    return np.fromiter(entries, object, int(np.prod(shape))).reshape(shape)


def decimal(value: Array | np.generic) -> fmpq:
    """Returns the number that a constant denotes: the shortest decimal that rounds to it.

    A float64 with all digits is what Python computed of shorter ones, if one is within four units
    in the last place; else, as a float32 with all digits, a fraction with a denominator of at most
    99, times a power of ten, if one rounds to it.
    """
    return _decimal(value.dtype.type, float(value))


@functools.lru_cache(4096)
def _decimal(kind: type[np.generic], number: float) -> fmpq:
    value = np.asarray(number).astype(kind)
    with np.errstate(over="ignore"):
        texts = (f"{number:.{places}e}" for places in range(19))
        text = next(t for t in texts if np.asarray(float(t)).astype(kind) == value)
    digits = len(text.split("e")[0].lstrip("-").replace(".", "").rstrip("0"))
    meant = Fraction(text)
    if digits > {np.float64: 13, np.float32: 6}.get(kind, 99):
        for shorter in (f"{number:.{places}e}" for places in range(12 * (kind is np.float64))):
            if abs(float(shorter) - number) <= 4 * np.spacing(abs(number)):
                return _rational(Fraction(shorter))
        exact = Fraction(number)
        scale = 10 ** (len(str(int(1 / abs(exact)))) - 1) if abs(exact) < 1 else 1
        near = (exact * scale).limit_denominator(99) / scale
        if near.denominator > 1 and np.asarray(float(near)).astype(kind) == value:
            meant = near
    return _rational(meant)


def _rational(number: Fraction) -> fmpq:
    return fmpq(number.numerator, number.denominator)
