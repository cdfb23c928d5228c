"""The rules by which nodes are made, all of which keep every bit.

Constants are folded, primitives rewritten, changes of shape simplified.
"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from equivalence_tests.proof.dtypes import DType, is_complex, is_float
from equivalence_tests.proof.node import Node, settings_of
from equivalence_tests.proof.primitives import PRIMITIVES, Primitive
from equivalence_tests.proof.primitives.primitive import Builder, Shape, Site


def fold_constants(
    graph: Builder, row: Primitive, args: Sequence[Node], dtype: DType
) -> Node | None:
    """Returns the constant result of an operation on constants; None of others.

    Sums, products and quotients of floating-point constants stay as they are written: over the
    reals they are meant without the rounding.
    """
    if row.folds is None or any(arg.shape for arg in args):
        return None
    if is_float(dtype) and not row.folds_floats:
        return None
    if any(arg.op != "const" or is_complex(arg.dtype) for arg in args):
        return None
    values = [graph.constant(arg) for arg in args]
    if any(value is None for value in values):
        return None
    if row.name in ("rem", "div"):
        numbers = [int(value) for value in values if value is not None]
        if numbers[1] == 0 or max(map(abs, numbers)) > 2**31:
            return None
    if row.name == "not" and dtype != np.bool_:
        return None
    if row.name == "convert_element_type" and is_float(args[0].dtype) and not is_float(dtype):
        return None  # no rule says what becomes of a number that does not fit
    with np.errstate(all="ignore"):
        return graph.const(np.asarray(row.folds(*values)).astype(dtype), dtype)


_WITHOUT_SETTINGS = frozenset(("add", "sub", "mul", "div", "neg"))


def elementwise(
    graph: Builder,
    op: str,
    args: tuple[Node, ...],
    params: Hashable,
    shape: Shape,
    dtype: DType,
) -> Node:
    """Returns the node of an operation whose operands are arrays of one shape or scalars."""
    if params and op in _WITHOUT_SETTINGS:
        return graph.node(op, args, params, shape, dtype)  # of a kind that the rules do not know
    row = PRIMITIVES[op]
    if (constant := fold_constants(graph, row, args, dtype)) is not None:
        return constant
    if row.rewrite is not None:
        rewritten = row.rewrite(Site(graph, args, params, shape, dtype))
        if rewritten is not None:
            return rewritten
    ordered = row.commutative is True or (row.commutative == "whole" and not is_float(dtype))
    if ordered and not is_complex(args[0].dtype):
        args = tuple(sorted(args, key=lambda arg: arg.id))
    return graph.node(op, args, params, shape, dtype)


Args = tuple[Node, ...]


def _broadcast(g: Builder, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
    (arg,) = args[:1]
    if len(args) > 1:
        return g.node("broadcast_in_dim", args, params, shape, dtype)
    if not arg.shape:
        return g.splat(arg, shape)
    if arg.op == "splat":
        return g.splat(arg.args[0], shape)
    dims = tuple(settings_of(params)["broadcast_dimensions"])
    if arg.shape == shape and dims == tuple(range(len(shape))):
        return arg
    if int(np.prod(arg.shape)) == int(np.prod(shape)) and list(dims) == sorted(dims):
        return _reshape(g, args, (), shape, dtype)
    return g.node("broadcast_in_dim", args, (("broadcast_dimensions", dims),), shape, dtype)


def _reshape(g: Builder, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
    (arg,) = args[:1]
    order = settings_of(params).get("dimensions")
    if len(args) > 1:
        return g.node("reshape", args, params, shape, dtype)
    if order is not None:  # it is read along its axes in another order
        moved = tuple(arg.shape[axis] for axis in order)
        arg = _transpose(g, args, (("permutation", order),), moved, dtype)
    if arg.op == "reshape" and len(arg.args) == 1:
        arg = arg.args[0]
    if arg.shape == shape:
        return arg
    if arg.op == "splat":
        return g.splat(arg.args[0], shape)
    if not arg.shape:
        return g.splat(arg, shape)
    return g.node("reshape", (arg,), (), shape, dtype)


def _same_order(g: Builder, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
    del params  # they name axes of length 1
    return _reshape(g, args, (), shape, dtype)


def _transpose(g: Builder, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
    (arg,) = args
    order = tuple(settings_of(params)["permutation"])
    if arg.op == "splat":
        return g.splat(arg.args[0], shape)
    if arg.op == "transpose":
        inner = arg.settings["permutation"]
        order, arg = tuple(inner[axis] for axis in order), arg.args[0]
    if order == tuple(range(len(order))):
        return arg
    return g.node("transpose", (arg,), (("permutation", order),), shape, dtype)


SHAPED: dict[str, Callable[[Builder, Args, Hashable, Shape, DType], Node]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _same_order,
    "transpose": _transpose,
}
