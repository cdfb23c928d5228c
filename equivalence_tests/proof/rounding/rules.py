"""How each primitive rounds: what it makes of real values within intervals and their errors.

A value is a `Rounded`, a whole number, or whether something is so; None is an open condition.
"""

from collections.abc import Callable, Sequence
from typing import Never

import numpy as np
from flint import arb

from equivalence_tests.proof.bits.graph import Node
from equivalence_tests.proof.dtypes import is_float, is_in_range, keeps
from equivalence_tests.proof.reals.indexing import MOVES
from equivalence_tests.proof.rounding import intervals
from equivalence_tests.proof.rounding.intervals import Precision, Rounded, Unclear

Value = Rounded | int | None
Rule = Callable[[Node, Sequence[Value]], Value]


def opened() -> Never:
    """Ends the search on an interval.

    Raises:
      Unclear: always.
    """
    raise Unclear("a whole number depends on what is open")


def real(value: Value) -> Rounded:
    """A value as a real number."""
    if value is None:
        opened()
    return value if isinstance(value, Rounded) else Rounded.exact(int(value))


def _whole(node: Node, value: int) -> int:
    """A whole number, if the node's dtype has it: else it wraps round."""
    if node.dtype == np.bool_:
        return bool(value)
    return value if is_in_range(value, node.dtype) else opened()


def _no_wholes(*_: int) -> Never:
    opened()


def _arithmetic(
    of_reals: Callable[..., Rounded], of_wholes: Callable[..., int] = _no_wholes
) -> Rule:
    def rule(node: Node, args: Sequence[Value]) -> Value:
        if not is_float(node.dtype):
            if any(arg is None or isinstance(arg, Rounded) for arg in args):
                return None if node.dtype == np.bool_ else opened()
            return _whole(node, of_wholes(*args))
        return of_reals(*map(real, args), Precision.of(node.dtype))

    return rule


def _plain(function: Callable[..., Rounded]) -> Callable[..., Rounded]:
    """A function without a rounding of its own."""
    return lambda *args: function(*args[:-1])


def _compared(of: Callable[[Rounded, Rounded], bool | None]) -> Rule:
    def rule(node: Node, args: Sequence[Value]) -> bool | None:
        return None if any(arg is None for arg in args) else of(*map(real, args))

    return rule


def _not(answer: Value) -> bool | None:
    return None if answer is None else not answer


def _logic(decisive: bool) -> Rule:
    def rule(node: Node, args: Sequence[Value]) -> Value:
        if node.dtype != np.bool_:
            return opened()
        if any(arg is not None and bool(arg) == decisive for arg in args):
            return decisive
        return None if any(arg is None for arg in args) else not decisive

    return rule


def _converted(node: Node, args: Sequence[Value]) -> Value:
    (value,) = args
    if value is None:
        return None if node.dtype == np.bool_ else opened()
    if isinstance(value, Rounded):
        if not is_float(node.dtype):
            whole = value.low.unique_fmpz() if value.low == value.high else None
            return opened() if whole is None or value.error != 0 else _whole(node, int(whole))
        if keeps(node.args[0].dtype, node.dtype):
            return value
        ends = [value.low, value.high]
        precision = Precision.of(node.dtype)
        return intervals.rounded(ends, value.error, value.relative, precision, nonneg=value.nonneg)
    if not is_float(node.dtype):
        return _whole(node, value)
    exact = Rounded.exact(int(value))
    precision = Precision.of(node.dtype)
    if abs(int(value)) * precision.half <= 1:
        return exact
    return intervals.rounded([exact.low], arb(0), arb(0), precision)


def _integer_pow(node: Node, args: Sequence[Value]) -> Rounded:
    number, precision = node.settings["y"], Precision.of(node.dtype)
    return intervals.power(real(args[0]), Rounded.exact(number), precision)


def _sign(node: Node, args: Sequence[Value]) -> Rounded:
    value = real(args[0])
    below, above = (value.is_below(Rounded.exact(0)), Rounded.exact(0).is_below(value))
    if below is None or above is None:
        raise Unclear("which sign a value has is open in these ranges")
    return Rounded.exact(int(above) - int(below))


def _clamped(low: Rounded, value: Rounded, high: Rounded) -> Rounded:
    return intervals.smallest(intervals.largest(value, low), high)


_ONE = Rounded.exact(1)
RULES: dict[str, Rule] = {
    "add": _arithmetic(intervals.add, lambda a, b: a + b),
    "mul": _arithmetic(intervals.mul, lambda a, b: a * b),
    "neg": _arithmetic(_plain(intervals.neg), lambda a: -a),
    "div": _arithmetic(intervals.div),
    "max": _arithmetic(_plain(intervals.largest), max),
    "min": _arithmetic(_plain(intervals.smallest), min),
    "clamp": _arithmetic(_plain(_clamped), lambda a, x, b: min(max(x, a), b)),
    "abs": _arithmetic(_plain(intervals.magnitude), lambda a: abs(a)),
    "sqrt": _arithmetic(intervals.sqrt),
    "rsqrt": _arithmetic(lambda a, u: intervals.div(_ONE, intervals.sqrt(a, u), u)),
    "pow": _arithmetic(intervals.power),
    "integer_pow": _integer_pow,
    "exp": _arithmetic(intervals.monotone(arb.exp, arb.exp)),
    "expm1": _arithmetic(intervals.monotone(arb.expm1, arb.exp)),
    "log": _arithmetic(intervals.monotone(arb.log, lambda x: 1 / x)),
    "log1p": _arithmetic(intervals.monotone(arb.log1p, lambda x: 1 / (1 + x))),
    "tanh": _arithmetic(intervals.monotone(arb.tanh, lambda x: arb(1))),
    "sin": _arithmetic(intervals.wave(arb.sin)),
    "cos": _arithmetic(intervals.wave(arb.cos)),
    "sign": _sign,
    "lt": _compared(lambda a, b: a.is_below(b)),
    "le": _compared(lambda a, b: _not(b.is_below(a))),
    "eq": _compared(lambda a, b: a.is_equal(b)),
    "ne": _compared(lambda a, b: _not(a.is_equal(b))),
    "and": _logic(False),
    "or": _logic(True),
    "not": lambda node, args: _not(args[0]) if node.dtype == np.bool_ else opened(),
    "is_finite": lambda node, args: True,
    "convert_element_type": _converted,
}
# Those that move entries.
RULES |= dict.fromkeys((*MOVES, "splat"), lambda node, args: args[0])
