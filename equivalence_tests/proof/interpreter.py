"""Runs jaxprs on NumPy arrays, apart from the prover and from XLA.

The elements are what the arrays hold: floating-point numbers of a dtype, or exact ones
(`flint.arb`, balls that hold the real number for certain) in arrays of objects. Equations are
followed one by one, without rewriting anything.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flint
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from equivalence_tests.proof import programs
from equivalence_tests.proof.decimals import decimal
from equivalence_tests.proof.exact_operations import moved, remainder

Array = Any
PRECISION = 200


class NoRule(Exception):
    """A primitive that is not known here."""


class Unclear(Exception):
    """A branch that cannot be decided: a ball holds numbers on both sides."""


def run(
    jaxpr: Any, args: Sequence[Array], exact: Callable[[Any], Any] | None = None
) -> list[Array]:
    """The results of a program.

    Args:
      jaxpr: the program, closed or not.
      args: its arguments; where `exact` is given, floating-point ones are arrays of objects.
      exact: makes such an object of a floating-point constant; None for arithmetic in the dtypes
        that the program has.

    Raises:
      NoRule: there is a primitive that is not known here.
      Unclear: a comparison of balls that overlap.
    """
    jaxpr, consts = programs.opened(jaxpr)
    values: dict[Any, Array] = {}

    def constant(value: Any, aval: Any) -> Array:
        if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
            return value
        array = np.asarray(value, aval.dtype)
        return lifted(array, exact) if exact and is_float(aval.dtype) else array

    values.update((v, constant(c, v.aval)) for v, c in zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Array:
        return constant(atom.val, atom.aval) if isinstance(atom, core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        with np.errstate(all="ignore"):
            results = _equation(eqn, [read(atom) for atom in eqn.invars], exact)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def lifted(array: np.ndarray, exact: Callable[[Any], Any]) -> np.ndarray:
    """An array of objects."""
    result = np.empty(array.shape, object)
    for place in np.ndindex(array.shape):
        result[place] = exact(array[place])
    return result


def ball(value: Any) -> Any:
    """A floating-point number as a ball around the number that it stands for."""
    if not np.isfinite(value):
        return flint.arb(str(np.float64(value)))
    return flint.arb(decimal(np.asarray(value)[()])[0])


def is_key(value: Any) -> bool:
    """Whether an array is one of typed random keys, which are no numbers."""
    dtype: Any = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def is_float(dtype: Any) -> bool:
    """Whether elements are rounded."""
    return jnp.issubdtype(dtype, jnp.floating)


def _equation(eqn: Any, args: list[Array], exact: Any) -> list[Array]:
    name = eqn.primitive.name
    if (inner := programs.called(eqn)) is not None:
        return run(inner, args, exact)
    if name in ("optimization_barrier", "device_put"):
        return args
    if name == "cond":
        branches = eqn.params["branches"]
        which = min(max(int(args[0]), 0), len(branches) - 1)
        return run(branches[which], args[1:], exact)
    if name == "while":
        return _while(eqn.params, args, exact)
    if name == "scan":
        return _scan(eqn.params, args, exact)
    if name in ("pjit", "jit"):  # an unknown function: any will do
        return [_unknown(args, var.aval, exact) for var in eqn.outvars]
    aval = eqn.outvars[0].aval
    rule = RULES.get(name)
    keyed = any(
        jnp.issubdtype(v.aval.dtype, jax.dtypes.prng_key) for v in (*eqn.invars, *eqn.outvars)
    )
    if rule is None or len(eqn.outvars) > 1 or keyed:
        return _by_jax(eqn, args, exact)
    result = rule(eqn.params, aval, *args)
    return [_typed(result, aval, exact)]


def _typed(result: Any, aval: Any, exact: Any) -> Array:
    if exact and is_float(aval.dtype):
        array = np.empty((), object)
        if not isinstance(result, np.ndarray):
            array[()] = result
            result = array
        return np.broadcast_to(result, aval.shape)
    return np.broadcast_to(np.asarray(result).astype(aval.dtype), aval.shape)


def _by_jax(eqn: Any, args: list[Array], exact: Any) -> list[Array]:
    """A primitive that has no rule, as JAX computes it; not of exact numbers."""
    if any(np.asarray(arg).dtype == object for arg in args if isinstance(arg, np.ndarray)):
        if (results := moved(eqn, args)) is None:
            raise NoRule(f"no exact rule for `{eqn.primitive.name}`")
        return results
    given = [jnp.asarray(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
    found = eqn.primitive.bind(*given, **eqn.params)
    found = found if eqn.primitive.multiple_results else [found]
    arrays = [item if is_key(item) else np.asarray(item) for item in found]
    if not exact:
        return arrays
    # Of whole numbers alone, so nothing was rounded on the way.
    floats = [not is_key(item) and is_float(item.dtype) for item in arrays]
    pairs = zip(arrays, floats, strict=True)
    return [lifted(a.astype(float), flint.arb) if wide else a for a, wide in pairs]


def _unknown(args: list[Array], aval: Any, exact: Any) -> Array:
    """Stands for a function of which nothing is known: 1 / (2 + the sum of all)."""
    total = sum((np.sum(np.asarray(arg, float)) for arg in args), 2.0)
    value = np.asarray(1 / total, aval.dtype)
    return _typed(lifted(value, exact) if exact else value, aval, exact)


def _while(params: Any, args: list[Array], exact: Any) -> list[Array]:
    n, m = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body, state = args[:n], args[n : n + m], args[n + m :]
    while bool(run(params["cond_jaxpr"], [*of_cond, *state], exact)[0]):
        state = run(params["body_jaxpr"], [*of_body, *state], exact)
    return state


def _scan(params: Any, args: list[Array], exact: Any) -> list[Array]:
    n, m = params["num_consts"], params["num_carry"]
    consts, state, rows = args[:n], args[n : n + m], args[n + m :]
    order = range(params["length"])
    seen: list[list[Array]] = []
    for place in reversed(order) if params["reverse"] else order:
        results = run(params["jaxpr"], [*consts, *state, *(r[place] for r in rows)], exact)
        state = results[:m]
        seen.append(results[m:])
    if not seen:
        rows = [var.aval for var in programs.opened(params["jaxpr"])[0].outvars[m:]]
        return [*state, *(np.zeros((0, *aval.shape), aval.dtype) for aval in rows)]
    columns = zip(*(seen[::-1] if params["reverse"] else seen), strict=True)
    return [*state, *(np.stack(column) for column in columns)]


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers, on arrays of objects element by element."""
    spread = np.frompyfunc(function, 1, 1)
    return lambda array: spread(array)


def _either(name: str, of_floats: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function by NumPy, or by the method that balls have."""
    of_objects = _each(lambda value: getattr(value, name)())

    def rule(params: Any, aval: Any, x: Array) -> Array:
        return of_objects(x) if x.dtype == object else of_floats(x)

    return rule


def _compare(function: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def certain(a: Any, b: Any) -> bool:
        if hasattr(a, "overlaps") and a.overlaps(b) and not (a.is_exact() and b.is_exact()):
            raise Unclear(f"{a} against {b}")
        return bool(function(a, b))

    spread = np.frompyfunc(certain, 2, 1)

    def rule(params: Any, aval: Any, a: Array, b: Array) -> Array:
        if object in (a.dtype, b.dtype):
            return np.asarray(spread(a, b)).astype(bool)
        return function(a, b)

    return rule


def _largest(params: Any, aval: Any, a: Array, b: Array) -> Array:
    return (
        np.frompyfunc(lambda x, y: x.max(y), 2, 1)(a, b) if a.dtype == object else np.maximum(a, b)
    )


def _smallest(params: Any, aval: Any, a: Array, b: Array) -> Array:
    return (
        np.frompyfunc(lambda x, y: x.min(y), 2, 1)(a, b) if a.dtype == object else np.minimum(a, b)
    )


def _convert(params: Any, aval: Any, x: Array) -> Array:
    if x.dtype != object:
        if is_float(aval.dtype) and _LIFT.get() is not None:
            return lifted(np.asarray(x, float), _LIFT.get())
        if is_float(x.dtype) and np.issubdtype(aval.dtype, np.integer):
            return _saturated(np.trunc(np.where(np.isnan(x), 0, x)), aval.dtype)
        return x
    if is_float(aval.dtype):
        return x
    if aval.dtype == np.bool_:
        return _compare(np.not_equal)(params, aval, x, lifted(np.zeros(x.shape), type(x.flat[0])))
    return _saturated(np.asarray(np.frompyfunc(_truncated, 1, 1)(x)), aval.dtype)


def _saturated(wholes: Array, dtype: Any) -> Array:
    """Whole numbers in a dtype; what it cannot hold becomes its nearest number, as in XLA."""
    info = np.iinfo(dtype)
    most = np.asarray(info.max).astype(wholes.dtype)  # in float32, 2**31 - 1 is 2**31
    return np.where(wholes >= most, info.max, np.maximum(wholes, info.min)).astype(dtype)


def _truncated(value: Any) -> int:
    down = value.floor() if value >= 0 else value.ceil()
    whole = down.unique_fmpz()
    if whole is None:
        raise Unclear(f"{value} as a whole number")
    return int(whole)


class _Lift:
    """How floating-point numbers become exact in the present run."""

    def __init__(self):
        self._stack: list[Any] = []

    def get(self) -> Any:
        return self._stack[-1] if self._stack else None

    def __call__(self, exact: Any) -> Any:
        self._stack.append(exact)
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._stack.pop()


_LIFT = _Lift()


def exactly(jaxpr: Any, args: Sequence[Array], exact: Callable[[Any], Any]) -> list[Array]:
    """`run` with exact numbers, of 200 bits where they are balls."""
    with precise(), _LIFT(exact):
        return run(jaxpr, args, exact)


@contextlib.contextmanager
def precise(bits: int = PRECISION) -> Iterator[None]:
    """Within it, balls have so many bits."""
    before, flint.ctx.prec = flint.ctx.prec, bits
    try:
        yield
    finally:
        flint.ctx.prec = before


def _power(params: Any, aval: Any, a: Array, b: Array) -> Array:
    if a.dtype != object:
        return np.power(a.astype(aval.dtype), b.astype(aval.dtype))
    return np.frompyfunc(_one_power, 2, 1)(a, b)


def _one_power(a: Any, b: Any) -> Any:
    if isinstance(b, int | np.integer):
        return a ** int(b)
    whole = b.unique_fmpz() if b.is_exact() else None
    if whole is not None and abs(int(whole)) < 10**6:
        return a ** int(whole)
    return (a.log() * b).exp() if a > 0 else a**b


def _select(params: Any, aval: Any, which: Array, *cases: Array) -> Array:
    which = np.broadcast_to(np.asarray(which).astype(int), aval.shape)
    result = np.empty(aval.shape, cases[0].dtype)
    spread = [np.broadcast_to(case, aval.shape) for case in cases]
    for place in np.ndindex(aval.shape):
        result[place] = spread[which[place]][place]
    return result


def _broadcast(params: Any, aval: Any, x: Array, *_: Array) -> Array:
    shape = [1] * len(aval.shape)
    for axis, size in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), aval.shape)


def _reshape(params: Any, aval: Any, x: Array) -> Array:
    order = params.get("dimensions")
    return (x if order is None else x.transpose(order)).reshape(aval.shape)


def _iota(params: Any, aval: Any) -> Array:
    shape, axis = params["shape"], params["dimension"]
    row = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    row = np.broadcast_to(row, shape)
    exact = _LIFT.get()
    return lifted(row.astype(float), exact) if exact and is_float(aval.dtype) else row


def _reduce(function: Any, empty: Any = None) -> Callable[..., Any]:
    def rule(params: Any, aval: Any, x: Array) -> Array:
        axes = tuple(params["axes"])
        if x.dtype != object:
            wide = function(x, axis=axes)
            return wide
        result = np.empty(aval.shape, object)
        moved = np.moveaxis(x, axes, range(len(axes)))
        moved = moved.reshape(-1, *aval.shape)
        for place in np.ndindex(aval.shape):
            items = [moved[(k, *place)] for k in range(len(moved))]
            result[place] = functools.reduce(_PAIRS[function], items) if items else empty
        return result

    return rule


_PAIRS: dict[Any, Callable[[Any, Any], Any]] = {
    np.sum: lambda a, b: a + b,
    np.prod: lambda a, b: a * b,
    np.max: lambda a, b: a.max(b),
    np.min: lambda a, b: a.min(b),
}


def _dot(params: Any, aval: Any, a: Array, b: Array) -> Array:
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


def _slice(params: Any, aval: Any, x: Array) -> Array:
    strides = params["strides"] or [1] * x.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*each) for each in bounds)]


def _accumulate(function: Any) -> Callable[..., Any]:
    def rule(params: Any, aval: Any, x: Array) -> Array:
        axis = params["axis"]
        if params["reverse"]:
            return np.flip(function(np.flip(x, axis), axis=axis), axis)
        return function(x, axis=axis)

    return rule


def _integer_pow(params: Any, aval: Any, x: Array) -> Array:
    power = params["y"]
    if not power:
        return np.ones_like(x)
    result = functools.reduce(lambda a, b: a * b, itertools.repeat(x, abs(power)))
    return result if power > 0 else 1 / result


def _clamp(params: Any, aval: Any, low: Array, x: Array, high: Array) -> Array:
    return _smallest(params, aval, _largest(params, aval, x, low), high)


def _sign(params: Any, aval: Any, x: Array) -> Array:
    if x.dtype != object:
        return np.sign(x)
    return np.frompyfunc(lambda value: value.sgn(), 1, 1)(x)


def _cube_root(value: Any) -> Any:
    return value.sgn() * abs(value).root(3)


def _div(params: Any, aval: Any, a: Array, b: Array) -> Array:
    if a.dtype != object and np.issubdtype(a.dtype, np.integer):
        return np.sign(a) * np.sign(b) * (np.abs(a) // np.where(b == 0, 1, np.abs(b)))
    return a / b


def _logical(of_bools: Any, of_bits: Any) -> Callable[..., Any]:
    def rule(params: Any, aval: Any, *args: Array) -> Array:
        return (of_bools if aval.dtype == np.bool_ else of_bits)(*args)

    return rule


def _of_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, aval, *args: function(*args)


def _is_finite(params: Any, aval: Any, x: Array) -> Array:
    return np.ones(x.shape, bool) if x.dtype == object else np.isfinite(x)


_FUNCTIONS = {
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": jax.lax.erf, "erfc": jax.lax.erfc, "lgamma": jax.lax.lgamma,
    "digamma": jax.lax.digamma,
}  # fmt: skip

_COPIES = ("copy", "copy_p", "stop_gradient", "sharding_constraint")
_SAME_ORDER = ("squeeze", "expand_dims")
RULES: dict[str, Callable[..., Any]] = {
    **{name: _either(name, function) for name, function in _FUNCTIONS.items()},
    "erf_inv": _either("erfinv", jax.lax.erf_inv),
    "add": _of_arrays(lambda a, b: a + b),
    "add_any": _of_arrays(lambda a, b: a + b),
    "sub": _of_arrays(lambda a, b: a - b),
    "mul": _of_arrays(lambda a, b: a * b),
    "div": _div,
    "rem": _of_arrays(
        lambda a, b: remainder(a, b) if object in (a.dtype, b.dtype) else np.fmod(a, b)
    ),
    "neg": _of_arrays(lambda a: -a),
    "abs": _of_arrays(abs),
    "square": _of_arrays(lambda a: a * a),
    "integer_pow": _integer_pow,
    "pow": _power,
    "sign": _sign,
    "max": _largest,
    "min": _smallest,
    "clamp": _clamp,
    "eq": _compare(lambda a, b: a == b),
    "ne": _compare(lambda a, b: a != b),
    "lt": _compare(lambda a, b: a < b),
    "le": _compare(lambda a, b: a <= b),
    "gt": _compare(lambda a, b: a > b),
    "ge": _compare(lambda a, b: a >= b),
    "and": _logical(np.logical_and, np.bitwise_and),
    "or": _logical(np.logical_or, np.bitwise_or),
    "xor": _logical(np.logical_xor, np.bitwise_xor),
    "not": _logical(np.logical_not, np.bitwise_not),
    "is_finite": _is_finite,
    "select_n": _select,
    "sqrt": _either("sqrt", np.sqrt),
    "rsqrt": _either("rsqrt", lambda x: 1 / np.sqrt(x)),
    "exp": _either("exp", np.exp),
    "log": _either("log", np.log),
    "log1p": _either("log1p", np.log1p),
    "expm1": _either("expm1", np.expm1),
    "floor": _either("floor", np.floor),
    "ceil": _either("ceil", np.ceil),
    "cbrt": _of_arrays(
        lambda x: _each(lambda v: v.sgn() * abs(v).root(3))(x) if x.dtype == object else np.cbrt(x)
    ),
    "logistic": _of_arrays(
        lambda x: (
            _each(lambda v: 1 / (1 + (-v).exp()))(x) if x.dtype == object else 1 / (1 + np.exp(-x))
        )
    ),
    "convert_element_type": _convert,
    "reduce_precision": lambda params, aval, x: x,
    **dict.fromkeys(_COPIES, _of_arrays(lambda x: x)),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    **dict.fromkeys(_SAME_ORDER, lambda params, aval, x: x.reshape(aval.shape)),
    "transpose": lambda params, aval, x: x.transpose(params["permutation"]),
    "rev": lambda params, aval, x: np.flip(x, params["dimensions"]),
    "iota": _iota,
    "reduce_sum": _reduce(np.sum, 0),
    "reduce_prod": _reduce(np.prod, 1),
    "reduce_max": _reduce(np.max, flint.arb("-inf")),
    "reduce_min": _reduce(np.min, flint.arb("inf")),
    "reduce_and": lambda params, aval, x: np.all(x, axis=tuple(params["axes"])),
    "reduce_or": lambda params, aval, x: np.any(x, axis=tuple(params["axes"])),
    "dot_general": _dot,
    "concatenate": lambda params, aval, *xs: np.concatenate(xs, params["dimension"]),
    "slice": _slice,
    "stack": lambda params, aval, *xs: np.stack(xs, params.get("axis", 0)),
    "cumsum": _accumulate(np.cumsum),
    "cumprod": _accumulate(np.cumprod),
}
