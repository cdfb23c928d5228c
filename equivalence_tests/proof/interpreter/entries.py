"""Tables of what primitives compute, for numbers and for balls."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flint import arb

from equivalence_tests.proof.interpreter.balls import Array, Unclear, Undefined, order

Params = Mapping[str, Any]  # of an equation, as JAX names them
Rule = Callable[..., Any]
Aval = jax.ShapeDtypeStruct  # the shape and dtype of a variable


def is_kind(aval: Any, kind: Any) -> bool:
    """Returns whether a dtype is of a kind."""
    return _is_subdtype(aval.dtype, kind)


_is_subdtype = functools.lru_cache(256)(jnp.issubdtype)


# Primitives: entry by entry


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


_COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "gt", "le", "ge")}
# Those of NumPy and Python take balls as well.
_ALIKE: dict[str, Rule] = {name: getattr(operator, name) for name in ("add", "sub", "mul", "neg")}
_ALIKE |= {name: getattr(np, name) for name in ("abs", "square", "sqrt", "exp", "expm1", "log")}
_ALIKE |= {name: getattr(np, name) for name in ("log1p", "sin", "cos", "tan", "sinh", "cosh")}
_ALIKE |= {
    "add_any": operator.add,
    "div": operator.truediv,
    "tanh": np.tanh,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
}
_OF_WHOLES = {name: _ALIKE[name] for name in ("add", "sub", "mul", "neg", "abs", "add_any")}
_OF_WHOLES |= _COMPARISONS | {"max": np.maximum, "min": np.minimum, "sign": np.sign}
_OF_WHOLES |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_OF_WHOLES |= {"not": np.invert}
_OF_NUMBERS = _ALIKE | _OF_WHOLES | {"pow": np.power, "rem": np.fmod, "is_finite": np.isfinite}
_OF_NUMBERS |= {name: getattr(np, name) for name in ("floor", "ceil", "exp2", "cbrt")}
_OF_BALLS = _ALIKE | {
    "max": _each(arb.max, 2),
    "min": _each(arb.min, 2),
    "pow": _each(_power, 2),
    "rem": _each(lambda a, b: a - b * _integer_part(a / b), 2),
    "sign": _each(arb.sgn),
    "is_finite": _each(_is_finite),
    "exp2": _each(lambda x: (x * arb(2).log()).exp()),
    "cbrt": _each(lambda x: x.sgn() * abs(x).root(3)),
    "erf_inv": _each(arb.erfinv),
}
_OF_BALLS |= {
    name: _each(lambda a, b, holds=holds: holds(order(a, b), 0), 2)
    for name, holds in _COMPARISONS.items()
}
_OF_BALLS |= {name: _each(getattr(arb, name)) for name in ("floor", "ceil", "erf", "erfc")}
_OF_BALLS |= {name: _each(getattr(arb, name)) for name in ("asin", "acos", "atan", "lgamma")}
_OF_BALLS |= {name: _each(getattr(arb, name)) for name in ("asinh", "acosh", "atanh", "digamma")}

# Primitives: arrays


def _select(params: Params, out: Aval, which: Array, *cases: Array) -> Array:
    number = np.broadcast_to(which.astype(int), out.shape)
    spread = np.stack([np.broadcast_to(case, out.shape) for case in cases])
    return np.take_along_axis(spread, number[None], 0)[0]


def convert(params: Params, out: Aval, x: Array) -> Any:
    """Returns what another dtype makes of numbers or of balls."""
    if x.dtype == object and out.dtype == np.bool_:
        return _each(lambda value: order(value, arb(0)) != 0)(x)
    of_floats = x.dtype == object or is_kind(x, jnp.floating)
    if not (of_floats and is_kind(out, jnp.integer)):
        return x
    if x.dtype != object:
        x = np.nan_to_num(x.astype(float), posinf=1e99, neginf=-1e99)
    wholes = _each(_integer_part if x.dtype == object else int)(x)
    return np.clip(wholes, jnp.iinfo(out.dtype).min, jnp.iinfo(out.dtype).max)  # as XLA


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
    if a.dtype != object:  # int8 has no room for a sum in int32
        a, b = (x.astype(np.promote_types(x.dtype, out.dtype)) for x in (a, b))
    return np.einsum(a, axes_a, b, axes_b, [*batch, *free])


def _reduction(meet: np.ufunc, params: Params, out: Aval, x: Array) -> Array:
    axes = tuple(params["axes"])
    rows = np.moveaxis(x, axes, range(len(axes))).reshape(-1, *out.shape)
    return meet.reduce(rows, axis=0)


def _along(meet: np.ufunc, params: Params, out: Aval, x: Array) -> Array:
    order = slice(None, None, -1 if params["reverse"] else 1)
    rows = np.moveaxis(x, params["axis"], 0)[order]
    return np.moveaxis(meet.accumulate(rows, axis=0)[order], 0, params["axis"])


def _slice(params: Params, out: Aval, x: Array) -> Array:
    strides = params.get("strides") or [1] * x.ndim
    ends = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*each) for each in ends)]


def _iota(params: Params, out: Aval) -> Array:
    shape = [-1 if axis == params["dimension"] else 1 for axis in range(len(out.shape))]
    return np.broadcast_to(np.arange(out.shape[params["dimension"]]).reshape(shape), out.shape)


_ENTRIES: dict[str, Rule] = {  # of numbers and of balls
    "select_n": _select,
    "convert_element_type": convert,
    "integer_pow": lambda params, out, x: x ** params["y"],
    "broadcast_in_dim": _broadcast,
    "reshape": _in_shape,
    "squeeze": _in_shape,
    "transpose": lambda params, out, x: x.transpose(params["permutation"]),
    "rev": lambda params, out, x: np.flip(x, params["dimensions"]),
    "concatenate": lambda params, out, *xs: np.concatenate(xs, params["dimension"]),
    "slice": _slice,
    "iota": _iota,
    "dot_general": _dot,
    "reduce_precision": lambda params, out, x: x if x.dtype == object else None,
}
_OVER_AXES: dict[str, tuple[Rule, str]] = {  # what meets along which axes
    "reduce_sum": (_reduction, "add"),
    "reduce_prod": (_reduction, "mul"),
    "reduce_max": (_reduction, "max"),
    "reduce_min": (_reduction, "min"),
    "reduce_and": (_reduction, "and"),
    "reduce_or": (_reduction, "or"),
    "cumsum": (_along, "add"),
    "cumprod": (_along, "mul"),
    "cummax": (_along, "max"),
    "cummin": (_along, "min"),
    "cumlogsumexp": (_along, "logaddexp"),
}
_MEET_NUMBERS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
_MEET_NUMBERS |= {"and": np.bitwise_and, "or": np.bitwise_or, "logaddexp": np.logaddexp}
_MEET_BALLS = _MEET_NUMBERS | {"max": _OF_BALLS["max"], "min": _OF_BALLS["min"]}
_MEET_BALLS["logaddexp"] = _each(lambda a, b: (a.exp() + b.exp()).log(), 2)


def compute(name: str, params: Params, out: Aval, args: Sequence[Array]) -> Any:
    """Returns what a primitive makes of numbers or of balls; None without a rule for these."""
    if name == "dot_general" and any(arg.dtype == jnp.bfloat16 for arg in args):
        return None  # NumPy has no product of these
    of_balls = any(arg.dtype == object for arg in args)
    if name in _ENTRIES:
        return _ENTRIES[name](params, out, *args)
    if name in _OVER_AXES:
        over, meet = _OVER_AXES[name]
        return over((_MEET_BALLS if of_balls else _MEET_NUMBERS)[meet], params, out, *args)
    if of_balls and name == "round":
        return _each(functools.partial(_nearest, **params))(*args)
    of_floats = any(is_kind(arg, jnp.floating) for arg in args)
    rules = _OF_BALLS if of_balls else _OF_NUMBERS if of_floats else _OF_WHOLES
    if name == "clamp":
        return rules["min"](rules["max"](args[1], args[0]), args[2])
    return rules[name](*args) if name in rules else None
