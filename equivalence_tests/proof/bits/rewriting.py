"""Rules that keep every bit, for operations that treat every element alike."""

from collections.abc import Hashable, Sequence

import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.bits.folding import folded
from equivalence_tests.proof.bits.nodes import COMMUTATIVE, Node, Nodes, settings_of
from equivalence_tests.proof.dtypes import DType, is_complex, is_float, is_whole, keeps

Shape = tuple[int, ...]
_MIRRORED = {"gt": "lt", "ge": "le"}


def elementwise(
    g: Nodes,
    op: str,
    args: tuple[Node, ...],
    params: Hashable,
    shape: Shape,
    dtype: DType,
) -> Node:
    """The node of an operation whose operands are arrays of one shape or scalars."""

    def again(op: str, *args: Node) -> Node:
        return g.apply(op, args, (), shape, dtype)

    def fitted(node: Node) -> Node:
        return g.splat(node, shape) if node.shape != shape else node

    floating, whole = is_float(dtype), is_whole(dtype)
    if params and op in ("add", "sub", "mul", "div", "neg"):
        return g.node(op, args, params, shape, dtype)  # of a kind that the rules do not know
    if (constant := folded(g, op, args, dtype)) is not None:
        return constant
    if op in _MIRRORED:
        return again(_MIRRORED[op], args[1], args[0])
    if op == "sub" and (floating or whole):
        negative = g.apply("neg", (args[1],), (), args[1].shape, dtype)
        return again("add", args[0], negative)
    if op == "pow" and floating and args[1].dtype != dtype:  # so JAX lowers a whole exponent
        exponent = g.apply("convert_element_type", (args[1],), (), args[1].shape, dtype)
        return again("pow", args[0], exponent)
    if op in ("square", "integer_pow") and (floating or whole):
        power = 2 if op == "square" else settings_of(params)["y"]
        if power == 1:
            return args[0]
        if power == 2:
            return again("mul", args[0], args[0])
    if op == "convert_element_type":
        return _converted(g, args[0], dtype, shape)
    if op == "neg" and args[0].op == "neg":
        return args[0].args[0]
    if op == "abs" and args[0].op == "neg" and floating:
        return again("abs", args[0].args[0])
    if op == "abs" and floating and _is_square(args[0]):
        return args[0]
    if op == "not" and args[0].op == "not":
        return args[0].args[0]
    if op == "select_n":
        return _selected(g, args, shape, dtype)
    if op in ("mul", "div") and floating:
        stripped, flips = zip(*(_sign_off(g, arg) for arg in args), strict=True)
        if any(flips):
            inner = again(op, *stripped)
            return again("neg", inner) if sum(flips) % 2 else inner
        first, second = (g.scalar(arg) for arg in args)
        if second == 1:
            return fitted(args[0])
        if op == "mul" and first == 1:
            return fitted(args[1])
        if op == "div" and second is not None and _is_power_of_two(second, dtype):
            return again("mul", args[0], g.const(1 / second, dtype))
    if op == "add":
        for here, there in (args, args[::-1]):
            number = g.scalar(here)
            if number == 0 and (whole or (floating and np.signbit(number))):
                return fitted(there)
        if args[0] is args[1] and (floating or whole):
            return again("mul", args[0], g.const(2, dtype))
        if whole:  # exact, also where it wraps round
            for here, there in (args, args[::-1]):
                number = g.scalar(here)
                if number is not None and there.op == "add":
                    for inner, rest in (there.args, there.args[::-1]):
                        if g.scalar(inner) is not None:
                            return again("add", rest, again("add", here, inner))
    if op == "mul" and whole:
        for here, there in (args, args[::-1]):
            if g.scalar(here) == 1:
                return fitted(there)
    ordered = op in COMMUTATIVE or (op in ("max", "min") and not floating)
    if ordered and not is_complex(args[0].dtype):
        args = tuple(sorted(args, key=lambda arg: arg.id))
    if op == "and" or op == "or":
        if args[0] is args[1]:
            return args[0]
        for here, there in (args, args[::-1]):
            if (known := g.scalar(here)) is not None and dtype == np.bool_:
                return fitted(there) if known == (op == "and") else fitted(here)
    return g.node(op, args, params, shape, dtype)


def _selected(g: Nodes, args: Sequence[Node], shape: Shape, dtype: DType) -> Node:
    """`select_n`, whose first operand says which of the others it is."""
    which, *cases = args
    if all(case is cases[0] for case in cases):
        return g.splat(cases[0], shape) if cases[0].shape != shape else cases[0]
    known = g.scalar(which)
    if known is not None and 0 <= int(known) < len(cases):
        chosen = cases[int(known)]
        return g.splat(chosen, shape) if chosen.shape != shape else chosen
    if which.op == "convert_element_type" and which.args[0].dtype == np.bool_ and len(cases) == 2:
        return g.apply("select_n", (which.args[0], *cases), (), shape, dtype)
    if which.op == "not" and which.dtype == np.bool_:
        return g.apply("select_n", (which.args[0], *cases[::-1]), (), shape, dtype)
    return g.node("select_n", tuple(args), (), shape, dtype)


def _converted(g: Nodes, arg: Node, dtype: DType, shape: Shape) -> Node:
    if arg.dtype == dtype:
        return arg
    if arg.op == "convert_element_type":  # wider, and back
        inner = arg.args[0]
        if inner.dtype == dtype and keeps(inner.dtype, arg.dtype):
            return inner
        if keeps(inner.dtype, arg.dtype) and keeps(arg.dtype, dtype):
            return _converted(g, inner, dtype, shape)
    if arg.op == "neg" and is_float(arg.dtype) and is_float(dtype):
        inner = g.apply("convert_element_type", (arg.args[0],), (), shape, dtype)
        return g.apply("neg", (inner,), (), shape, dtype)
    return g.node("convert_element_type", (arg,), (), shape, dtype)


def _sign_off(g: Nodes, node: Node) -> tuple[Node, bool]:
    """A factor without its sign, and whether it had one."""
    if node.op == "neg":
        return node.args[0], True
    number = g.scalar(node)
    if number is not None and not np.isnan(number) and np.signbit(number):
        return g.apply("neg", (node,), (), node.shape, node.dtype), True
    return node, False


def _is_square(node: Node) -> bool:
    return node.op == "mul" and node.args[0] is node.args[1]


def _is_power_of_two(value: float, dtype: DType) -> bool:
    info = jnp.finfo(dtype)
    if not np.isfinite(value) or value == 0:
        return False
    within = float(info.tiny) <= abs(value) <= 1 / float(info.tiny)
    return within and np.frexp(abs(value))[0] == 0.5 and float(info.tiny) <= 1 / abs(value)
