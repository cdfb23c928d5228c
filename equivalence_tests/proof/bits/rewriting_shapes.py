"""Rules that keep every bit, for changes of shape."""

from collections.abc import Callable, Hashable

import numpy as np

from equivalence_tests.proof.bits.nodes import Nodes
from equivalence_tests.proof.dtypes import DType
from equivalence_tests.proof.node import Node, settings_of

Shape = tuple[int, ...]
Args = tuple[Node, ...]


def _broadcast(g: Nodes, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
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


def _reshape(g: Nodes, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
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


def _same_order(g: Nodes, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
    del params  # they name axes of length 1
    return _reshape(g, args, (), shape, dtype)


def _transpose(g: Nodes, args: Args, params: Hashable, shape: Shape, dtype: DType) -> Node:
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


SHAPED: dict[str, Callable[[Nodes, Args, Hashable, Shape, DType], Node]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _same_order,
    "expand_dims": _same_order,
    "transpose": _transpose,
}
