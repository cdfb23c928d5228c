"""Exponential, trigonometric and other functions of one number."""

from equivalence_tests.proof.algebra.algebra import Algebra, Rat
from equivalence_tests.proof.primitives.primitive import always, define
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
)
define(
    "log",
    reals=real(Algebra.log),
)
define(
    "log1p",
    reals=real(lambda algebra, a: algebra.log(algebra.add(a, algebra.number(1)))),
)
define(
    "logistic",
    reals=real(_logistic),
    signs=always,
)

define(
    "tanh",
    reals=real(_tanh),
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

# Those of which an equation says no more than that equal arguments give equal results.
_UNKNOWN = ("sin", "cos", "tan", "asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2")
_UNKNOWN += ("erf", "erfc", "erf_inv", "lgamma", "digamma")
for _name in _UNKNOWN:
    define(_name, reals=uninterpreted_function())
