"""Helpers for what primitives compute: of numbers, of balls, of intervals with rounding errors."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Never

import numpy as np
from flint import arb
from numpy.typing import ArrayLike

from equivalence_tests.proof.dtypes import Aval, is_float, is_in_range
from equivalence_tests.proof.errors import Unclear, Undefined
from equivalence_tests.proof.node import Node, Settings
from equivalence_tests.proof.primitives.intervals import Precision, Rounded
from equivalence_tests.proof.primitives.primitive import OnNumbers, Rounding, Value

Array = np.ndarray
OfArrays = Callable[..., ArrayLike]


def either(of_balls: Callable[..., arb], of_numbers: OfArrays, count: int = 1) -> OnNumbers:
    """Returns a function of so many numbers by NumPy, of balls element by element."""
    spread = np.frompyfunc(of_balls, count, 1)

    def rule(params: Settings, aval: Aval, *args: Array) -> ArrayLike:
        return np.asarray((spread if args[0].dtype == object else of_numbers)(*args))

    return rule


def of_arrays(function: OfArrays) -> OnNumbers:
    """Returns a rule whose function takes numbers and balls alike."""
    return lambda params, aval, *args: function(*args)


# Two balls that agree in so many digits hold one number, or an input was made for them not to.
_TIE = arb("1e-40")
_ties_are_equal = contextvars.ContextVar("ties_are_equal", default=False)


@contextlib.contextmanager
def ties_are_equal() -> Iterator[None]:
    """Within it, balls that overlap and are narrow are equal, where they are compared.

    0.1 * 0.1 and 0.01 are one number, which balls cannot show. For examples, not for proofs.
    """
    token = _ties_are_equal.set(True)
    try:
        yield
    finally:
        _ties_are_equal.reset(token)


def _is_tie(a: arb, b: arb) -> bool:
    """True if two balls are taken for equal; False if they are apart."""
    if not a.overlaps(b):
        return False
    if _ties_are_equal.get() and a.is_finite() and abs(a - b) < _TIE * (1 + abs(a)):
        return True
    if a.is_nan() or b.is_nan():
        raise Undefined(f"{a} against {b}")
    raise Unclear(f"{a} against {b}")


def compare(function: Callable[[Any, Any], bool]) -> OnNumbers:
    """Returns a comparison, which of balls that overlap is unclear."""

    def certain(a: arb | int, b: arb | int) -> bool:
        if isinstance(a, arb) and isinstance(b, arb):
            exact = a.is_exact() and b.is_exact()
            if not exact and _is_tie(a, b):
                return bool(function(0, 0))
        return bool(function(a, b))

    spread = np.frompyfunc(certain, 2, 1)

    def rule(params: Settings, aval: Aval, a: Array, b: Array) -> ArrayLike:
        if object in (a.dtype, b.dtype):
            return np.asarray(spread(a, b)).astype(bool)
        return np.asarray(function(a, b))

    return rule


def reduce(of_two: Callable[[Any, Any], Any], of_numbers: OfArrays, empty: Any) -> OnNumbers:
    """Returns a reduction over the axes that the equation names."""

    def rule(params: Settings, aval: Aval, x: Array) -> ArrayLike:
        axes = tuple(params["axes"])
        if x.dtype != object:
            return of_numbers(x, axis=axes)
        result = np.empty(aval.shape, object)
        rows = np.moveaxis(x, axes, range(len(axes))).reshape(-1, *aval.shape)
        for index in np.ndindex(aval.shape):
            items = [rows[(number, *index)] for number in range(len(rows))]
            result[index] = functools.reduce(of_two, items) if items else empty
        return result

    return rule


def raise_unclear() -> Never:
    """Ends the search on an interval.

    Raises:
      Unclear: always.
    """
    raise Unclear("a whole number depends on what is open")


def as_rounded(value: Value) -> Rounded:
    """Returns a value as a real number."""
    if value is None:
        raise_unclear()
    return value if isinstance(value, Rounded) else Rounded.exact(int(value))


def integer_of_dtype(node: Node, value: int) -> int:
    """Returns an integer that the node's dtype represents; raises where it wraps round."""
    if node.dtype == np.bool_:
        return bool(value)
    return value if is_in_range(value, node.dtype) else raise_unclear()


def _no_integers(*_: int) -> Never:
    raise_unclear()


def arithmetic(
    of_reals: Callable[..., Rounded], of_integers: Callable[..., int] = _no_integers
) -> Rounding:
    """Returns a face from a function of intervals and a precision, and one of whole numbers."""

    def rule(node: Node, args: Sequence[Value]) -> Value:
        if not is_float(node.dtype):
            if any(arg is None or isinstance(arg, Rounded) for arg in args):
                return None if node.dtype == np.bool_ else raise_unclear()
            return integer_of_dtype(node, of_integers(*args))
        return of_reals(*map(as_rounded, args), Precision.of(node.dtype))

    return rule


def without_rounding(function: Callable[..., Rounded]) -> Callable[..., Rounded]:
    """Returns a function of intervals whose result is not rounded."""
    return lambda *args: function(*args[:-1])


def comparison(of: Callable[[Rounded, Rounded], bool | None]) -> Rounding:
    """Returns the face of a comparison."""

    def rule(node: Node, args: Sequence[Value]) -> bool | None:
        return None if any(arg is None for arg in args) else of(*map(as_rounded, args))

    return rule


def negate(answer: Value) -> bool | None:
    """Returns the opposite of an answer, None of an open one."""
    return None if answer is None else not answer


def of_operand(node: Node, args: Sequence[Value]) -> Value:
    """The rounding of operations that only move entries."""
    del node
    return args[0]
