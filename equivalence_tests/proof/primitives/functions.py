"""Exponential, trigonometric and other functions of one number."""

from flint import arb

from equivalence_tests.proof.algebra.algebra import Algebra, Rat
from equivalence_tests.proof.primitives import intervals
from equivalence_tests.proof.primitives.faces import arithmetic
from equivalence_tests.proof.primitives.primitive import Rounding, always, define
from equivalence_tests.proof.primitives.reals import real, uninterpreted_function


def _logistic(algebra: Algebra, value: Rat) -> Rat:
    below = algebra.add(algebra.number(1), algebra.exp(algebra.neg(value)))
    return algebra.div(algebra.number(1), below)


def _hyperbolic(algebra: Algebra, value: Rat, sign: int) -> Rat:
    """`(exp(x) + exp(-x)) / 2`, the cosine, or with a sign of -1 the sine."""
    both = [algebra.exp(value), algebra.exp(algebra.neg(value))]
    total = algebra.add(both[0], algebra.mul(algebra.number(sign), both[1]))
    return algebra.div(total, algebra.number(2))


def _tanh(algebra: Algebra, value: Rat) -> Rat:
    """`1 - 2 / (exp(2 * x) + 1)`, whose denominator is never 0."""
    one = algebra.number(1)
    twice = algebra.exp(algebra.mul(algebra.number(2), value))
    return algebra.sub(one, algebra.div(algebra.number(2), algebra.add(twice, one)))


define(
    "exp",
    reals=real(Algebra.exp),
    rounding=arithmetic(intervals.monotone(arb.exp, arb.exp)),
    signs=always,
)
define(
    "exp2",
    reals=real(lambda algebra, a: algebra.to_the(algebra.number(2), a)),
    signs=always,
)
define(
    "expm1",
    reals=real(lambda algebra, a: algebra.sub(algebra.exp(a), algebra.number(1))),
    rounding=arithmetic(intervals.monotone(arb.expm1, arb.exp)),
)
define(
    "log",
    reals=real(Algebra.log),
    rounding=arithmetic(intervals.monotone(arb.log, lambda x: 1 / x)),
)
define(
    "log1p",
    reals=real(lambda algebra, a: algebra.log(algebra.add(a, algebra.number(1)))),
    rounding=arithmetic(intervals.monotone(arb.log1p, lambda x: 1 / (1 + x))),
)
define(
    "logistic",
    reals=real(_logistic),
    signs=always,
)

define(
    "tanh",
    reals=real(_tanh),
    rounding=arithmetic(intervals.monotone(arb.tanh, lambda x: arb(1))),
)
define(
    "sinh",
    reals=real(lambda algebra, a: _hyperbolic(algebra, a, -1)),
)
define(
    "cosh",
    reals=real(lambda algebra, a: _hyperbolic(algebra, a, 1)),
    signs=always,
)

# Those of which an equation says no more than that equal arguments give equal results: how each
# rounds, where that is known.
_UNKNOWN: dict[str, Rounding | None] = {
    "sin": arithmetic(intervals.wave(arb.sin)),
    "cos": arithmetic(intervals.wave(arb.cos)),
    **dict.fromkeys(("tan", "asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2")),
    **dict.fromkeys(("erf", "erfc", "erf_inv", "lgamma", "digamma")),
}
for _name, _rounding in _UNKNOWN.items():
    define(_name, reals=uninterpreted_function(), rounding=_rounding)
