"""Floating-point numbers as balls of python-flint, and how balls are compared."""

import contextlib
import contextvars
import functools
import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import flint
import numpy as np
from flint import arb, fmpq

Array = np.ndarray
PRECISION = 200


class NoRule(Exception):
    """A primitive that has no rule for balls."""


class Unclear(Exception):
    """A question that a ball, or an interval, cannot answer: it holds numbers on both sides."""


class Undefined(Unclear):
    """A comparison with what is no number: something was divided by 0."""


@contextlib.contextmanager
def precise(bits: int = PRECISION) -> Iterator[None]:
    """Within it, balls have so many bits."""
    before, flint.ctx.prec = flint.ctx.prec, bits
    try:
        yield
    finally:
        flint.ctx.prec = before


# Two balls that agree in so many digits hold one number, or an input was made for them not to.
_TIE = arb("1e-40")
_ties_are_equal = contextvars.ContextVar("ties_are_equal", default=False)


@contextlib.contextmanager
def ties_are_equal() -> Iterator[None]:
    """Within it, balls that overlap and are narrow are equal, where they are compared.

    0.1 * 0.1 and 0.01 are one number, which balls cannot show. For the search of examples, which
    are run afterwards; neither proofs nor the checker use it.
    """
    token = _ties_are_equal.set(True)
    try:
        yield
    finally:
        _ties_are_equal.reset(token)


def below(a: Any, b: Any) -> bool:
    """Returns whether a number is less than another.

    Raises:
      Unclear: they are balls that overlap.
    """
    if isinstance(a, arb) and not (a.is_exact() and b.is_exact()) and a.overlaps(b):
        if _ties_are_equal.get() and a.is_finite() and abs(a - b) < _TIE * (1 + abs(a)):
            return False
        raise (Undefined if a.is_nan() or b.is_nan() else Unclear)(f"{a} against {b}")
    return bool(a < b)


def same(a: arb, b: arb) -> bool:
    """Returns whether two numbers are equal; raises as `below` does."""
    return not (below(a, b) or below(b, a))


def order(a: arb, b: arb) -> int:
    """Returns -1, 0 or 1 as the first is less, equal or more; raises as `below` does."""
    return -1 if below(a, b) else int(below(b, a))


def balls(array: Array) -> Array:
    """Returns floating-point numbers as balls around the numbers that they denote."""
    return objects((_ball(array.dtype.type, float(x)) for x in array.reshape(-1)), array.shape)


def objects(entries: Iterable[object], shape: tuple[int, ...]) -> Array:
    """Returns an array of Python's objects."""
    return np.fromiter(entries, object, int(np.prod(shape))).reshape(shape)


@functools.lru_cache(4096)
def _ball(kind: type[np.generic], number: float) -> arb:
    if not np.isfinite(number):
        return arb(str(number))
    meant, is_square = denoted(kind, number)
    ball = arb(fmpq(meant.numerator, meant.denominator))
    return ball.sqrt() if is_square else ball


def denoted(kind: type[np.generic], number: float) -> tuple[Fraction, bool]:
    """Returns the number that a constant denotes: the shortest decimal that rounds to it.

    A float64 with all digits is what Python computed of shorter ones, if one is within four units
    in the last place; else, as a float32 with all digits, a fraction with a denominator of at most
    99, times a power of ten, if one rounds to it; else the root of a decimal of five digits or of
    its inverse. True says that it is the root of what is returned.
    """
    value = np.asarray(number).astype(kind)
    with np.errstate(over="ignore"):
        texts = (f"{number:.{places}e}" for places in range(19))
        text = next(t for t in texts if np.asarray(float(t)).astype(kind) == value)
    digits = len(text.split("e")[0].lstrip("-").replace(".", "").rstrip("0"))
    if kind is np.float64 and digits > 13:
        for shorter in (f"{number:.{places}e}" for places in range(12)):
            if abs(float(shorter) - number) <= 4 * np.spacing(abs(number)):
                return Fraction(shorter), False
    if (kind is np.float64 and digits > 13) or (kind is np.float32 and digits > 6):
        exact = Fraction(number)
        scale = 10 ** (len(str(int(1 / abs(exact)))) - 1) if abs(exact) < 1 else 1
        near = (exact * scale).limit_denominator(99) / scale
        short = len(str(abs(near.numerator)).rstrip("0")) <= 5
        if near.denominator > 1 and short and np.asarray(float(near)).astype(kind) == value:
            return near, False
        for power in (2, -2) if number > 1e-150 else ():
            square = Fraction(f"{number**power:.4e}")
            square = square if power > 0 else 1 / square
            if np.asarray(math.sqrt(square)).astype(kind) == value:
                return square, True
    return Fraction(text), False
