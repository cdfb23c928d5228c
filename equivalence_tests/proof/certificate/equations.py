"""Runs programs for the checker, equation by equation, with nothing of the prover.

Arrays are NumPy's. In exact arithmetic each floating-point number is a ball of python-flint, which
holds the real number for certain; else it is a number of the program's dtype. What a table below
does not name JAX itself computes, where no ball is among the operands.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flint import arb, fmpq
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

Array = np.ndarray
Params = Mapping[str, Any]  # of an equation, as JAX names them
Rule = Callable[..., Any]
Aval = jax.ShapeDtypeStruct  # the shape and dtype of a variable


class NotKnown(Exception):
    """A primitive that has no rule for balls."""


class Unclear(Exception):
    """A question that a ball cannot answer: it holds numbers on both sides, or none."""


def run(program: ClosedJaxpr | Jaxpr, args: Sequence[Array], exact: bool) -> list[Array]:
    """Returns the results of a program, followed equation by equation.

    Raises:
      NotKnown: exact arithmetic has no rule for a primitive.
      Unclear: a comparison of balls that overlap.
    """
    closed = isinstance(program, ClosedJaxpr)
    jaxpr, consts = (program.jaxpr, program.consts) if closed else (program, ())
    values: dict[Var, Array] = dict(zip(jaxpr.invars, args, strict=True))

    def constant(value: Any, aval: Any) -> Array:
        if _is(aval, jax.dtypes.prng_key):
            return value
        array = np.asarray(value, aval.dtype)
        return balls(array) if exact and _is(aval, jnp.floating) else array

    def read(atom: Var | Literal) -> Array:
        return constant(atom.val, atom.aval) if isinstance(atom, Literal) else values[atom]

    for var, const in zip(jaxpr.constvars, consts, strict=True):
        values[var] = constant(const, var.aval)
    for eqn in jaxpr.eqns:
        with np.errstate(all="ignore"):
            results = _results(eqn, [read(atom) for atom in eqn.invars], exact)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _is(aval: Any, kind: Any) -> bool:
    return jnp.issubdtype(aval.dtype, kind)


# Numbers


def balls(array: Array) -> Array:
    """Returns floating-point numbers as balls around the numbers that they denote."""
    return _objects((_ball(array.dtype.type, float(x)) for x in array.reshape(-1)), array.shape)


def _objects(entries: Iterable[object], shape: tuple[int, ...]) -> Array:
    return np.fromiter(entries, object, int(np.prod(shape))).reshape(shape)


@functools.lru_cache(4096)
def _ball(kind: type[np.generic], number: float) -> arb:
    if not np.isfinite(number):
        return arb(str(number))
    meant = decimal(kind, number)
    return arb(fmpq(meant.numerator, meant.denominator))


def decimal(kind: type[np.generic], number: float) -> Fraction:
    """Returns the number that a constant denotes: the shortest decimal that rounds to it.

    A float64 with all digits is what Python computed of shorter ones, if one is within four units
    in the last place; else, as a float32 with all digits, a fraction with a denominator of at most
    99, times a power of ten, if one rounds to it.
    """
    value = np.asarray(number).astype(kind)
    with np.errstate(over="ignore"):
        texts = (f"{number:.{places}e}" for places in range(19))
        text = next(t for t in texts if np.asarray(float(t)).astype(kind) == value)
    digits = len(text.split("e")[0].lstrip("-").replace(".", "").rstrip("0"))
    if kind is np.float64 and digits > 13:
        for shorter in (f"{number:.{places}e}" for places in range(12)):
            if abs(float(shorter) - number) <= 4 * np.spacing(abs(number)):
                return Fraction(shorter)
    if (kind is np.float64 and digits > 13) or (kind is np.float32 and digits > 6):
        exact = Fraction(number)
        scale = 10 ** (len(str(int(1 / abs(exact)))) - 1) if abs(exact) < 1 else 1
        near = (exact * scale).limit_denominator(99) / scale
        if near.denominator > 1 and np.asarray(float(near)).astype(kind) == value:
            return near
    return Fraction(text)


def _below(a: Any, b: Any) -> bool:
    if isinstance(a, arb) and not (a.is_exact() and b.is_exact()) and a.overlaps(b):
        raise Unclear(f"{a} against {b}")
    return bool(a < b)


def _same(a: arb, b: arb) -> bool:
    return not (_below(a, b) or _below(b, a))


def _order(a: arb, b: arb) -> int:
    return -1 if _below(a, b) else int(_below(b, a))


# Equations


def _results(eqn: JaxprEqn, args: list[Any], exact: bool) -> list[Array]:
    name, params, outs = eqn.primitive.name, eqn.params, [var.aval for var in eqn.outvars]
    if name in _CALLS:
        inner = [value for value in params.values() if isinstance(value, ClosedJaxpr | Jaxpr)]
        return run(inner[0], args, exact)
    if name in _BRANCHES:
        return _BRANCHES[name](params, args, exact)
    if name in _COPIES:
        return args
    has_balls = any(isinstance(arg, np.ndarray) and arg.dtype == object for arg in args)
    table = _OF_BALLS if has_balls else _OF_NUMBERS
    floats = any(_is(atom.aval, jnp.floating) for atom in eqn.invars)
    if name in _ENTRIES:
        results = [_ENTRIES[name](params, outs[0], *args)]
    elif floats and name in table:
        results = [table[name](*args)]
    elif has_balls and name in _OVER_AXES:
        results = [_OVER_AXES[name](params, outs[0], *args)]
    elif has_balls:
        results = _of_entries(eqn, args)
    else:
        results = _by_jax(eqn, args)
    return [_as_type(each, aval, exact) for each, aval in zip(results, outs, strict=True)]


def _as_type(result: Any, aval: Any, exact: bool) -> Array:
    if _is(aval, jax.dtypes.prng_key):
        return result
    array = np.asarray(result)  # of one ball, an array of one object
    if not (exact and _is(aval, jnp.floating)):
        array = array.astype(aval.dtype, copy=False)
    elif array.dtype != object:  # computed of whole numbers alone, so nothing was rounded before
        array = _objects((arb(float(value)) for value in array.reshape(-1)), array.shape)
    return array if array.shape == aval.shape else np.broadcast_to(array, aval.shape)


def as_type(value: Array, aval: Any, exact: bool) -> Array:
    """Returns numbers of one dtype, or balls, as those of another."""
    return _as_type(_convert({}, aval, value), aval, exact)


def _by_jax(eqn: JaxprEqn, args: Sequence[Any], **changed: Any) -> list[Any]:
    avals: list[Any] = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
    wide = any(aval.dtype.itemsize >= 8 for aval in avals)
    with jax.enable_x64(wide or jnp.result_type(float) == np.float64):  # as where this was traced
        arrays = [jnp.asarray(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        results = eqn.primitive.bind(*arrays, **eqn.params | changed)
    results = results if eqn.primitive.multiple_results else [results]
    return [each if _is(each, jax.dtypes.prng_key) else np.asarray(each) for each in results]


def _cond(params: Params, args: list[Array], exact: bool) -> list[Array]:
    which = min(max(int(args[0]), 0), len(params["branches"]) - 1)
    return run(params["branches"][which], args[1:], exact)


def _while(params: Params, args: list[Array], exact: bool) -> list[Array]:
    asks, does = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body, state = args[:asks], args[asks : asks + does], args[asks + does :]
    while bool(run(params["cond_jaxpr"], [*of_cond, *state], exact)[0]):
        state = run(params["body_jaxpr"], [*of_body, *state], exact)
    return state


def _scan(params: Params, args: list[Array], exact: bool) -> list[Array]:
    if "num_consts" in params:
        fixed, carried = params["num_consts"], params["num_carry"]
    else:  # a later JAX
        fixed, carried = (len(list(part)) for part in params["ft_in"].unpack()[:2])
    state, rows = args[fixed : fixed + carried], args[fixed + carried :]
    forward = -1 if params["reverse"] else 1
    avals = [var.aval for var in params["jaxpr"].jaxpr.outvars[carried:]]
    columns: list[list[Array]] = [[] for _ in avals]
    for at in range(params["length"])[::forward]:
        row = [np.asarray(array[at]) for array in rows]
        results = run(params["jaxpr"], [*args[:fixed], *state, *row], exact)
        state = results[:carried]
        for column, result in zip(columns, results[carried:], strict=True):
            column.append(result)
    if not params["length"]:
        return [*state, *(np.zeros((0, *aval.shape), aval.dtype) for aval in avals)]
    return [*state, *(np.stack(column[::forward]) for column in columns)]


_CALLS = {"jit", "call", "closed_call", "remat2", "checkpoint"}
_CALLS |= {"custom_jvp_call", "custom_vjp_call"}
_BRANCHES = {"cond": _cond, "while": _while, "scan": _scan}
_COPIES = {"copy", "stop_gradient", "device_put", "optimization_barrier"}
_COPIES |= {"sharding_constraint"}

# Primitives: entry by entry


def _each(function: Rule, operands: int = 1) -> Rule:
    return np.frompyfunc(function, operands, 1)


def _integer_part(value: arb) -> int:
    """Returns a number without its fraction."""
    integer = (value.ceil() if _below(value, arb(0)) else value.floor()).unique_fmpz()
    if integer is None:
        raise Unclear(f"{value} as an integer")
    return int(integer)


def _power(a: arb, b: arb | int) -> arb:
    if not isinstance(b, arb) or (b.is_integer() and abs(b) < 10**6):
        return a ** int((b.unique_fmpz() or 0) if isinstance(b, arb) else b)
    return (a.log() * b).exp() if a > 0 else a**b


def _is_finite(value: arb) -> bool:
    if not value.is_finite():
        raise Unclear(f"whether {value} is finite")
    return True


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
_OF_NUMBERS = {**_ALIKE, "max": np.maximum, "min": np.minimum}
_OF_NUMBERS |= {name: getattr(operator, name) for name in ("eq", "ne", "lt", "gt", "le", "ge")}
_LARGER = np.frompyfunc(lambda a, b: a.max(b), 2, 1)
_SMALLER = np.frompyfunc(lambda a, b: a.min(b), 2, 1)
_OF_BALLS = _ALIKE | {
    "max": _LARGER,
    "min": _SMALLER,
    "clamp": lambda least, x, most: _SMALLER(_LARGER(x, least), most),
    "pow": _each(_power, 2),
    "rem": _each(lambda a, b: a - b * _integer_part(a / b), 2),
    "sign": _each(arb.sgn),
    "eq": _each(_same, 2),
    "ne": _each(lambda a, b: not _same(a, b), 2),
    "lt": _each(_below, 2),
    "gt": _each(lambda a, b: _below(b, a), 2),
    "le": _each(lambda a, b: not _below(b, a), 2),
    "ge": _each(lambda a, b: not _below(a, b), 2),
    "is_finite": _each(_is_finite),
    "exp2": _each(lambda x: (x * arb(2).log()).exp()),
    "cbrt": _each(lambda x: x.sgn() * abs(x).root(3)),
    "erf_inv": _each(arb.erfinv),
    "reduce_precision": lambda x, **_: x,
}
_OF_BALLS |= {name: _each(getattr(arb, name)) for name in ("floor", "ceil", "erf", "erfc")}
_OF_BALLS |= {name: _each(getattr(arb, name)) for name in ("asin", "acos", "atan", "lgamma")}
_OF_BALLS |= {name: _each(getattr(arb, name)) for name in ("asinh", "acosh", "atanh", "digamma")}

# Primitives: arrays


def _select(params: Params, out: Aval, which: Array, *cases: Array) -> Array:
    number = np.broadcast_to(which.astype(int), out.shape)
    return np.take_along_axis(np.stack(cases), number[None], 0)[0]


def _convert(params: Params, out: Aval, x: Array) -> Any:
    if x.dtype == object and out.dtype == np.bool_:
        return _each(lambda value: not _same(value, arb(0)))(x)
    if x.dtype == object and not _is(out, jnp.floating):
        return np.clip(_each(_integer_part)(x), jnp.iinfo(out.dtype).min, jnp.iinfo(out.dtype).max)
    if _is(x, jnp.floating) and _is(out, jnp.integer):  # what it cannot hold becomes the nearest
        return jax.lax.convert_element_type(x, out.dtype)
    return x


def _broadcast(params: Params, out: Aval, x: Array, *_: Array) -> Array:
    sizes = dict(zip(params["broadcast_dimensions"], x.shape, strict=True))
    return x.reshape([sizes.get(axis, 1) for axis in range(len(out.shape))])


def _in_shape(params: Params, out: Aval, x: Array) -> Array:
    return x.reshape(out.shape)


def _dot(params: Params, out: Aval, a: Array, b: Array) -> Array:
    (inner_a, inner_b), (batch_a, batch_b) = params["dimension_numbers"]
    axes_a, axes_b = list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))
    for i, j in zip((*inner_a, *batch_a), (*inner_b, *batch_b), strict=True):
        axes_b[j] = axes_a[i]
    batch, common = [axes_a[i] for i in batch_a], {*axes_a} & {*axes_b}
    free = [axis for axis in (*axes_a, *axes_b) if axis not in common]
    return np.einsum(a, axes_a, b, axes_b, [*batch, *free])


def _nearest(params: Params, out: Aval, x: Array) -> Array:
    even = params["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN

    def nearest(value: arb) -> arb:
        down = value.floor()
        if not _same(value - down, arb(0.5)):
            return (value + 0.5).floor()
        return down + (_integer_part(down) % 2 if even else int(value > 0))

    return _each(nearest)(x)


def _reduction(meet: np.ufunc) -> Rule:
    def rule(params: Params, out: Aval, x: Array) -> Array:
        axes = tuple(params["axes"])
        rows = np.moveaxis(x, axes, range(len(axes))).reshape(-1, *out.shape)
        return meet.reduce(rows, axis=0)

    return rule


def _along(meet: np.ufunc) -> Rule:
    def rule(params: Params, out: Aval, x: Array) -> Array:
        order = slice(None, None, -1 if params["reverse"] else 1)
        rows = np.moveaxis(x, params["axis"], 0)[order]
        return np.moveaxis(meet.accumulate(rows, axis=0)[order], 0, params["axis"])

    return rule


_ENTRIES: dict[str, Rule] = {  # of numbers and of balls
    "select_n": _select,
    "convert_element_type": _convert,
    "integer_pow": lambda params, out, x: x ** params["y"],
    "broadcast_in_dim": _broadcast,
    "reshape": _in_shape,
    "squeeze": _in_shape,
    "transpose": lambda params, out, x: x.transpose(params["permutation"]),
}
_OVER_AXES: dict[str, Rule] = {  # of balls
    "dot_general": _dot,
    "reduce_sum": _reduction(np.add),
    "reduce_prod": _reduction(np.multiply),
    "reduce_max": _reduction(_LARGER),
    "reduce_min": _reduction(_SMALLER),
    "cumsum": _along(np.add),
    "cumprod": _along(np.multiply),
    "cummax": _along(_LARGER),
    "cummin": _along(_SMALLER),
    "cumlogsumexp": _along(np.frompyfunc(lambda a, b: (a.exp() + b.exp()).log(), 2, 1)),
    "round": _nearest,
}
_MOVES = {"slice", "rev", "concatenate", "stack", "split", "gather", "pad", "tile"}
_MOVES |= {"dynamic_slice", "dynamic_update_slice", "scatter"}
_ORDERS = {"sort", "argmax", "argmin", "top_k"}
_MEETINGS: dict[str, Rule] = {
    "scatter_add": lambda a, b: a + b,
    "scatter_sub": lambda a, b: a - b,
    "scatter_mul": lambda a, b: a * b,
    "scatter_min": lambda a, b: a.min(b),
    "scatter_max": lambda a, b: a.max(b),
}


def _of_entries(eqn: JaxprEqn, args: Sequence[Array]) -> list[Any]:
    """Returns the entries where JAX puts the integers that number them."""
    name = eqn.primitive.name
    if name.replace("-", "_") in _MEETINGS:
        return [_scatter(eqn, *args)]
    if name not in _MOVES | _ORDERS:
        raise NotKnown(f"primitive {name}")
    entries = [x for arg in args if arg.dtype == object for x in arg.reshape(-1)]
    order = sorted(entries, key=functools.cmp_to_key(_order)) if name in _ORDERS else entries
    # Those that are equal have one number, where there is an order. JAX itself fills in 0.
    equal = [name in _ORDERS and i > 0 and order[i - 1] == x for i, x in enumerate(order)]
    numbers = np.cumsum([not same for same in equal])
    number_of = {id(x): number for x, number in zip(order, numbers, strict=True)}
    entry_of = {0: arb("nan"), **{number: x for x, number in zip(order, numbers, strict=True)}}
    integers = [
        np.fromiter((number_of[id(x)] for x in arg.reshape(-1)), np.int32).reshape(arg.shape)
        if arg.dtype == object
        else arg
        for arg in args
    ]
    results = _by_jax(eqn, integers, **dict.fromkeys(eqn.params.keys() & {"update_jaxpr"}))
    return [
        _objects((entry_of[max(n, 0)] for n in result.reshape(-1).tolist()), result.shape)
        if _is(var.aval, jnp.floating)
        else result
        for var, result in zip(eqn.outvars, results, strict=True)
    ]


def _scatter(eqn: JaxprEqn, operand: Array, indices: Array, updates: Array) -> Array:
    """Returns the operand with each update where JAX puts a 1 in its place."""
    names = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    options = {name: eqn.params[name] for name in names}
    meet, result = _MEETINGS[eqn.primitive.name.replace("-", "_")], operand.copy()
    for at in np.ndindex(updates.shape):
        mark = np.zeros(updates.shape, np.int32)
        mark[at] = 1
        empty = np.zeros(operand.shape, np.int32)
        for target in np.argwhere(jax.lax.scatter_add(empty, indices, mark, **options)):
            where = tuple(map(int, target))
            result[where] = meet(result[where], updates[at])
    return result
