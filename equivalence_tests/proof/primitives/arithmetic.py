"""Sums, products, quotients, powers, roots; the larger, the smaller and the sign."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.algebra.algebra import Algebra, Rat
from equivalence_tests.proof.dtypes import DType, is_float, is_integer
from equivalence_tests.proof.errors import Undecided
from equivalence_tests.proof.node import Node
from equivalence_tests.proof.primitives.primitive import (
    Builder,
    OnReals,
    Scalars,
    Site,
    all_of,
    always,
    define,
)
from equivalence_tests.proof.primitives.reals import (
    infinite_operands,
    infinity_above,
    real,
    uninterpreted_function,
    wrapping,
)

# Sums


def _sum_rules(site: Site) -> Node | None:
    integral, floating = is_integer(site.dtype), is_float(site.dtype)
    pairs = (site.args, site.args[::-1])
    for here, there in pairs:
        number = site.graph.scalar(here)
        if number == 0 and (integral or (floating and np.signbit(number))):
            return site.broadcast(there)
    if site.args[0] is site.args[1] and (floating or integral):
        return site.apply("mul", site.args[0], site.graph.const(2, site.dtype))
    if not integral:
        return None
    for here, there in pairs:  # constants are gathered: exact, also where it wraps round
        if site.graph.scalar(here) is not None and there.op == "add":
            for inner, rest in (there.args, there.args[::-1]):
                if site.graph.scalar(inner) is not None:
                    return site.apply("add", rest, site.apply("add", here, inner))
    return None


def _difference_rules(site: Site) -> Node | None:
    if not (is_float(site.dtype) or is_integer(site.dtype)):
        return None
    second = site.args[1]
    negative = site.graph.apply("neg", (second,), (), second.shape, site.dtype)
    return site.apply("add", site.args[0], negative)


def _negative_rules(site: Site) -> Node | None:
    return site.args[0].args[0] if site.args[0].op == "neg" else None


define(
    "add",
    reals=wrapping(real(Algebra.add)),
    signs=all_of,
    rewrite=_sum_rules,
    commutative=True,
    folds=np.add,
    folds_floats=False,
    of_complex=True,
)
define(
    "sub",
    reals=wrapping(real(Algebra.sub)),
    rewrite=_difference_rules,
    folds=np.subtract,
    folds_floats=False,
    of_complex=True,
)
define(
    "neg",
    reals=wrapping(real(Algebra.neg)),
    rewrite=_negative_rules,
    folds=np.negative,
    of_complex=True,
)

# Products


def _strip_sign(graph: Builder, node: Node) -> tuple[Node, bool]:
    """Returns a factor without its sign, and whether it had one."""
    if node.op == "neg":
        return node.args[0], True
    number = graph.scalar(node)
    if number is not None and not np.isnan(number) and np.signbit(number):
        return graph.apply("neg", (node,), (), node.shape, node.dtype), True
    return node, False


def _without_signs(site: Site, op: str) -> Node | None:
    """Returns a product or quotient whose operands' signs have moved in front of it."""
    pairs = [_strip_sign(site.graph, arg) for arg in site.args]
    negative = sum(flip for _, flip in pairs)
    if not negative:
        return None
    inner = site.apply(op, *(node for node, _ in pairs))
    return site.apply("neg", inner) if negative % 2 else inner


def _is_power_of_two(value: float, dtype: DType) -> bool:
    info = jnp.finfo(dtype)
    if not np.isfinite(value) or value == 0:
        return False
    within = float(info.tiny) <= abs(value) <= 1 / float(info.tiny)
    return within and np.frexp(abs(value))[0] == 0.5


def _product_rules(site: Site) -> Node | None:
    floating = is_float(site.dtype)
    if floating and (moved := _without_signs(site, "mul")) is not None:
        return moved
    if floating or is_integer(site.dtype):
        for here, there in (site.args[::-1], site.args):
            if site.graph.scalar(here) == 1:
                return site.broadcast(there)
    return None


def _quotient_rules(site: Site) -> Node | None:
    if not is_float(site.dtype):
        return None
    if (moved := _without_signs(site, "div")) is not None:
        return moved
    by = site.graph.scalar(site.args[1])
    if by == 1:
        return site.broadcast(site.args[0])
    if by is not None and _is_power_of_two(by, site.dtype):
        return site.apply("mul", site.args[0], site.graph.const(1 / by, site.dtype))
    return None


def _product_sign(node: Node, signs: Sequence[bool]) -> bool:
    return node.args[0] is node.args[1] or all(signs)


def _whole_quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.where(b == 0, 1, np.abs(b)))


def _real_quotient(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    if is_float(node.dtype):
        return scalars.algebra.div(*args)
    if _divides(scalars, node):
        return _truncate(scalars.algebra, scalars.algebra.div(*args))
    return uninterpreted_function("whole quotient", integer=True)(scalars, node, args)


def _divides(scalars: Scalars, node: Node) -> bool:
    """True if whole numbers are divided by a constant that leaves none too large: not 0 or -1."""
    by = scalars.constant_of(node.args[1])
    return is_integer(node.dtype) and by is not None and int(by) not in (0, -1)


define(
    "mul",
    reals=wrapping(real(Algebra.mul)),
    signs=_product_sign,
    rewrite=_product_rules,
    commutative=True,
    folds=np.multiply,
    folds_floats=False,
    of_complex=True,
)
define(
    "div",
    reals=_real_quotient,
    signs=all_of,
    rewrite=_quotient_rules,
    folds=_whole_quotient,
    folds_floats=False,
)

# Powers and roots


def _integer_power_rules(site: Site, power: int) -> Node | None:
    if not (is_float(site.dtype) or is_integer(site.dtype)) or power not in (1, 2):
        return None
    (arg,) = site.args
    return arg if power == 1 else site.apply("mul", arg, arg)


def _real_power(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    if not is_float(node.dtype):
        return uninterpreted_function()(scalars, node, args)
    return scalars.algebra.to_the(*args)


def _power_rules(site: Site) -> Node | None:
    base, exponent = site.args
    if not is_float(site.dtype) or exponent.dtype == site.dtype:
        return None
    # So JAX lowers a whole exponent.
    converted = site.graph.apply(
        "convert_element_type", (exponent,), (), exponent.shape, site.dtype
    )
    return site.apply("pow", base, converted)


def _sign_of(algebra: Algebra, value: Rat) -> Rat:
    return algebra.sub(algebra.positive(value), algebra.positive(algebra.neg(value)))


def _cube_root(algebra: Algebra, value: Rat) -> Rat:
    if algebra.nonneg(value):
        return algebra.root(value, 3)
    return algebra.mul(_sign_of(algebra, value), algebra.root(algebra.absolute(value), 3))


def _truncate(algebra: Algebra, value: Rat) -> Rat:
    """A value without its fraction, rounded towards 0."""
    below = algebra.neg(algebra.floor(algebra.neg(value)))
    return algebra.choose(algebra.positive(algebra.neg(value)), below, algebra.floor(value))


def _real_remainder(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    if not (is_float(node.dtype) or _divides(scalars, node)):
        return uninterpreted_function(of_dtype=True)(scalars, node, args)
    algebra = scalars.algebra
    quotient = _truncate(algebra, algebra.div(*args))
    return algebra.sub(args[0], algebra.mul(args[1], quotient))


def _sign_of_the_first(node: Node, signs: Sequence[bool]) -> bool:
    return signs[0]


define("rem", reals=_real_remainder, signs=all_of, folds=np.fmod, folds_floats=False)
define(
    "square",
    reals=wrapping(real(lambda algebra, a: algebra.power(a, 2))),
    signs=always,
    rewrite=lambda site: _integer_power_rules(site, 2),
)
define(
    "integer_pow",
    reals=wrapping(lambda scalars, node, args: scalars.algebra.power(args[0], node.settings["y"])),
    signs=lambda node, signs: signs[0] or node.settings["y"] % 2 == 0,
    rewrite=lambda site: _integer_power_rules(site, dict(site.params)["y"]),  # type: ignore[call-overload]
)
define(
    "pow",
    reals=_real_power,
    signs=_sign_of_the_first,
    rewrite=_power_rules,
)
define(
    "sqrt",
    reals=real(Algebra.root),
    signs=always,
)
define(
    "rsqrt",
    reals=real(lambda algebra, a: algebra.div(algebra.number(1), algebra.root(a))),
    signs=all_of,
)
define(
    "cbrt",
    reals=real(_cube_root),
    signs=all_of,
)

# The larger, the smaller, magnitudes and signs


def _extreme_of(larger: bool) -> OnReals:
    """Returns the face of the larger of two values, or of the smaller."""

    def face(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
        infinite = infinite_operands(scalars, node)
        if any(infinite):
            side, above = infinity_above(scalars, node, infinite)
            return args[side] if above == larger else args[1 - side]
        algebra = scalars.algebra
        return algebra.greatest(*args) if larger else algebra.least(*args)

    return face


def _real_clamp(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    least, value, most = args
    infinite = infinite_operands(scalars, node)
    for end, number in ((-np.inf, 0), (np.inf, 2)):
        if infinite[number] and scalars.constant_of(node.args[number]) != end:
            raise Undecided("`clamp` to infinity")
    if not infinite[0]:
        value = scalars.algebra.greatest(value, least)
    return value if infinite[2] else scalars.algebra.least(value, most)


def _clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x, low), high)


def _magnitude_rules(site: Site) -> Node | None:
    (arg,) = site.args
    if not is_float(site.dtype):
        return None
    if arg.op == "neg":
        return site.apply("abs", arg.args[0])
    return arg if arg.op == "mul" and arg.args[0] is arg.args[1] else None


define(
    "max",
    reals=_extreme_of(larger=True),
    signs=lambda node, signs: any(signs),
    commutative="whole",
    folds=np.maximum,
    folds_floats=False,
)
define(
    "min",
    reals=_extreme_of(larger=False),
    signs=all_of,
    commutative="whole",
    folds=np.minimum,
    folds_floats=False,
)
define(
    "clamp",
    reals=_real_clamp,
    signs=lambda node, signs: signs[0] and signs[2],
    folds=_clamp,
    folds_floats=False,
)
define(
    "abs",
    reals=wrapping(real(Algebra.absolute)),
    signs=always,
    rewrite=_magnitude_rules,
    folds=np.absolute,
)
define(
    "sign",
    reals=real(_sign_of),
    folds=np.sign,
    folds_floats=False,
)
