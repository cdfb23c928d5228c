"""Runs jaxprs on NumPy arrays, apart from the prover and from XLA.

The elements are what the arrays hold: floating-point numbers of a dtype, or exact ones
(`flint.arb`, balls that hold the real number for certain) in arrays of objects. Equations are
followed one by one, without rewriting anything.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

import flint
import jax.numpy as jnp
import numpy as np
from flint import arb
from jax.extend.core import JaxprEqn, Literal, Var
from numpy.typing import ArrayLike

from equivalence_tests.proof.dtypes import Aval, decimal, is_float, is_key
from equivalence_tests.proof.errors import NoRule
from equivalence_tests.proof.interpreter.arrays import run_on_balls
from equivalence_tests.proof.node import Settings
from equivalence_tests.proof.primitives import PRIMITIVES
from equivalence_tests.proof.primitives.faces import ties_are_equal as ties_are_equal
from equivalence_tests.proof.reading import programs
from equivalence_tests.proof.reading.programs import AnyJaxpr, aval_of
from equivalence_tests.sides.precision import float64
from equivalence_tests.sides.scanned import constants_and_carry
from optax_bridge.metadata.trees import Leaf

# Typed random keys are JAX's own arrays; all others are NumPy's.
Array = np.ndarray
PRECISION = 200
# Digits of its largest entry that float64 leaves of what an unknown primitive computes.
_DIGITS_OF_UNKNOWN = 9
_measures_unknown = contextvars.ContextVar("measures_unknown", default=False)


def run(jaxpr: AnyJaxpr, args: Sequence[Array], exact: bool = False) -> list[Array]:
    """The results of a program.

    Args:
      jaxpr: the program, closed or not.
      args: its arguments; for exact arithmetic, floating-point ones are arrays of `arb`.
      exact: whether real numbers are computed with; else the arithmetic is that of the dtypes that
        the program has.

    Raises:
      NoRule: there is a primitive that is not known here.
      Unclear: a comparison of balls that overlap.
    """
    inner, consts = programs.jaxpr_and_consts(jaxpr)
    values: dict[Var, Array] = {}

    def constant(value: Leaf, aval: Aval) -> Array:
        if is_key(aval.dtype):
            return value
        array = np.asarray(value, aval.dtype)
        return to_balls(array) if exact and is_float(aval.dtype) else array

    pairs = zip(inner.constvars, consts, strict=True)
    values.update((var, constant(const, aval_of(var))) for var, const in pairs)
    values.update(zip(inner.invars, args, strict=True))

    def read(atom: Var | Literal) -> Array:
        return constant(atom.val, aval_of(atom)) if isinstance(atom, Literal) else values[atom]

    for eqn in inner.eqns:
        with np.errstate(all="ignore"):
            results = _equation(eqn, [read(atom) for atom in eqn.invars], exact)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in inner.outvars]


def exactly(jaxpr: AnyJaxpr, args: Sequence[Array]) -> list[Array]:
    """`run` with real numbers, as balls of 200 bits."""
    with precise():
        return run(jaxpr, args, exact=True)


@contextlib.contextmanager
def precise(bits: int = PRECISION) -> Iterator[None]:
    """Within it, balls have so many bits."""
    before, flint.ctx.prec = flint.ctx.prec, bits
    try:
        yield
    finally:
        flint.ctx.prec = before


@contextlib.contextmanager
def unknown_by_float64() -> Iterator[None]:
    """Within it, a primitive without an exact rule gives what float64 makes of it, as wide balls.

    What cancels is then no number any more. For examples, not for proofs.
    """
    token = _measures_unknown.set(True)
    try:
        yield
    finally:
        _measures_unknown.reset(token)


def to_balls(array: Array) -> Array:
    """Floating-point numbers as an array of balls."""
    result = np.empty(array.shape, object)
    for index in np.ndindex(array.shape):
        result[index] = ball(array[index])
    return result


def ball(value: np.generic | np.ndarray) -> arb:
    """A floating-point number as a ball around the number that it means."""
    if not np.isfinite(value):
        return arb(str(np.float64(value)))
    return arb(decimal(np.asarray(value)[()])[0])


def _equation(eqn: JaxprEqn, args: list[Array], exact: bool) -> list[Array]:
    name = eqn.primitive.name
    if (inner := programs.callee(eqn)) is not None:
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
    outs = [aval_of(var) for var in eqn.outvars]
    if name == "jit":  # an uninterpreted function: any will do
        return [_as_typed(_example_function(args), aval, exact) for aval in outs]
    keyed = any(is_key(aval_of(var).dtype) for var in (*eqn.invars, *eqn.outvars))
    row = PRIMITIVES.get(name)
    if row is None or row.numbers is None or len(outs) > 1 or keyed:
        return _by_jax(eqn, args, exact)
    return [_as_typed(row.numbers(eqn.params, outs[0], *args), outs[0], exact)]


def _as_typed(result: ArrayLike, aval: Aval, exact: bool) -> Array:
    if not (exact and is_float(aval.dtype)):
        return np.broadcast_to(np.asarray(result).astype(aval.dtype), aval.shape)
    array = np.asarray(result)  # of a ball, an array of one object
    return np.broadcast_to(
        array if array.dtype == object else to_balls(array.astype(float)), aval.shape
    )


def _by_jax(eqn: JaxprEqn, args: list[Array], exact: bool) -> list[Array]:
    """A primitive that has no rule, as JAX computes it; not of exact numbers."""
    if any(isinstance(arg, np.ndarray) and arg.dtype == object for arg in args):
        if (results := run_on_balls(eqn, args)) is not None:
            return results
        if not _measures_unknown.get():
            raise NoRule(f"no exact rule for `{eqn.primitive.name}`")
        return _by_float64(eqn, args)
    wide = any(aval_of(var).dtype.itemsize >= 8 for var in (*eqn.invars, *eqn.outvars))
    with float64() if wide else contextlib.nullcontext():  # as when this was traced
        arguments = [jnp.asarray(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        results = eqn.primitive.bind(*arguments, **eqn.params)
    results = results if eqn.primitive.multiple_results else [results]
    arrays = [each if is_key(each.dtype) else np.asarray(each) for each in results]
    # Of whole numbers alone, so nothing was rounded on the way.
    return [
        to_balls(array.astype(float)) if exact and is_float(array.dtype) else array
        for array in arrays
    ]


def _by_float64(eqn: JaxprEqn, args: list[Array]) -> list[Array]:
    """A primitive of exact numbers as float64 computes it, around which balls leave some digits."""
    with float64():
        arguments = [jnp.asarray(x.astype(float) if x.dtype == object else x) for x in args]
        results = eqn.primitive.bind(*arguments, **eqn.params)
    results = results if eqn.primitive.multiple_results else [results]
    return [_unsure_balls(np.asarray(each)) for each in results]


def _unsure_balls(array: Array) -> Array:
    if not is_float(array.dtype):
        return array
    finite = array[np.isfinite(array)]
    radius = np.abs(finite).max(initial=0.0) * 10.0**-_DIGITS_OF_UNKNOWN
    return np.asarray(to_balls(array) + arb(0, radius))  # of one ball, an array as well


def _example_function(args: list[Array]) -> Array:
    """Stands for a function of which nothing is known: 1 / (2 + the sum of all)."""
    return np.asarray(1 / sum((np.sum(np.asarray(arg, float)) for arg in args), 2.0))


def _while(params: Settings, args: list[Array], exact: bool) -> list[Array]:
    n, m = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body, state = args[:n], args[n : n + m], args[n + m :]
    while bool(run(params["cond_jaxpr"], [*of_cond, *state], exact)[0]):
        state = run(params["body_jaxpr"], [*of_body, *state], exact)
    return state


def _scan(params: Settings, args: list[Array], exact: bool) -> list[Array]:
    n, m = constants_and_carry(params)
    consts, state, rows = args[:n], args[n : n + m], args[n + m :]
    order = range(params["length"])
    seen: list[list[Array]] = []
    for index in reversed(order) if params["reverse"] else order:
        results = run(params["jaxpr"], [*consts, *state, *(r[index] for r in rows)], exact)
        state = results[:m]
        seen.append(results[m:])
    if not seen:
        rows = map(aval_of, programs.jaxpr_and_consts(params["jaxpr"])[0].outvars[m:])
        return [*state, *(np.zeros((0, *aval.shape), aval.dtype) for aval in rows)]
    columns = zip(*(seen[::-1] if params["reverse"] else seen), strict=True)
    return [*state, *(np.stack(column) for column in columns)]
