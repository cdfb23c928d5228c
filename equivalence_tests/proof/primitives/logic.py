"""Comparisons, bits, selections, and what one dtype makes of another's numbers."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.algebra.algebra import Algebra, Rat
from equivalence_tests.proof.dtypes import (
    is_float,
    is_integer,
    represents_integers,
    represents_values,
    wrap_integer,
)
from equivalence_tests.proof.errors import Undecided
from equivalence_tests.proof.node import Node
from equivalence_tests.proof.primitives.primitive import (
    OnReals,
    Scalars,
    Site,
    all_of,
    define,
)
from equivalence_tests.proof.primitives.reals import (
    if_finite,
    infinite_operands,
    infinity_above,
    real,
    round_to_integer,
    uninterpreted_function,
)

# Comparisons


def _compared_with_infinity(scalars: Scalars, node: Node, args: list[Rat]) -> Rat | None:
    """Returns what a comparison with infinity says of finite values; None without infinity."""
    infinite = infinite_operands(scalars, node)
    if not any(infinite):
        return None
    side, above = infinity_above(scalars, node, infinite)
    answer = node.op == "ne" if node.op in ("eq", "ne") else above == (side == 1)
    return scalars.algebra.case_split([args[1 - side]], lambda _: if_finite(scalars, int(answer)))


def _equality(equal: bool) -> OnReals:
    def face(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
        if (answer := _compared_with_infinity(scalars, node, args)) is not None:
            return answer
        if args[0] == args[1] and is_float(node.args[0].dtype):
            return if_finite(scalars, int(equal))  # so NaN is looked for
        same = scalars.algebra.zero(scalars.algebra.sub(*args))
        return same if equal else scalars.algebra.complement(same)

    return face


def _less(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    if (answer := _compared_with_infinity(scalars, node, args)) is not None:
        return answer
    algebra, kind = scalars.algebra, node.args[0].dtype
    numbers = [scalars.constant_of(arg) for arg in node.args]
    if is_integer(kind) and numbers[0] is None and numbers[1] == jnp.iinfo(kind).max:
        algebra.assume(args[0], f"is less than {numbers[1]}")  # a count that saturates
        return algebra.number(1)
    return algebra.positive(algebra.sub(args[1], args[0]))


def _at_most(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    if (answer := _compared_with_infinity(scalars, node, args)) is not None:
        return answer
    return scalars.algebra.complement(scalars.algebra.positive(scalars.algebra.sub(*args)))


define(
    "eq",
    reals=_equality(True),
    commutative=True,
    folds=np.equal,
)
define(
    "ne",
    reals=_equality(False),
    commutative=True,
    folds=np.not_equal,
)
define(
    "lt",
    reals=_less,
    folds=np.less,
)
define(
    "le",
    reals=_at_most,
    folds=np.less_equal,
)
define(
    "gt",
    rewrite=lambda site: site.apply("lt", *site.args[::-1]),
    folds=np.greater,
)
define(
    "ge",
    rewrite=lambda site: site.apply("le", *site.args[::-1]),
    folds=np.greater_equal,
)
# In the total order NaN is the largest, and -0 is below 0.
define("lt_to", reals=_less)
define("le_to", reals=_at_most)
define("eq_to", reals=_equality(True))
define(
    "is_finite",
    reals=lambda scalars, node, args: if_finite(scalars, 1),
)

# Bits


def _of_bits(of: Callable[[Algebra, list[Rat]], Rat]) -> OnReals:
    def face(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
        if node.dtype != np.bool_:
            return uninterpreted_function()(scalars, node, args)
        return of(scalars.algebra, args)

    return face


def _sum_of_bits(algebra: Algebra, args: list[Rat], twice: int) -> Rat:
    """Returns `a + b - twice * a * b`: with 1 the or of two bits, with 2 the exclusive one."""
    product = algebra.mul(*args)
    return algebra.sub(algebra.add(*args), algebra.mul(algebra.number(twice), product))


def _bit_rules(neutral: bool) -> Callable[[Site], Node | None]:
    def rewrite(site: Site) -> Node | None:
        if site.args[0] is site.args[1]:
            return site.args[0]
        for here, there in (site.args, site.args[::-1]):
            constant = site.graph.scalar(here)
            if constant is not None and site.dtype == np.bool_:
                return site.broadcast(there) if constant == neutral else site.broadcast(here)
        return None

    return rewrite


def _not_rules(site: Site) -> Node | None:
    return site.args[0].args[0] if site.args[0].op == "not" else None


define(
    "and",
    reals=_of_bits(lambda algebra, args: algebra.mul(*args)),
    rewrite=_bit_rules(neutral=True),
    commutative=True,
    folds=np.bitwise_and,
)
define(
    "or",
    reals=_of_bits(lambda algebra, args: _sum_of_bits(algebra, args, 1)),
    rewrite=_bit_rules(neutral=False),
    commutative=True,
    folds=np.bitwise_or,
)
define(
    "xor",
    reals=_of_bits(lambda algebra, args: _sum_of_bits(algebra, args, 2)),
    commutative=True,
)
define(
    "not",
    reals=_of_bits(lambda algebra, args: algebra.complement(args[0])),
    rewrite=_not_rules,
    folds=np.logical_not,
)
for _name in (
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "population_count",
):
    define(_name, reals=uninterpreted_function())

# Selections


def _real_select(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    algebra = scalars.algebra
    which, *cases = args
    if node.args[0].dtype == np.bool_:
        return algebra.choose(which, cases[1], cases[0])
    result = cases[-1]
    for number, case in list(enumerate(cases[:-1]))[::-1]:
        here = algebra.zero(algebra.sub(which, algebra.number(number)))
        result = algebra.choose(here, case, result)
    return result


def _select_rules(site: Site) -> Node | None:
    which, *cases = site.args
    if all(case is cases[0] for case in cases):
        return site.broadcast(cases[0])
    constant = site.graph.scalar(which)
    if constant is not None and 0 <= int(constant) < len(cases):
        return site.broadcast(cases[int(constant)])
    if which.op == "convert_element_type" and which.args[0].dtype == np.bool_ and len(cases) == 2:
        return site.apply("select_n", which.args[0], *cases)
    if which.op == "not" and which.dtype == np.bool_:
        return site.apply("select_n", which.args[0], *cases[::-1])
    return site.graph.node("select_n", site.args, (), site.shape, site.dtype)


define(
    "select_n",
    reals=_real_select,
    signs=lambda node, signs: all(signs[1:]),
    rewrite=_select_rules,
    of_complex=True,
)

# Dtypes


def _real_conversion(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    source, target = node.args[0].dtype, node.dtype
    if target == np.bool_:
        return scalars.algebra.complement(scalars.algebra.zero(args[0]))
    if not jnp.issubdtype(source, jnp.inexact) and is_integer(target):
        fits = represents_integers(source, target) or (
            jnp.iinfo(target).max >= jnp.iinfo(source).max and scalars.algebra.nonneg(args[0])
        )
        return args[0] if fits else _wrapped_conversion(scalars, node, args)
    narrower = is_float(target) and jnp.finfo(target).bits < 32 and is_integer(source)
    if is_float(source) and is_float(target):
        narrower = jnp.finfo(target).bits < jnp.finfo(source).bits
    if narrower:
        text = f"rounding to {jnp.dtype(target)} is left out, as all rounding, and overflow there"
        scalars.algebra.assumptions[text] = None
    if is_float(source) and is_integer(target):
        return round_to_integer(scalars, node, args)
    if jnp.issubdtype(target, jnp.complexfloating) or jnp.issubdtype(source, jnp.complexfloating):
        raise Undecided("`convert_element_type` to or from complex numbers")
    return args[0]


def _wrapped_conversion(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    def of(args: list[Rat]) -> Rat:
        number = scalars.algebra.constant(args[0])
        if number is not None:
            return scalars.algebra.number(wrap_integer(int(number), node.dtype))
        return uninterpreted_function("as", integer=True)(scalars, node, args)

    return scalars.algebra.case_split(args, of)


def _conversion_rules(site: Site) -> Node | None:
    (arg,), dtype = site.args, site.dtype
    if arg.dtype == dtype:
        return arg
    if arg.op == "convert_element_type":  # wider, and back
        inner = arg.args[0]
        if inner.dtype == dtype and represents_values(inner.dtype, arg.dtype):
            return inner
        if represents_values(inner.dtype, arg.dtype) and represents_values(arg.dtype, dtype):
            return site.apply("convert_element_type", inner)
    if arg.op == "neg" and is_float(arg.dtype) and is_float(dtype):
        return site.apply("neg", site.apply("convert_element_type", arg.args[0]))
    return site.graph.node("convert_element_type", (arg,), (), site.shape, dtype)


def _conversion_sign(node: Node, signs: Sequence[bool]) -> bool:
    source = node.args[0]
    if any(is_float(each.dtype) for each in (source, node)):
        return signs[0]  # XLA takes the nearest number that there is
    return represents_integers(source.dtype, node.dtype) and signs[0]


def _reduced_precision(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    bits = [node.settings[f"{part}_bits"] for part in ("exponent", "mantissa")]
    text = f"rounding to {bits[0]} bits of exponent and {bits[1]} of mantissa is left out"
    scalars.algebra.assumptions[text] = None
    return args[0]


define(
    "convert_element_type",
    reals=_real_conversion,
    signs=_conversion_sign,
    rewrite=_conversion_rules,
    folds=np.asarray,
)
define("reduce_precision", reals=_reduced_precision, signs=all_of)
define(
    "floor",
    reals=real(Algebra.floor),
    signs=all_of,
)
define(
    "ceil",
    reals=real(lambda algebra, a: algebra.neg(algebra.floor(algebra.neg(a)))),
    signs=all_of,
)
define("round", reals=round_to_integer, signs=all_of)
define("nextafter", reals=uninterpreted_function(of_dtype=True))
