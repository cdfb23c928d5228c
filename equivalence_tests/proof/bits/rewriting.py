"""The rules by which nodes are made, all of which keep every bit.

Constants are folded, primitives rewritten, changes of shape simplified, and keys are one node with
their numbers.
"""

from collections.abc import Callable, Hashable, Sequence

import jax
import numpy as np

from equivalence_tests.proof.dtypes import DType, is_complex, is_float
from equivalence_tests.proof.node import Node, settings_of
from equivalence_tests.proof.primitives import PRIMITIVES, Primitive
from equivalence_tests.proof.primitives.primitive import Builder, Shape, Site


def fold_constants(
    graph: Builder, row: Primitive, args: Sequence[Node], dtype: DType
) -> Node | None:
    """Returns the constant result of an operation on constants; None of others."""
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


def _pad(g: Builder, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
    """Padding outside an array as arrays in a row."""
    array, value = args
    config = settings_of(params)["padding_config"]
    if value.shape or any(low < 0 or high < 0 or inside for low, high, inside in config):
        return g.node("pad", args, params, shape, dtype)
    for axis, (low, high, _) in enumerate(config):
        parts = [
            array if length is None else g.splat(value, _with_length(array.shape, axis, length))
            for length in (low, None, high)
            if length != 0
        ]
        if len(parts) > 1:
            longer = _with_length(array.shape, axis, low + array.shape[axis] + high)
            array = g.apply("concatenate", parts, (("dimension", axis),), longer, dtype)
    return array


def _with_length(shape: Shape, axis: int, length: int) -> Shape:
    return (*shape[:axis], length, *shape[axis + 1 :])


def _rev(g: Builder, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
    axes = tuple(axis for axis in settings_of(params)["dimensions"] if shape[axis] != 1)
    if not axes or args[0].op == "splat":
        return args[0]
    return g.node("rev", args, (("dimensions", axes),), shape, dtype)


def _random_wrap(g: Builder, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
    del params  # the dtype says which generator it is
    (data,) = args
    if data.op == "random_unwrap" and data.args[0].dtype == dtype:
        return data.args[0]
    return g.node("random_wrap", args, (), shape, dtype)


def _random_unwrap(g: Builder, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
    if args[0].op == "random_wrap":
        return args[0].args[0]
    return g.node("random_unwrap", args, params, shape, dtype)


def _random_seed(g: Builder, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
    seed = g.constant(args[0])
    names = (name for name in _GENERATORS if jax.random.key(0, impl=name).dtype == dtype)
    name = next(names, None)
    if seed is None or shape or name is None:
        return g.node("random_seed", args, params, shape, dtype)
    data = jax.random.key_data(jax.random.key(seed, impl=name))
    return g.apply("random_wrap", (g.const(np.asarray(data)),), (), shape, dtype)


_GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")
SHAPED: dict[str, Callable[[Builder, Args, Hashable, Shape, DType], Node]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _same_order,
    "transpose": _transpose,
    "pad": _pad,
    "rev": _rev,
    "random_wrap": _random_wrap,
    "random_unwrap": _random_unwrap,
    "random_seed": _random_seed,
}
