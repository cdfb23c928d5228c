"""Exponential, trigonometric and other functions of one number."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flint import arb

from equivalence_tests.proof.algebra.algebra import Algebra, Rat
from equivalence_tests.proof.primitives import intervals
from equivalence_tests.proof.primitives.numbers import either
from equivalence_tests.proof.primitives.primitive import always, define
from equivalence_tests.proof.primitives.reals import real, unknown
from equivalence_tests.proof.primitives.rounded import arithmetic


def _log(algebra: Algebra, value: Rat) -> Rat:
    def of(args: list[Rat]) -> Rat:
        algebra.assume(args[0], "is more than 0")
        if (inner := algebra.argument_of(args[0], "exp")) is not None:
            return inner
        return algebra.call("function", "log", args)

    return algebra.selected([value], of)


def _exp(algebra: Algebra, value: Rat) -> Rat:
    def of(args: list[Rat]) -> Rat:
        if algebra.constant(args[0]) == 0:
            return algebra.number(1)
        if (inner := algebra.argument_of(args[0], "log")) is not None:
            return inner
        return algebra.call("function", "exp", args, nonneg=True)

    return algebra.selected([value], of)


def _logistic(algebra: Algebra, value: Rat) -> Rat:
    below = algebra.add(algebra.number(1), _exp(algebra, algebra.neg(value)))
    return algebra.div(algebra.number(1), below)


def _method(name: str) -> Callable[[arb], arb]:
    return operator.methodcaller(name)


define(
    "exp",
    numbers=either(_method("exp"), np.exp),
    reals=real(_exp),
    rounding=arithmetic(intervals.monotone(arb.exp, arb.exp)),
    signs=always,
)
define(
    "exp2",
    numbers=either(lambda x: (x * arb(2).log()).exp(), np.exp2),
    reals=real(lambda algebra, a: algebra.to_the(algebra.number(2), a)),
    signs=always,
)
define(
    "expm1",
    numbers=either(_method("expm1"), np.expm1),
    reals=real(lambda algebra, a: algebra.sub(_exp(algebra, a), algebra.number(1))),
    rounding=arithmetic(intervals.monotone(arb.expm1, arb.exp)),
)
define(
    "log",
    numbers=either(_method("log"), np.log),
    reals=real(_log),
    rounding=arithmetic(intervals.monotone(arb.log, lambda x: 1 / x)),
)
define(
    "log1p",
    numbers=either(_method("log1p"), np.log1p),
    reals=real(lambda algebra, a: _log(algebra, algebra.add(a, algebra.number(1)))),
    rounding=arithmetic(intervals.monotone(arb.log1p, lambda x: 1 / (1 + x))),
)
define(
    "logistic",
    numbers=either(lambda x: 1 / (1 + (-x).exp()), lambda x: 1 / (1 + np.exp(-x))),
    reals=real(_logistic),
    signs=always,
)

# Those of which an equation says no more than that equal arguments give equal results: how a ball
# is computed, how an array is, and how it rounds where that is known.
_UNKNOWN: dict[str, tuple[str, Any, Any]] = {
    "sin": ("sin", np.sin, arithmetic(intervals.wave(arb.sin))),
    "cos": ("cos", np.cos, arithmetic(intervals.wave(arb.cos))),
    "tan": ("tan", np.tan, None),
    "tanh": ("tanh", np.tanh, arithmetic(intervals.monotone(arb.tanh, lambda x: arb(1)))),
    "sinh": ("sinh", np.sinh, None),
    "cosh": ("cosh", np.cosh, None),
    "asin": ("asin", np.arcsin, None),
    "acos": ("acos", np.arccos, None),
    "atan": ("atan", np.arctan, None),
    "asinh": ("asinh", np.arcsinh, None),
    "acosh": ("acosh", np.arccosh, None),
    "atanh": ("atanh", np.arctanh, None),
    "erf": ("erf", jax.lax.erf, None),
    "erfc": ("erfc", jax.lax.erfc, None),
    "erf_inv": ("erfinv", jax.lax.erf_inv, None),
    "lgamma": ("lgamma", jax.lax.lgamma, None),
    "digamma": ("digamma", jax.lax.digamma, None),
}
for _name, (_of_balls, _of_arrays, _rounding) in _UNKNOWN.items():
    define(
        _name, numbers=either(_method(_of_balls), _of_arrays), reals=unknown(), rounding=_rounding
    )
define("atan2", reals=unknown())
