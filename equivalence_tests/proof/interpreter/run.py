"""Runs programs equation by equation, for the checker and for the search of examples.

Arrays are NumPy's. In exact arithmetic each floating-point number is a ball of python-flint, which
holds the real number for certain; else it is a number of the program's dtype. Where no ball is
among the operands JAX itself computes. Nothing of the prover is known here.
"""

import contextvars
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flint import arb
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from equivalence_tests.proof.errors import NoRule
from equivalence_tests.proof.interpreter.balls import Array, balls, objects, order
from equivalence_tests.proof.interpreter.entries import (
    Params,
    Rule,
    compute,
    convert,
    is_kind,
)
from optax_bridge._internals import program_within


def run(program: ClosedJaxpr | Jaxpr, args: Sequence[Array], exact: bool = False) -> list[Array]:
    """Returns the results of a program, followed equation by equation."""
    closed = isinstance(program, ClosedJaxpr)
    jaxpr, consts = (program.jaxpr, program.consts) if closed else (program, ())
    values: dict[Var, Array] = dict(zip(jaxpr.invars, args, strict=True))

    def constant(value: Any, aval: Any) -> Array:
        if is_kind(aval, jax.dtypes.prng_key):
            return value
        array = np.asarray(value, aval.dtype)
        return balls(array) if exact and is_kind(aval, jnp.floating) else array

    def read(atom: Var | Literal) -> Array:
        return constant(atom.val, atom.aval) if isinstance(atom, Literal) else values[atom]

    for var, const in zip(jaxpr.constvars, consts, strict=True):
        values[var] = constant(const, var.aval)
    for eqn in jaxpr.eqns:
        if exact and any(is_kind(var.aval, jnp.complexfloating) for var in eqn.outvars):
            raise NoRule(f"primitive {eqn.primitive.name} of complex numbers")
        with np.errstate(all="ignore"):
            results = _results(eqn, [read(atom) for atom in eqn.invars], exact)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


# Equations


def _results(eqn: JaxprEqn, args: list[Any], exact: bool) -> list[Array]:
    name, params = eqn.primitive.name, eqn.params
    outs: list[Any] = [var.aval for var in eqn.outvars]
    if name in _CALLS:
        inner = [value for value in params.values() if isinstance(value, ClosedJaxpr | Jaxpr)]
        return run(inner[0], args, exact)
    if (program := program_within(eqn)) is not None:
        return run(program, args, exact)
    if name in _BRANCHES:
        return _BRANCHES[name](params, args, exact)
    if name in _COPIES or (exact and name == "reduce_precision"):
        return args
    if name == "convert_element_type" and (exact or not is_kind(outs[0], jnp.integer)):
        return [as_type(args[0], outs[0], exact)]
    of_balls = any(isinstance(arg, np.ndarray) and arg.dtype == object for arg in args)
    result = None
    if len(outs) == 1 and all(isinstance(arg, np.ndarray) for arg in args):  # no random keys
        result = compute(name, params, outs[0], args)
    if result is not None:
        results = [result]
    else:
        results = _of_entries(eqn, args) if of_balls else _by_jax(eqn, args)
    return [_as_type(each, aval, exact) for each, aval in zip(results, outs, strict=True)]


def _no_rule(eqn: JaxprEqn, args: Sequence[Array]) -> list[Array]:
    raise NoRule(f"primitive {eqn.primitive.name}")


# Computes the primitives of balls that have no rule; the checker does not set it.
unknown: contextvars.ContextVar[Callable[[JaxprEqn, Sequence[Array]], list[Array]]]
unknown = contextvars.ContextVar("unknown", default=_no_rule)


def _as_type(result: Any, aval: Any, exact: bool) -> Array:
    if is_kind(aval, jax.dtypes.prng_key):
        return result
    array = np.asarray(result)  # of one ball, an array of one object
    if not (exact and is_kind(aval, jnp.floating)):
        array = array.astype(aval.dtype, copy=False)
    elif array.dtype != object:  # computed of whole numbers alone, so nothing was rounded before
        array = objects((arb(float(value)) for value in array.reshape(-1)), array.shape)
    return array if array.shape == aval.shape else np.broadcast_to(array, aval.shape)


def as_type(value: Array, aval: Any, exact: bool) -> Array:
    """Returns numbers of one dtype, or balls, as those of another."""
    return _as_type(convert({}, aval, value), aval, exact)


def _by_jax(eqn: JaxprEqn, args: Sequence[Any], **changed: Any) -> list[Any]:
    avals: list[Any] = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
    wide = any(aval.dtype.itemsize >= 8 for aval in avals)
    with jax.enable_x64(wide or jnp.result_type(float) == np.float64):  # as where this was traced
        arrays = [jnp.asarray(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        results = eqn.primitive.bind(*arrays, **eqn.params | changed)
    results = results if eqn.primitive.multiple_results else [results]
    return [each if is_kind(each, jax.dtypes.prng_key) else np.asarray(each) for each in results]


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

_MOVES = {"stack", "split", "gather", "pad", "tile", "scatter"}
_MOVES |= {"dynamic_slice", "dynamic_update_slice"}
_ORDERS = {"sort", "argmax", "argmin", "top_k"}
_MEETINGS: dict[str, Rule] = {"scatter_add": operator.add, "scatter_sub": operator.sub}
_MEETINGS |= {"scatter_mul": operator.mul, "scatter_min": arb.min, "scatter_max": arb.max}


def _of_entries(eqn: JaxprEqn, args: Sequence[Array]) -> list[Any]:
    """Returns the entries where JAX puts the integers that number them."""
    name = eqn.primitive.name
    if (meet := _MEETINGS.get(name.replace("-", "_"))) is not None:
        return [_scatter(eqn, meet, *args)]
    if name not in _MOVES | _ORDERS:
        return unknown.get()(eqn, args)
    function: Jaxpr | None = eqn.params.get("update_jaxpr")
    if function is not None and (function.eqns or function.outvars[0] is not function.invars[1]):
        raise NoRule(f"primitive {name} with a function of the entries, `.at[...].apply`")
    entries = [x for arg in args if arg.dtype == object for x in arg.reshape(-1)]
    changed: dict[str, Any] = dict.fromkeys(eqn.params.keys() & {"update_jaxpr"})
    if (fill := eqn.params.get("fill_value")) is not None:  # an entry of its own
        changed["fill_value"], out = len(entries) + 1, cast(Any, eqn.outvars[0].aval)
        entries.append(balls(np.asarray(fill, out.dtype)).item())
    if name in _ORDERS:
        entries.sort(key=functools.cmp_to_key(order))
    # Those that are equal have one number, where there is an order. JAX itself fills in 0.
    equal = [name in _ORDERS and i > 0 and entries[i - 1] == x for i, x in enumerate(entries)]
    numbers = np.cumsum([not same for same in equal])
    number_of = {id(x): number for x, number in zip(entries, numbers, strict=True)}
    entry_of = {0: arb("nan"), **dict(zip(numbers.tolist(), entries, strict=True))}
    integers = [
        np.fromiter((number_of[id(x)] for x in arg.reshape(-1)), np.int32).reshape(arg.shape)
        if arg.dtype == object
        else arg
        for arg in args
    ]
    return [
        objects((entry_of[max(n, 0)] for n in result.reshape(-1).tolist()), result.shape)
        if is_kind(var.aval, jnp.floating)
        else result
        for var, result in zip(eqn.outvars, _by_jax(eqn, integers, **changed), strict=True)
    ]


def _scatter(eqn: JaxprEqn, meet: Rule, operand: Array, indices: Array, updates: Array) -> Array:
    """Returns the operand with each update where JAX puts a 1 in its place."""
    names = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    options, result = {name: eqn.params[name] for name in names}, operand.copy()
    marks = np.eye(updates.size, dtype=np.int32).reshape(updates.size, *updates.shape)
    empty = np.zeros(operand.shape, np.int32)
    places = [jax.lax.scatter_add(empty, indices, mark, **options) for mark in marks]
    if options["unique_indices"] and np.any(sum(places) > 1):
        raise NoRule(f"primitive {eqn.primitive.name} with unique indices that are not")
    for place, update in zip(places, updates.reshape(-1), strict=True):
        for target in np.argwhere(place):
            result[tuple(target)] = meet(result[tuple(target)], update)
    return result
