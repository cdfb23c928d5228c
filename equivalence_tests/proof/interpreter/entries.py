"""Tables of the functions that primitives compute, on numbers and on balls."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flint import arb

from equivalence_tests.proof.dtypes import is_subdtype
from equivalence_tests.proof.errors import Unclear, Undefined
from equivalence_tests.proof.interpreter.balls import Array, order

Params = Mapping[str, Any]  # of an equation, as JAX names them
Rule = Callable[..., Any]
Aval = jax.ShapeDtypeStruct  # the shape and dtype of a variable


def is_kind(aval: Any, kind: Any) -> bool:
    """True if a dtype is of a kind."""
    return is_subdtype(aval.dtype, kind)


# Entry by entry


def _each(function: Rule, operands: int = 1) -> Rule:
    return np.frompyfunc(function, operands, 1)


def _integer_part(value: arb) -> int:
    """Returns a number without its fraction."""
    integer = (value.ceil() if order(value, arb(0)) < 0 else value.floor()).unique_fmpz()
    if integer is None:
        raise Unclear(f"{value} as an integer")
    return int(integer)


def _power(a: arb, b: arb | int) -> arb:
    if not isinstance(b, arb) or (b.is_integer() and abs(b) < 10**6):
        return a ** int((b.unique_fmpz() or 0) if isinstance(b, arb) else b)
    return (a.log() * b).exp() if a > 0 else a**b


def _is_finite(value: arb) -> bool:
    if not value.is_finite():
        raise Undefined(f"whether {value} is finite")
    return True


def _nearest(value: arb, rounding_method: jax.lax.RoundingMethod) -> arb:
    down, even = value.floor(), rounding_method == jax.lax.RoundingMethod.TO_NEAREST_EVEN
    if order(value - down, arb(0.5)) != 0:
        return (value + 0.5).floor()
    return down + (_integer_part(down) % 2 if even else int(value > 0))


# Names of NumPy's functions, where they are others.
_NUMPY = {"add_any": "add", "sub": "subtract", "mul": "multiply", "neg": "negative"}
_NUMPY |= {"max": "maximum", "min": "minimum", "eq": "equal", "ne": "not_equal", "lt": "less"}
_NUMPY |= {"gt": "greater", "le": "less_equal", "ge": "greater_equal", "and": "bitwise_and"}
_NUMPY |= {"or": "bitwise_or", "not": "invert", "div": "true_divide", "pow": "power"}
_NUMPY |= {"rem": "fmod", "is_finite": "isfinite"}


def _of_numpy(names: str) -> dict[str, Rule]:
    return {name: getattr(np, _NUMPY.get(name, name)) for name in names.split()}


_RING = _of_numpy("add add_any sub mul neg abs square")
_OF_WHOLES = _RING | _of_numpy("max min sign eq ne lt gt le ge and or not")
_OF_NUMBERS = _OF_WHOLES | _of_numpy("div pow rem sqrt exp log tanh sin cos exp2 cbrt floor ceil")
_OF_NUMBERS |= _of_numpy("is_finite logaddexp")
_OF_NUMBERS["rsqrt"] = lambda x: 1 / np.sqrt(x)
_OF_NUMBERS["logistic"] = lambda x: 1 / (1 + np.exp(-x))
_OF_BALLS = _RING | {
    "div": np.true_divide,
    "rsqrt": _each(arb.rsqrt),
    "logistic": _OF_NUMBERS["logistic"],
    "max": _each(arb.max, 2),
    "min": _each(arb.min, 2),
    "pow": _each(_power, 2),
    "rem": _each(lambda a, b: a - b * _integer_part(a / b), 2),
    "sign": _each(arb.sgn),
    "is_finite": _each(_is_finite),
    "exp2": _each(lambda x: (x * arb(2).log()).exp()),
    "cbrt": _each(lambda x: x.sgn() * abs(x).root(3)),
    "erf_inv": _each(arb.erfinv),
    "logaddexp": _each(lambda a, b: (a.exp() + b.exp()).log(), 2),
}
for _holds in (operator.eq, operator.ne, operator.lt, operator.gt, operator.le, operator.ge):
    _OF_BALLS[_holds.__name__] = _each(lambda a, b, holds=_holds: holds(order(a, b), 0), 2)
    if _holds in (operator.eq, operator.lt, operator.le):  # in the total order, without NaN
        _OF_BALLS[f"{_holds.__name__}_to"] = _OF_BALLS[_holds.__name__]
for _name in (
    *("sqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh"),
    *("asin", "acos", "atan", "asinh", "acosh", "atanh", "floor", "ceil", "erf", "erfc"),
    *("lgamma", "digamma"),
):
    _OF_BALLS[_name] = _each(getattr(arb, _name))


# Arrays


def _select(params: Params, out: Aval, which: Array, *cases: Array) -> Array:
    number = np.broadcast_to(which.astype(int), out.shape)
    spread = np.stack([np.broadcast_to(case, out.shape) for case in cases])
    return np.take_along_axis(spread, number[None], 0)[0]


def convert(params: Params, out: Aval, x: Array) -> Array:
    """Converts numbers or balls to another dtype."""
    if x.dtype != object or is_kind(out, jnp.floating):
        return x
    if out.dtype == np.bool_:
        return _each(lambda value: order(value, arb(0)) != 0)(x)
    limits = jnp.iinfo(out.dtype)
    return np.clip(_each(_integer_part)(x), limits.min, limits.max)  # as XLA


def _broadcast(params: Params, out: Aval, x: Array, *_: Array) -> Array:
    sizes = dict(zip(params["broadcast_dimensions"], x.shape, strict=True))
    return x.reshape([sizes.get(axis, 1) for axis in range(len(out.shape))])


def _in_shape(params: Params, out: Aval, x: Array) -> Array:
    axes = params.get("dimensions") if "new_sizes" in params else None  # of a reshape
    return (x if axes is None else x.transpose(axes)).reshape(out.shape)


def _dot(params: Params, out: Aval, a: Array, b: Array) -> Array:
    (inner_a, inner_b), (batch_a, batch_b) = params["dimension_numbers"]
    axes_a, axes_b = list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))
    for i, j in zip((*inner_a, *batch_a), (*inner_b, *batch_b), strict=True):
        axes_b[j] = axes_a[i]
    batch, common = [axes_a[i] for i in batch_a], {*axes_a} & {*axes_b}
    free = [axis for axis in (*axes_a, *axes_b) if axis not in common]
    return np.einsum(a, axes_a, b, axes_b, [*batch, *free])


def _reduction(meet: np.ufunc, params: Params, out: Aval, x: Array) -> Array:
    axes = tuple(params["axes"])
    rows = np.moveaxis(x, axes, range(len(axes))).reshape(-1, *out.shape)
    return meet.reduce(rows, axis=0)


def _along(meet: np.ufunc, params: Params, out: Aval, x: Array) -> Array:
    way = slice(None, None, -1 if params["reverse"] else 1)
    rows = np.moveaxis(x, params["axis"], 0)[way]
    return np.moveaxis(meet.accumulate(rows, axis=0)[way], 0, params["axis"])


def _slice(params: Params, out: Aval, x: Array) -> Array:
    strides = params.get("strides") or [1] * x.ndim
    ends = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*each) for each in ends)]


def _iota(params: Params, out: Aval) -> Array:
    shape = [-1 if axis == params["dimension"] else 1 for axis in range(len(out.shape))]
    return np.broadcast_to(np.arange(out.shape[params["dimension"]]).reshape(shape), out.shape)


_MOVES: dict[str, Rule] = {  # of entries of any kind
    "select_n": _select,
    "broadcast_in_dim": _broadcast,
    "reshape": _in_shape,
    "squeeze": _in_shape,
    "transpose": lambda params, out, x: x.transpose(params["permutation"]),
    "rev": lambda params, out, x: np.flip(x, params["dimensions"]),
    "concatenate": lambda params, out, *xs: np.concatenate(xs, params["dimension"]),
    "slice": _slice,
    "iota": _iota,
}
_OVER_AXES: dict[str, tuple[Rule, str]] = {  # what meets along which axes
    "reduce_sum": (_reduction, "add"),
    "reduce_prod": (_reduction, "mul"),
    "reduce_max": (_reduction, "max"),
    "reduce_min": (_reduction, "min"),
    "cumsum": (_along, "add"),
    "cumprod": (_along, "mul"),
    "cummax": (_along, "max"),
    "cummin": (_along, "min"),
    "cumlogsumexp": (_along, "logaddexp"),
}


def compute(name: str, params: Params, out: Aval, args: Sequence[Array]) -> Any:
    """Returns the value of a primitive on numbers or on balls; None if it has no rule for them."""
    if name in _MOVES:
        return _MOVES[name](params, out, *args)
    of_balls = any(arg.dtype == object for arg in args)
    of_floats = any(is_kind(arg, jnp.floating) for arg in args)
    functions = _OF_BALLS if of_balls else _OF_NUMBERS if of_floats else _OF_WHOLES
    if name in _OVER_AXES:
        over, meet = _OVER_AXES[name]
        return over(functions[meet], params, out, *args)
    if name == "clamp":
        return functions["min"](functions["max"](args[1], args[0]), args[2])
    if name == "integer_pow":
        return args[0] ** params["y"]
    if name == "dot_general" and all(arg.dtype in (object, np.float64) for arg in args):
        return _dot(params, out, *args)
    if name == "round" and of_balls:
        return _each(functools.partial(_nearest, **params))(*args)
    return functions[name](*args) if name in functions else None
