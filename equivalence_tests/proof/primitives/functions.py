"""Exponential, trigonometric and other functions of one number."""

from flint import arb

from equivalence_tests.proof.algebra.algebra import Algebra, Rat
from equivalence_tests.proof.primitives import intervals
from equivalence_tests.proof.primitives.faces import arithmetic
from equivalence_tests.proof.primitives.primitive import Rounding, always, define
from equivalence_tests.proof.primitives.reals import real, uninterpreted_function


def _log(algebra: Algebra, value: Rat) -> Rat:
    def of(args: list[Rat]) -> Rat:
        outside, rest = _exponents(algebra, args[0])
        if algebra.constant(rest) == 1:
            return outside
        algebra.assume(rest, "is more than 0")
        return algebra.add(outside, algebra.call("function", "log", [rest]))

    return algebra.case_split([value], of)


def _exponents(algebra: Algebra, value: Rat) -> tuple[Rat, Rat]:
    """The logarithm of all exponentials that are factors of a value, and the rest of it."""
    outside = algebra.number(0)
    for gen in algebra.atoms_of(value):
        atom = algebra.atoms[gen]
        if atom.kind != "function" or atom.name != "exp":
            continue
        powers = [min(algebra.coefficients(poly, gen)) for poly in value]
        times = algebra.number(powers[0] - powers[1])
        outside = algebra.add(outside, algebra.mul(times, atom.args[0]))
        factors = [algebra.generator(gen) ** power for power in powers]
        value = Rat(value.num // factors[0], value.den // factors[1])
    return outside, value


def _exp(algebra: Algebra, value: Rat) -> Rat:
    """The exponential of a sum as a product: `exp(2 * x - y)` is `exp(x)^2 / exp(y)`."""

    def of_term(term: Rat) -> Rat:
        for gen in algebra.generators(term.num):  # exp(x * log(y)) is y ** x
            atom = algebra.atoms[gen]
            rows = algebra.coefficients(term.num, gen)
            if (atom.kind, atom.name, set(rows)) == ("function", "log", {1}):
                return algebra.to_the(atom.args[0], Rat(rows[1], term.den))
        return algebra.call("function", "exp", [term], nonneg=True)

    def of(args: list[Rat]) -> Rat:
        (exponent,) = args
        if not exponent.den.is_constant():
            return of_term(exponent)
        result = algebra.number(1)
        for monomial, coefficient in exponent.num.to_dict().items():
            times = int(coefficient.p)
            if not any(monomial) or coefficient.q > 1 or abs(times) > _MOST_FACTORS:
                times = 1 if coefficient > 0 else -1
            term = Rat(algebra.ctx.from_dict({monomial: coefficient / times}), algebra.one)
            result = algebra.mul(result, algebra.power(of_term(term), times))
        return result

    return algebra.case_split([value], of)


def _logistic(algebra: Algebra, value: Rat) -> Rat:
    below = algebra.add(algebra.number(1), _exp(algebra, algebra.neg(value)))
    return algebra.div(algebra.number(1), below)


def _hyperbolic(algebra: Algebra, value: Rat, sign: int) -> Rat:
    """`(exp(x) + exp(-x)) / 2`, the cosine, or with a sign of -1 the sine."""
    both = [_exp(algebra, value), _exp(algebra, algebra.neg(value))]
    total = algebra.add(both[0], algebra.mul(algebra.number(sign), both[1]))
    return algebra.div(total, algebra.number(2))


def _tanh(algebra: Algebra, value: Rat) -> Rat:
    """`1 - 2 / (exp(2 * x) + 1)`, whose denominator is never 0."""
    one = algebra.number(1)
    twice = _exp(algebra, algebra.mul(algebra.number(2), value))
    return algebra.sub(one, algebra.div(algebra.number(2), algebra.add(twice, one)))


_MOST_FACTORS = 8  # of one exponential: a larger multiple stays in the exponent


define(
    "exp",
    reals=real(_exp),
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
    reals=real(lambda algebra, a: algebra.sub(_exp(algebra, a), algebra.number(1))),
    rounding=arithmetic(intervals.monotone(arb.expm1, arb.exp)),
)
define(
    "log",
    reals=real(_log),
    rounding=arithmetic(intervals.monotone(arb.log, lambda x: 1 / x)),
)
define(
    "log1p",
    reals=real(lambda algebra, a: _log(algebra, algebra.add(a, algebra.number(1)))),
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
