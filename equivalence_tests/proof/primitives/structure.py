"""Operations that move, join and reduce entries; `reals.reals` says where each entry is read."""

import math
import operator

import numpy as np
from flint import arb
from numpy.typing import ArrayLike

from equivalence_tests.proof.dtypes import Aval
from equivalence_tests.proof.primitives.faces import (
    Array,
    OfArrays,
    Settings,
    of_arrays,
    of_operand,
    reduce,
)
from equivalence_tests.proof.primitives.primitive import OnNumbers, all_of, define

# Copies: what hints at how, not at what, is computed.
COPIES = (
    "copy",
    "optimization_barrier",
    "stop_gradient",
    "device_put",
    "sharding_constraint",
)


def _broadcast(params: Settings, aval: Aval, x: Array, *_: Array) -> ArrayLike:
    shape = [1] * len(aval.shape)
    for axis, size in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), aval.shape)


def _reshape(params: Settings, aval: Aval, x: Array) -> ArrayLike:
    order = params.get("dimensions")
    return (x if order is None else x.transpose(order)).reshape(aval.shape)


def _iota(params: Settings, aval: Aval) -> ArrayLike:
    shape, axis = params["shape"], params["dimension"]
    row = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(row, shape)


def _dot(params: Settings, aval: Aval, a: Array, b: Array) -> ArrayLike:
    (lc, rc), (lb, rb) = params["dimension_numbers"]
    lf = [axis for axis in range(a.ndim) if axis not in (*lc, *lb)]
    rf = [axis for axis in range(b.ndim) if axis not in (*rc, *rb)]
    lhs = a.transpose(*lb, *lf, *lc)
    rhs = b.transpose(*rb, *rf, *rc)
    batch, inner = [a.shape[axis] for axis in lb], [a.shape[axis] for axis in lc]
    lhs = lhs.reshape(math.prod(batch), -1, math.prod(inner))
    rhs = rhs.reshape(math.prod(batch), -1, math.prod(inner))
    rows = [np.dot(x, y.T) for x, y in zip(lhs, rhs, strict=True)]
    return np.array(rows).reshape(aval.shape)


def _slice(params: Settings, aval: Aval, x: Array) -> ArrayLike:
    strides = params["strides"] or [1] * x.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*each) for each in bounds)]


def _accumulate(function: OfArrays) -> OnNumbers:
    def rule(params: Settings, aval: Aval, x: Array) -> ArrayLike:
        axis = params["axis"]
        if params["reverse"]:
            return np.flip(function(np.flip(x, axis), axis=axis), axis)
        return function(x, axis=axis)

    return rule


def _same_order(params: Settings, aval: Aval, x: Array) -> ArrayLike:
    return x.reshape(aval.shape)


for _name in COPIES:
    define(_name, elementwise=False, numbers=of_arrays(lambda x: x))
# The rounding of what moves entries is that of the entries.
define("broadcast_in_dim", elementwise=False, numbers=_broadcast, signs=all_of, rounding=of_operand)
define("reshape", elementwise=False, numbers=_reshape, signs=all_of, rounding=of_operand)
define(
    "transpose",
    elementwise=False,
    numbers=lambda params, aval, x: x.transpose(params["permutation"]),
    signs=all_of,
    rounding=of_operand,
)
define("splat", elementwise=False, signs=all_of, rounding=of_operand)
define("squeeze", elementwise=False, numbers=_same_order)
define(
    "rev",
    elementwise=False,
    numbers=lambda params, aval, x: np.flip(x, params["dimensions"]),
    signs=all_of,
)
define("iota", elementwise=False, numbers=_iota)
define("slice", elementwise=False, numbers=_slice, signs=all_of)
define(
    "concatenate",
    elementwise=False,
    numbers=lambda params, aval, *xs: np.concatenate(xs, params["dimension"]),
    signs=all_of,
)
define(
    "stack",
    elementwise=False,
    numbers=lambda params, aval, *xs: np.stack(xs, params.get("axis", 0)),
)
define("reduce_sum", elementwise=False, numbers=reduce(operator.add, np.sum, arb(0)), signs=all_of)
define(
    "reduce_prod", elementwise=False, numbers=reduce(operator.mul, np.prod, arb(1)), signs=all_of
)
define(
    "reduce_max",
    elementwise=False,
    numbers=reduce(lambda a, b: a.max(b), np.max, arb("-inf")),
    signs=all_of,
)
define(
    "reduce_min",
    elementwise=False,
    numbers=reduce(lambda a, b: a.min(b), np.min, arb("inf")),
    signs=all_of,
)
define(
    "reduce_and",
    elementwise=False,
    numbers=lambda params, aval, x: np.all(x, axis=tuple(params["axes"])),
)
define(
    "reduce_or",
    elementwise=False,
    numbers=lambda params, aval, x: np.any(x, axis=tuple(params["axes"])),
)
define("dot_general", elementwise=False, numbers=_dot, signs=all_of)
define("cumsum", elementwise=False, numbers=_accumulate(np.cumsum), signs=all_of)
define("cumprod", elementwise=False, numbers=_accumulate(np.cumprod))
