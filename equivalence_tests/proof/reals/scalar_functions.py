"""What operations on numbers are as functions of real numbers, in the algebra.

Rounding is left out. What is not known here is an unknown function, and still equal to itself.
"""

from collections.abc import Callable, Hashable, Sequence

import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.bits.graph import Graph, Node
from equivalence_tests.proof.dtypes import (
    NO_OVERFLOW,
    holds,
    is_complex,
    is_discrete,
    is_float,
    is_in_range,
    is_unsigned,
    is_whole,
    is_wide,
)
from equivalence_tests.proof.errors import Undecided
from equivalence_tests.proof.reals.algebra import Algebra, Rat

_WHOLE = ("floor", "ceil", "round")
_OF_COMPLEX = frozenset(("add", "sub", "mul", "neg", "select_n"))  # what is so of any field
_OVERFLOW = frozenset(("add", "sub", "mul", "neg", "abs", "square", "integer_pow"))
_OF_DTYPE = frozenset(("rem", "nextafter"))  # not the same function in every dtype
_NO_ARITHMETIC = frozenset(("select_n", "max", "min", "eq", "ne", "lt", "le", "is_finite", "clamp"))


class Scalars:
    """Operations on numbers, in an algebra."""

    def __init__(self, graph: Graph, algebra: Algebra):
        """Reads the nodes of the graph into the algebra."""
        self.graph, self.algebra = graph, algebra
        self._names: dict[Hashable, int] = {}

    def knows(self, node: Node) -> bool:
        """Whether a node is such an operation."""
        if any(is_complex(each.dtype) for each in (node, *node.args)):
            return node.op in _OF_COMPLEX
        return node.op in _FUNCTIONS or node.op in _NO_ARITHMETIC

    def of(self, node: Node, args: list[Rat]) -> Rat:
        """What a node computes of numbers."""
        if node.op in _NO_ARITHMETIC:
            return self._chosen(node, args)
        result = _FUNCTIONS[node.op](self, node, args)
        return self.wrapped(node, result) if node.op in _OVERFLOW else result

    def numbered(self, key: Hashable) -> int:
        """A number for what an unknown function is known by."""
        return self._names.setdefault(key, len(self._names))

    def wrapped(self, node: Node, value: Rat) -> Rat:
        """What a node's dtype makes of a number, if it is an integer dtype."""
        algebra, dtype = self.algebra, node.dtype
        if not is_whole(dtype):
            return value

        def of(args: list[Rat]) -> Rat:
            number = algebra.constant(args[0])
            if number is not None and is_in_range(int(number), dtype):
                return args[0]
            # With such a factor it overflows, whatever one assumes.
            if is_wide(dtype) and all(is_in_range(int(c), dtype) for c in args[0].num.coeffs()):
                algebra.assumptions[NO_OVERFLOW] = None
                return args[0]
            nonneg = is_unsigned(dtype)
            return algebra.call("function", f"as {dtype}", args, whole=True, nonneg=nonneg)

        return algebra.selected([value], of)

    def _chosen(self, node: Node, args: list[Rat]) -> Rat:
        """What may have infinity as an operand: selections and comparisons."""
        algebra = self.algebra
        numbers = [self.graph.scalar(arg) for arg in node.args]
        infinite = [isinstance(number, float) and not np.isfinite(number) for number in numbers]
        if node.op == "is_finite":
            return self._if_finite(1)
        if node.op == "select_n":
            return self._selected(node, args)
        if node.op == "clamp":
            least, value, most = args
            for number, end in zip(numbers[::2], (-np.inf, np.inf), strict=True):
                if infinite[0 if end < 0 else 2] and number != end:
                    raise Undecided("`clamp` to infinity")
            if not infinite[0]:
                value = algebra.greatest(value, least)
            return value if infinite[2] else algebra.least(value, most)
        a, b = args
        if any(infinite):
            return self._against_infinity(node, args, numbers, infinite)
        if node.op == "max":
            return algebra.greatest(a, b)
        if node.op == "min":
            return algebra.least(a, b)
        if node.op in ("eq", "ne"):
            if a == b and is_float(node.args[0].dtype):
                return self._if_finite(int(node.op == "eq"))  # so NaN is looked for
            same = algebra.zero(algebra.sub(a, b))
            return same if node.op == "eq" else algebra.complement(same)
        kind = node.args[0].dtype
        saturates = is_whole(kind) and numbers[1] == jnp.iinfo(kind).max
        if saturates and numbers[0] is None and node.op == "lt":
            algebra.assume(a, f"is less than {numbers[1]}")
            return algebra.number(1)
        if node.op == "lt":
            return algebra.positive(algebra.sub(b, a))
        return algebra.complement(algebra.positive(algebra.sub(a, b)))

    def _against_infinity(
        self, node: Node, args: list[Rat], numbers: Sequence[float | None], infinite: list[bool]
    ) -> Rat:
        side = infinite.index(True)
        number, other = numbers[side], args[1 - side]
        if all(infinite) or number is None or np.isnan(number):
            raise Undecided(f"`{node.op}` of infinity")
        above = number > 0
        if node.op in ("max", "min"):
            return args[side] if above == (node.op == "max") else other
        answer = node.op == "ne" if node.op in ("eq", "ne") else above == (side == 1)
        return self.algebra.selected([other], lambda _: self._if_finite(int(answer)))

    def _if_finite(self, answer: int) -> Rat:
        self.algebra.assumptions["all values are finite"] = None
        return self.algebra.number(answer)

    def _selected(self, node: Node, args: list[Rat]) -> Rat:
        algebra = self.algebra
        which, *cases = args
        if node.args[0].dtype == np.bool_:
            return algebra.choose(which, cases[1], cases[0])
        result = cases[-1]
        for number, case in list(enumerate(cases[:-1]))[::-1]:
            here = algebra.zero(algebra.sub(which, algebra.number(number)))
            result = algebra.choose(here, case, result)
        return result


Function = Callable[[Scalars, Node, list[Rat]], Rat]


def _call(name: str | None = None, *, whole: bool | None = None) -> Function:
    """An unknown function of numbers.

    Args:
      name: of it; by default the operation's.
      whole: whether its values are integers; by default where the dtype says so.
    """

    def entry(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
        kinds = [each.dtype for each in (node, *node.args)]
        rounds = node.op in _OF_DTYPE or not all(map(is_float, kinds))
        full = " ".join([name or node.op, *map(str, kinds * rounds)])
        if node.params and name is None:
            number = scalars.numbered((node.op, node.params))
            full = f"{full} {number}"
        is_integer = is_discrete(node.dtype) if whole is None else whole
        result = scalars.algebra.selected(
            args, lambda args: scalars.algebra.call("function", full, args, whole=is_integer)
        )
        return scalars.algebra.positive(result) if node.dtype == np.bool_ else result

    return entry


def _rounded(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    """Functions that leave whole numbers alone."""
    atoms = [scalars.algebra.atoms[gen] for gen in scalars.algebra.atoms_of(*args)]
    numbers = [c for c in (*args[0].num.coeffs(), *args[0].den.coeffs())]
    whole = all(atom.whole for atom in atoms) and all(number.q == 1 for number in numbers)
    whole = whole and args[0].den.is_constant()
    if whole and node.op != "convert_element_type":
        return args[0]
    if whole and is_wide(node.dtype):
        scalars.algebra.assumptions[NO_OVERFLOW] = None
        return args[0]
    return _call("trunc" if node.op == "convert_element_type" else None, whole=True)(
        scalars, node, args
    )


def _convert(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    source, target = node.args[0].dtype, node.dtype
    if target == np.bool_:
        return scalars.algebra.complement(scalars.algebra.zero(args[0]))
    if not jnp.issubdtype(source, jnp.inexact) and is_whole(target):
        fits = holds(source, target) or (
            jnp.iinfo(target).max >= jnp.iinfo(source).max and scalars.algebra.nonneg(args[0])
        )
        return args[0] if fits else _call("as", whole=True)(scalars, node, args)
    both = is_float(source) and is_float(target)
    if both and jnp.finfo(target).bits < jnp.finfo(source).bits:
        text = f"rounding to {jnp.dtype(target)} is left out, as all rounding, and overflow there"
        scalars.algebra.assumptions[text] = None
    if is_float(source) and is_whole(target):
        return _rounded(scalars, node, args)
    if jnp.issubdtype(target, jnp.complexfloating) or jnp.issubdtype(source, jnp.complexfloating):
        raise Undecided("`convert_element_type` to or from complex numbers")
    return args[0]


def _reduced_precision(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    bits = [node.settings[f"{part}_bits"] for part in ("exponent", "mantissa")]
    text = f"rounding to {bits[0]} bits of exponent and {bits[1]} of mantissa is left out"
    scalars.algebra.assumptions[text] = None
    return args[0]


def _power(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    if not is_float(node.dtype):
        return _call()(scalars, node, args)
    return scalars.algebra.to_the(*args)


def _logic(of_bits: Callable[[Algebra, list[Rat]], Rat]) -> Callable[..., Rat]:
    def entry(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
        if node.dtype != np.bool_:
            return _call()(scalars, node, args)
        return of_bits(scalars.algebra, args)

    return entry


def _div(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    if not is_float(node.dtype):
        return _call("whole quotient", whole=True)(scalars, node, args)
    return scalars.algebra.div(*args)


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


def _sum_of_bits(algebra: Algebra, args: list[Rat], twice: int) -> Rat:
    """`a + b - twice * a * b`: with 1 the or of two bits, with 2 the exclusive one."""
    product = algebra.mul(*args)
    return algebra.sub(algebra.add(*args), algebra.mul(algebra.number(twice), product))


def _real(function: Callable[..., Rat]) -> Callable[..., Rat]:
    return lambda scalars, node, args: function(scalars.algebra, *args)


_FUNCTIONS: dict[str, Function] = {
    "add": _real(Algebra.add),
    "sub": _real(Algebra.sub),
    "mul": _real(Algebra.mul),
    "neg": _real(Algebra.neg),
    "div": _div,
    "square": _real(lambda algebra, a: algebra.power(a, 2)),
    "integer_pow": lambda scalars, node, args: scalars.algebra.power(args[0], node.settings["y"]),
    "pow": _power,
    "sqrt": _real(Algebra.root),
    "rsqrt": _real(lambda algebra, a: algebra.div(algebra.number(1), algebra.root(a))),
    "cbrt": _call("cbrt"),
    "abs": _real(Algebra.absolute),
    "sign": _real(
        lambda algebra, a: algebra.sub(algebra.positive(a), algebra.positive(algebra.neg(a)))
    ),
    "exp": _real(_exp),
    "exp2": _real(lambda algebra, a: algebra.to_the(algebra.number(2), a)),
    "expm1": _real(lambda algebra, a: algebra.sub(_exp(algebra, a), algebra.number(1))),
    "log": _real(_log),
    "log1p": _real(lambda algebra, a: _log(algebra, algebra.add(a, algebra.number(1)))),
    "logistic": _real(
        lambda algebra, a: algebra.div(
            algebra.number(1), algebra.add(algebra.number(1), _exp(algebra, algebra.neg(a)))
        )
    ),
    "convert_element_type": _convert,
    "reduce_precision": _reduced_precision,
    "and": _logic(lambda algebra, args: algebra.mul(*args)),
    "or": _logic(lambda algebra, args: _sum_of_bits(algebra, args, 1)),
    "xor": _logic(lambda algebra, args: _sum_of_bits(algebra, args, 2)),
    "not": _logic(lambda algebra, args: algebra.complement(args[0])),
}
_FUNCTIONS |= dict.fromkeys(_WHOLE, _rounded)
_FUNCTIONS |= {
    name: _call()
    for name in [
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cos",
        "cosh",
        "digamma",
        "erf",
        "erf_inv",
        "erfc",
        "lgamma",
        "nextafter",
        "population_count",
        "rem",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "sin",
        "sinh",
        "tan",
        "tanh",
    ]
}
