"""Both sides along some steps, as JAX runs them or in exact arithmetic; their distances."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flint import arb
from jax.extend import core

from equivalence_tests.proof.counterexample.candidates import Grads
from equivalence_tests.proof.dtypes import is_float
from equivalence_tests.proof.interpreter.balls import balls, precise
from equivalence_tests.proof.interpreter.run import run, unknown
from equivalence_tests.proof.reading import programs
from equivalence_tests.proof.reading.programs import AnyJaxpr
from equivalence_tests.proof.reading.sides import Program
from equivalence_tests.sides.precision import float64

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Pair:
    """Both sides' programs for parameters of some dtypes."""

    sides: tuple[Program, ...]
    shapes: Sequence[jax.ShapeDtypeStruct]
    clear: float
    faint: float
    arithmetic: str
    context: Callable[[], contextlib.AbstractContextManager[object]]

    @functools.cached_property
    def has_loops(self) -> bool:
        """True if a step may take as long as many others."""
        return any(_has_loop(side.step) for side in self.sides)

    def runs(self, params: Arrays, grads: Grads, compiled: bool = True) -> list[list[Arrays]]:
        """Each side's parameters at the start and after every step, in its program's dtypes."""
        # A start is not worth a compilation: it runs once.
        start, step = (core.jaxpr_as_fun, _compile) if compiled else (_interpret, _interpret)
        with self.context():
            return [
                _trajectory(side, params, grads, start(side.start), step(side.step))
                for side in self.sides
            ]

    def exactly(self, params: Arrays, grads: Grads) -> list[tuple[arb, arb]]:
        """Both sides' last parameters as balls, entry by entry."""
        return entries(self.last_exactly(params, grads))

    def last_exactly(self, params: Arrays, grads: Grads) -> list[Arrays]:
        """Each side's last parameters, as arrays of balls; raises as `exactly` does."""
        return [_exact_trajectory(side, params, grads) for side in self.sides]


def _has_loop(program: AnyJaxpr) -> bool:
    jaxpr, _ = programs.jaxpr_and_consts(program)
    values = jax.tree.leaves([list(eqn.params.values()) for eqn in jaxpr.eqns])
    names = {eqn.primitive.name for eqn in jaxpr.eqns}
    return bool(names & {"while", "scan"}) or any(map(_has_loop, filter(programs.is_jaxpr, values)))


def entries(pair: Sequence[Arrays]) -> list[tuple[arb, arb]]:
    """The entries of both sides' arrays, side by side."""
    columns = ([value for array in arrays for value in array.flat] for arrays in pair)
    return list(zip(*columns, strict=True))


def finite(a: arb, b: arb) -> bool:
    """True if both are numbers."""
    return bool(a.is_finite() and b.is_finite())


def same_up_to_rounding(first: AnyJaxpr, second: AnyJaxpr) -> bool:
    """True if two programs differ only in the rounding of their constants to half precision."""
    pair = [list(_outline(each)) for each in (first, second)]
    if len(pair[0]) != len(pair[1]):
        return False
    for a, b in zip(*pair, strict=True):
        if isinstance(a, str) or isinstance(b, str):
            if a != b:
                return False
        elif not np.isclose(a, b, rtol=0.02, atol=1e-4) and max(abs(a), abs(b)) < 6e4:
            return False
    return True


def _outline(program: AnyJaxpr) -> Iterator[str | float]:
    """Yields the operations and numbers of a program, conversions of dtypes left out."""
    inner, _ = programs.jaxpr_and_consts(program)
    for eqn in inner.eqns:
        if eqn.primitive.name != "convert_element_type":
            yield eqn.primitive.name
            for atom in eqn.invars:
                if isinstance(atom, core.Literal) and is_float(programs.aval_of(atom).dtype):
                    yield float(atom.val)
        for value in eqn.params.values():
            if programs.is_jaxpr(value):
                yield from _outline(value)


def cast(arrays: Arrays, program: core.ClosedJaxpr) -> Arrays:
    """The last arguments of a program in the dtypes that it takes."""
    dtypes = [aval.dtype for aval in program.in_avals[-len(arrays) :]]
    return [np.asarray(array).astype(dtype) for array, dtype in zip(arrays, dtypes, strict=True)]


@functools.lru_cache(8)
def _compile(jaxpr: core.ClosedJaxpr) -> Callable[..., Arrays]:
    return jax.jit(core.jaxpr_as_fun(jaxpr))


def _interpret(jaxpr: core.ClosedJaxpr) -> Callable[..., Arrays]:
    return lambda *args: run(jaxpr, args)


def _trajectory(
    side: Program,
    params: Arrays,
    grads: Grads,
    start: Callable[..., Arrays],
    step: Callable[..., Arrays],
) -> list[Arrays]:
    count, results = len(side.paths), start(*cast(params, side.start))
    seen = [results[count:]]
    for each in grads:
        results = step(*results[:count], *cast(each, side.step))
        seen.append(results[count:])
    return seen


def _exact_trajectory(side: Program, params: Arrays, grads: Grads) -> Arrays:
    count = len(side.paths)
    with precise():
        results = run(side.start, list(map(balls, params)), exact=True)
        for each in grads:
            results = run(side.step, [*results[:count], *map(balls, each)], exact=True)
    return results[count:]


# Digits of its largest entry that float64 leaves of what an unknown primitive computes.
_DIGITS_OF_UNKNOWN = 9


@contextlib.contextmanager
def unknown_by_float64() -> Iterator[None]:
    """Computes primitives without an exact rule in float64, as wide balls, inside the context."""

    def rule(eqn: core.JaxprEqn, args: Sequence[np.ndarray]) -> Arrays:
        with float64():
            arguments = [jnp.asarray(x.astype(float) if x.dtype == object else x) for x in args]
            results = eqn.primitive.bind(*arguments, **eqn.params)
        results = results if eqn.primitive.multiple_results else [results]
        return [_unsure_balls(np.asarray(each)) for each in results]

    token = unknown.set(rule)
    try:
        yield
    finally:
        unknown.reset(token)


def _unsure_balls(array: np.ndarray) -> np.ndarray:
    if not is_float(array.dtype):
        return array
    radius = np.abs(array[np.isfinite(array)]).max(initial=0.0) * 10.0**-_DIGITS_OF_UNKNOWN
    return np.asarray(balls(array) + arb(0, radius))  # of one ball, an array as well


def step_distances(lhs: list[Arrays], rhs: list[Arrays]) -> Iterator[list[float]]:
    """For each step how far the leaves are apart, relative to an entry's largest value so far."""
    scales = [np.zeros(np.shape(leaf)) for leaf in lhs[0]]
    for ours, theirs in zip(lhs, rhs, strict=True):
        arrays = [
            [np.asarray(leaf, float) for leaf in pair] for pair in zip(ours, theirs, strict=True)
        ]
        for entry, pair in enumerate(arrays):
            sizes = [np.nan_to_num(np.abs(leaf), nan=0.0, posinf=0.0) for leaf in pair]
            scales[entry] = np.maximum(scales[entry], np.maximum(*sizes))
        pairs = zip(arrays, scales, strict=True)
        yield [_scaled_distance(a, b, scale) for (a, b), scale in pairs]


def relative_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the largest difference of two arrays relative to the entries themselves."""
    return _scaled_distance(a, b, np.maximum(abs(a), abs(b)))


def _scaled_distance(a: np.ndarray, b: np.ndarray, scale: np.ndarray) -> float:
    """The largest difference of two arrays relative to a scale; infinite where one is NaN."""
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return np.inf
    with np.errstate(all="ignore"):
        same = (a == b) | np.isnan(a)
        difference = np.where(same, 0.0, np.abs(a - b))
        relative = np.where(same, 0.0, difference / np.where(scale > 0, scale, 1.0))
    return float(np.nan_to_num(relative, nan=np.inf, posinf=np.inf).max(initial=0.0))
