"""What each primitive computes, on NumPy arrays of numbers and on arrays of balls.

A rule is called with the equation's parameters, what is known of the result, and the operands.
"""

import contextlib
import contextvars
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flint import arb
from numpy.typing import ArrayLike

from equivalence_tests.proof.dtypes import Aval, DType, is_float, is_whole
from equivalence_tests.proof.interpreter.moves import remainder

Array = np.ndarray
Params = Mapping[str, Any]
Rule = Callable[..., ArrayLike]  # (params, aval, *operands)
OfArrays = Callable[..., ArrayLike]


class Unclear(Exception):
    """A branch that cannot be decided: a ball holds numbers on both sides."""


class Undefined(Unclear):
    """A comparison with what is no number: something was divided by 0."""


def _either(of_balls: Callable[..., arb], of_numbers: OfArrays, count: int = 1) -> Rule:
    """A function of so many numbers by NumPy, of balls element by element."""
    spread = np.frompyfunc(of_balls, count, 1)

    def rule(params: Params, aval: Aval, *args: Array) -> ArrayLike:
        return np.asarray((spread if args[0].dtype == object else of_numbers)(*args))

    return rule


def _of_arrays(function: OfArrays) -> Rule:
    """A function that is the same for numbers and balls."""
    return lambda params, aval, *args: function(*args)


# Two balls that agree in so many digits hold one number, or an input was made for them not to.
_TIE = arb("1e-40")
_ties_are_equal = contextvars.ContextVar("ties_are_equal", default=False)


@contextlib.contextmanager
def ties_are_equal() -> Iterator[None]:
    """Within it, balls that overlap and are narrow are equal, where they are compared.

    0.1 * 0.1 and 0.01 are one number, which balls cannot show. For examples, not for proofs.
    """
    token = _ties_are_equal.set(True)
    try:
        yield
    finally:
        _ties_are_equal.reset(token)


def _is_tie(a: arb, b: arb) -> bool:
    """Whether two balls are taken for equal; False if they are apart."""
    if not a.overlaps(b):
        return False
    if _ties_are_equal.get() and a.is_finite() and abs(a - b) < _TIE * (1 + abs(a)):
        return True
    if a.is_nan() or b.is_nan():
        raise Undefined(f"{a} against {b}")
    raise Unclear(f"{a} against {b}")


def _compare(function: Callable[[Any, Any], bool]) -> Rule:
    def certain(a: arb | int, b: arb | int) -> bool:
        if isinstance(a, arb) and isinstance(b, arb):
            exact = a.is_exact() and b.is_exact()
            if not exact and _is_tie(a, b):
                return bool(function(0, 0))
        return bool(function(a, b))

    spread = np.frompyfunc(certain, 2, 1)

    def rule(params: Params, aval: Aval, a: Array, b: Array) -> ArrayLike:
        if object in (a.dtype, b.dtype):
            return np.asarray(spread(a, b)).astype(bool)
        return np.asarray(function(a, b))

    return rule


_largest = _either(lambda a, b: a.max(b), np.maximum, 2)
_smallest = _either(lambda a, b: a.min(b), np.minimum, 2)
_not_equal = _compare(operator.ne)


def _convert(params: Params, aval: Aval, x: Array) -> ArrayLike:
    if x.dtype != object:
        if is_float(x.dtype) and is_whole(aval.dtype):
            return _saturated(np.trunc(np.where(np.isnan(x), 0, x)), aval.dtype)
        return x
    if is_float(aval.dtype):
        return x
    if aval.dtype == np.bool_:
        return _not_equal(params, aval, x, np.full(x.shape, arb(0)))
    return _saturated(np.asarray(np.frompyfunc(_truncated, 1, 1)(x)), aval.dtype)


def _saturated(wholes: Array, dtype: DType) -> Array:
    """Whole numbers in a dtype; what it cannot hold becomes its nearest number, as in XLA."""
    info = np.iinfo(dtype)
    most = np.asarray(info.max).astype(wholes.dtype)  # in float32, 2**31 - 1 is 2**31
    above = wholes >= most
    rest = np.maximum(np.where(above, 0, wholes), info.min).astype(dtype)
    return np.where(above, np.asarray(info.max, dtype), rest)


def _truncated(value: arb) -> int:
    down = value.floor() if value >= 0 else value.ceil()
    whole = down.unique_fmpz()
    if whole is None:
        raise Unclear(f"{value} as a whole number")
    return int(whole)


def _power(params: Params, aval: Aval, a: Array, b: Array) -> ArrayLike:
    if a.dtype != object:
        return np.power(a.astype(aval.dtype), b.astype(aval.dtype))
    return np.asarray(np.frompyfunc(_one_power, 2, 1)(a, b))


def _one_power(a: arb, b: arb | int) -> arb:
    if not isinstance(b, arb):
        return a ** int(b)
    whole = b.unique_fmpz() if b.is_exact() else None
    if whole is not None and abs(int(whole)) < 10**6:
        return a ** int(whole)
    return (a.log() * b).exp() if a > 0 else a**b


def _select(params: Params, aval: Aval, which: Array, *cases: Array) -> ArrayLike:
    which = np.broadcast_to(np.asarray(which).astype(int), aval.shape)
    result = np.empty(aval.shape, cases[0].dtype)
    spread = [np.broadcast_to(case, aval.shape) for case in cases]
    for index in np.ndindex(aval.shape):
        result[index] = spread[which[index]][index]
    return result


def _broadcast(params: Params, aval: Aval, x: Array, *_: Array) -> ArrayLike:
    shape = [1] * len(aval.shape)
    for axis, size in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), aval.shape)


def _reshape(params: Params, aval: Aval, x: Array) -> ArrayLike:
    order = params.get("dimensions")
    return (x if order is None else x.transpose(order)).reshape(aval.shape)


def _iota(params: Params, aval: Aval) -> ArrayLike:
    shape, axis = params["shape"], params["dimension"]
    row = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(row, shape)


def _reduce(of_two: Callable[[Any, Any], Any], of_numbers: OfArrays, empty: Any) -> Rule:
    def rule(params: Params, aval: Aval, x: Array) -> ArrayLike:
        axes = tuple(params["axes"])
        if x.dtype != object:
            return of_numbers(x, axis=axes)
        result = np.empty(aval.shape, object)
        rows = np.moveaxis(x, axes, range(len(axes))).reshape(-1, *aval.shape)
        for index in np.ndindex(aval.shape):
            items = [rows[(number, *index)] for number in range(len(rows))]
            result[index] = functools.reduce(of_two, items) if items else empty
        return result

    return rule


def _dot(params: Params, aval: Aval, a: Array, b: Array) -> ArrayLike:
    (lc, rc), (lb, rb) = params["dimension_numbers"]
    lf = [axis for axis in range(a.ndim) if axis not in (*lc, *lb)]
    rf = [axis for axis in range(b.ndim) if axis not in (*rc, *rb)]
    left = a.transpose(*lb, *lf, *lc)
    right = b.transpose(*rb, *rf, *rc)
    batch, inner = [a.shape[axis] for axis in lb], [a.shape[axis] for axis in lc]
    left = left.reshape(math.prod(batch), -1, math.prod(inner))
    right = right.reshape(math.prod(batch), -1, math.prod(inner))
    rows = [np.dot(x, y.T) for x, y in zip(left, right, strict=True)]
    return np.array(rows).reshape(aval.shape)


def _slice(params: Params, aval: Aval, x: Array) -> ArrayLike:
    strides = params["strides"] or [1] * x.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*each) for each in bounds)]


def _accumulate(function: OfArrays) -> Rule:
    def rule(params: Params, aval: Aval, x: Array) -> ArrayLike:
        axis = params["axis"]
        if params["reverse"]:
            return np.flip(function(np.flip(x, axis), axis=axis), axis)
        return function(x, axis=axis)

    return rule


def _integer_pow(params: Params, aval: Aval, x: Array) -> ArrayLike:
    power = params["y"]
    if not power:
        return np.ones_like(x)
    result = functools.reduce(lambda a, b: a * b, itertools.repeat(x, abs(power)))
    return result if power > 0 else 1 / result


def _clamp(params: Params, aval: Aval, low: Array, x: Array, high: Array) -> ArrayLike:
    return _smallest(params, aval, _largest(params, aval, x, low), high)


def _div(params: Params, aval: Aval, a: Array, b: Array) -> ArrayLike:
    if a.dtype != object and is_whole(a.dtype):
        return np.sign(a) * np.sign(b) * (np.abs(a) // np.where(b == 0, 1, np.abs(b)))
    return a / b


def _logical(of_bools: OfArrays, of_bits: OfArrays) -> Rule:
    def rule(params: Params, aval: Aval, *args: Array) -> ArrayLike:
        return (of_bools if aval.dtype == np.bool_ else of_bits)(*args)

    return rule


def _is_finite(params: Params, aval: Aval, x: Array) -> ArrayLike:
    return np.ones(x.shape, bool) if x.dtype == object else np.isfinite(x)


# Those whose balls have a method of the primitive's name.
_METHODS: dict[str, OfArrays] = {
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": jax.lax.erf, "erfc": jax.lax.erfc, "lgamma": jax.lax.lgamma,
    "digamma": jax.lax.digamma, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "floor": np.floor,
    "ceil": np.ceil,
}  # fmt: skip

_COPIES = ("copy", "copy_p", "stop_gradient", "sharding_constraint")
_SAME_ORDER = ("squeeze", "expand_dims")
RULES: dict[str, Rule] = {
    **{name: _either(operator.methodcaller(name), function) for name, function in _METHODS.items()},
    "erf_inv": _either(operator.methodcaller("erfinv"), jax.lax.erf_inv),
    "add": _of_arrays(operator.add),
    "add_any": _of_arrays(operator.add),
    "sub": _of_arrays(operator.sub),
    "mul": _of_arrays(operator.mul),
    "div": _div,
    "rem": _of_arrays(
        lambda a, b: remainder(a, b) if object in (a.dtype, b.dtype) else np.fmod(a, b)
    ),
    "neg": _of_arrays(np.negative),
    "abs": _of_arrays(np.absolute),
    "square": _of_arrays(lambda a: a * a),
    "integer_pow": _integer_pow,
    "pow": _power,
    "sign": _either(lambda x: x.sgn(), np.sign),
    "max": _largest,
    "min": _smallest,
    "clamp": _clamp,
    "eq": _compare(operator.eq),
    "ne": _compare(operator.ne),
    "lt": _compare(operator.lt),
    "le": _compare(operator.le),
    "gt": _compare(operator.gt),
    "ge": _compare(operator.ge),
    "and": _logical(np.logical_and, np.bitwise_and),
    "or": _logical(np.logical_or, np.bitwise_or),
    "xor": _logical(np.logical_xor, np.bitwise_xor),
    "not": _logical(np.logical_not, np.bitwise_not),
    "is_finite": _is_finite,
    "select_n": _select,
    "cbrt": _either(lambda x: x.sgn() * abs(x).root(3), np.cbrt),
    "logistic": _either(lambda x: 1 / (1 + (-x).exp()), lambda x: 1 / (1 + np.exp(-x))),
    "convert_element_type": _convert,
    "reduce_precision": lambda params, aval, x: x,
    **dict.fromkeys(_COPIES, _of_arrays(lambda x: x)),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    **dict.fromkeys(_SAME_ORDER, lambda params, aval, x: x.reshape(aval.shape)),
    "transpose": lambda params, aval, x: x.transpose(params["permutation"]),
    "rev": lambda params, aval, x: np.flip(x, params["dimensions"]),
    "iota": _iota,
    "reduce_sum": _reduce(operator.add, np.sum, arb(0)),
    "reduce_prod": _reduce(operator.mul, np.prod, arb(1)),
    "reduce_max": _reduce(lambda a, b: a.max(b), np.max, arb("-inf")),
    "reduce_min": _reduce(lambda a, b: a.min(b), np.min, arb("inf")),
    "reduce_and": lambda params, aval, x: np.all(x, axis=tuple(params["axes"])),
    "reduce_or": lambda params, aval, x: np.any(x, axis=tuple(params["axes"])),
    "dot_general": _dot,
    "concatenate": lambda params, aval, *xs: np.concatenate(xs, params["dimension"]),
    "slice": _slice,
    "stack": lambda params, aval, *xs: np.stack(xs, params.get("axis", 0)),
    "cumsum": _accumulate(np.cumsum),
    "cumprod": _accumulate(np.cumprod),
}
