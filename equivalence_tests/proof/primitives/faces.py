"""Helpers for how primitives round: of whole numbers, of intervals with their errors."""

from collections.abc import Callable, Sequence
from typing import Never

import numpy as np

from equivalence_tests.proof.dtypes import is_float, is_in_range
from equivalence_tests.proof.errors import Unclear
from equivalence_tests.proof.node import Node
from equivalence_tests.proof.primitives.intervals import Precision, Rounded
from equivalence_tests.proof.primitives.primitive import Rounding, Value


def raise_unclear() -> Never:
    """Ends the search on an interval."""
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
