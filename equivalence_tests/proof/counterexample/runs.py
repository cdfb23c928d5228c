"""Both sides along many steps, compiled or in exact arithmetic, and their distances.

A program says itself at which count it does something else, `count > 50000`. The state there is
reached from the start, in float64, with a gradient that is 0, or always the same; from it one step
is taken with ordinary gradients, and followed in exact arithmetic as well.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flint import arb
from jax.extend import core

from equivalence_tests.proof.counterexample.candidates import (
    Grads,
    alternating,
    compared_numbers,
    full_arrays,
    sizes,
)
from equivalence_tests.proof.dtypes import is_float
from equivalence_tests.proof.interpreter.balls import balls, precise
from equivalence_tests.proof.interpreter.run import run, unknown
from equivalence_tests.proof.reading import programs
from equivalence_tests.proof.reading.programs import AnyJaxpr
from equivalence_tests.proof.reading.sides import Program
from equivalence_tests.sides.precision import float64

Arrays = list[np.ndarray]
FARTHEST = 2_000_000  # steps; some seconds of a small program
_MOST_NUMBERS = 6
_AROUND = 2  # steps before and after a number
_FIRST_SIZES = 3


def far_numbers(sides: Sequence[Program], least: int) -> list[int]:
    """Returns the counts that programs compare with, and products of two of them, in order."""
    numbers = {n for side in sides for n in compared_numbers(side) if n == int(n) and n > 1}
    products = {a * b for a, b in itertools.combinations(sorted(numbers), 2)}
    far = sorted(int(n) for n in numbers | products if least < n <= FARTHEST)
    return far[:_MOST_NUMBERS]


class FarRun:
    """Both sides on their way to far steps.

    Attributes:
      params: the parameters at the start.
      approach: the gradient of every step on the way.
    """

    def __init__(self, sides: Sequence[Program], params: Arrays, approach: Arrays):
        self.sides, self.params, self.approach = sides, params, approach
        self._advance = [_advancing(side) for side in sides]
        self._steps = [jax.jit(core.jaxpr_as_fun(side.step)) for side in sides]
        self.states = [
            jax.jit(core.jaxpr_as_fun(side.start))(*_cast(params, side.start))[: len(side.paths)]
            for side in sides
        ]
        self.at = 0

    def advance(self, steps: int) -> None:
        """Takes steps with the gradient of the way."""
        self.states = [
            advance(state, _cast(self.approach, side.step), steps)
            for side, advance, state in zip(self.sides, self._advance, self.states, strict=True)
        ]
        self.at += steps

    def finite(self) -> bool:
        """True if nothing of the states is NaN or infinite."""
        leaves = [np.asarray(leaf) for state in self.states for leaf in state]
        return all(np.isfinite(x).all() for x in leaves if np.issubdtype(x.dtype, np.floating))

    def params_after(self, grads: Arrays) -> list[Arrays]:
        """Returns each side's parameters after one step from here."""
        pairs = zip(self.sides, self._steps, self.states, strict=True)
        return [
            [np.asarray(leaf) for leaf in step(*state, *_cast(grads, side.step))[len(side.paths) :]]
            for side, step, state in pairs
        ]

    def differs_exactly(self, grads: Arrays, clear: float) -> bool:
        """True if the step from here parts the sides in exact arithmetic too.

        Raises:
          NoRule: something cannot be followed in exact arithmetic.
        """
        results = []
        for side, state in zip(self.sides, self.states, strict=True):
            with precise():
                arguments = [_lift(np.asarray(leaf)) for leaf in (*state, *grads)]
                values = run(side.step, arguments, exact=True)[len(side.paths) :]
            results.append([value for array in values for value in array.flat])
        return any(
            a.is_finite() and b.is_finite() and abs(a - b) > clear * abs(a).max(abs(b))
            for a, b in zip(*results, strict=True)
        )


def _cast(arrays: Arrays, program: core.ClosedJaxpr) -> list[jax.Array]:
    """The last arguments of a program in the dtypes that it takes."""
    dtypes = [aval.dtype for aval in program.in_avals[-len(arrays) :]]
    return [jnp.asarray(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]


def _lift(leaf: np.ndarray) -> np.ndarray:
    return balls(leaf) if np.issubdtype(leaf.dtype, np.floating) else leaf


def _advancing(side: Program) -> Callable[..., list[jax.Array]]:
    count = len(side.paths)
    step = core.jaxpr_as_fun(side.step)

    @jax.jit
    def advance(state: list[jax.Array], moves: list[jax.Array], steps: int) -> list[jax.Array]:
        return jax.lax.fori_loop(0, steps, lambda _, s: step(*s, *moves)[:count], state)

    return advance


def probes(sides: Sequence[Program], shapes: Sequence[jax.ShapeDtypeStruct]) -> Iterator[Arrays]:
    """Yields gradients for the step that is to tell: ordinary ones, and around large numbers."""
    yield full_arrays(shapes, alternating)
    for size in sizes(sides)[:_FIRST_SIZES]:
        for factor in (4.0, 0.25):
            yield full_arrays(shapes, lambda leaf, each=factor * size: each * alternating(leaf))


def far_runs(
    sides: Sequence[Program], shapes: Sequence[jax.ShapeDtypeStruct], numbers: Sequence[int]
) -> Iterator[tuple[FarRun, int]]:
    """Yields both sides at the steps around each number, by two ways: gradients of 0, and of 1."""
    start = full_arrays(shapes, alternating)
    for size in (0.0, 1.0):
        run = FarRun(sides, start, full_arrays(shapes, lambda leaf, size=size: size))
        for number in numbers:
            run.advance(max(number - _AROUND - run.at, 0))
            if not run.finite():
                break
            for _ in range(2 * _AROUND + 1):
                yield run, number
                run.advance(1)


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


def _outline(program: AnyJaxpr) -> Iterator[str | float | object]:
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


def run_compiled(jaxpr: core.ClosedJaxpr, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the results of a program as XLA compiles it, once for all runs."""
    return _compile(jaxpr)(*args)


@functools.lru_cache(8)
def _compile(jaxpr: core.ClosedJaxpr) -> Callable[..., list[np.ndarray]]:
    return jax.jit(core.jaxpr_as_fun(jaxpr))


def trajectory(side: Program, params: list[np.ndarray], grads: Grads) -> list[list[np.ndarray]]:
    """The parameters at the start and after every step, as XLA compiles the programs."""
    count = len(side.paths)
    results = run_compiled(side.start, params)
    seen = [results[count:]]
    for each in grads:
        results = run_compiled(side.step, [*results[:count], *each])
        seen.append(results[count:])
    return seen


def compile_scan(side: Program) -> Callable[..., list[list[np.ndarray]]]:
    """`trajectory` of many steps with one gradient times factors, compiled as one program."""
    count = len(side.paths)
    step = core.jaxpr_as_fun(side.step)

    def body(
        state: list[jax.Array], moves: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        results = step(*state, *moves)
        return results[:count], results[count:]

    scanned = jax.jit(lambda state, moves: jax.lax.scan(body, state, moves)[1])

    def run(
        params: list[np.ndarray], grads: list[np.ndarray], factors: Sequence[float]
    ) -> list[list[np.ndarray]]:
        first = run_compiled(side.start, params)
        moves = [jnp.asarray(np.multiply.outer(np.asarray(factors), g)) for g in grads]
        seen = [np.asarray(row) for row in scanned(first[:count], moves)]
        return [first[count:], *([row[number] for row in seen] for number in range(len(factors)))]

    return run


def exact_trajectory(side: Program, params: list[np.ndarray], grads: Grads) -> list[arb]:
    """The last parameters, as balls."""
    count = len(side.paths)
    with precise():
        results = run(side.start, list(map(balls, params)), exact=True)
        for each in grads:
            arguments = [*results[:count], *map(balls, each)]
            results = run(side.step, arguments, exact=True)
    return [value for array in results[count:] for value in array.flat]


# Digits of its largest entry that float64 leaves of what an unknown primitive computes.
_DIGITS_OF_UNKNOWN = 9


@contextlib.contextmanager
def unknown_by_float64() -> Iterator[None]:
    """Within it, a primitive without an exact rule gives what float64 makes of it, as wide balls.

    What cancels is then no number any more. For examples, not for proofs.
    """

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
    finite = array[np.isfinite(array)]
    radius = np.abs(finite).max(initial=0.0) * 10.0**-_DIGITS_OF_UNKNOWN
    return np.asarray(balls(array) + arb(0, radius))  # of one ball, an array as well


def step_distances(
    lhs: list[list[np.ndarray]], rhs: list[list[np.ndarray]]
) -> Iterator[list[float]]:
    """For each step how far the leaves are apart, relative to an entry's largest value so far.

    What cancels to nearly 0 is not taken for a difference.
    """
    scales = [np.zeros(np.shape(leaf)) for leaf in lhs[0]]
    for ours, theirs in zip(lhs, rhs, strict=True):
        arrays = [
            [np.asarray(leaf, float) for leaf in pair] for pair in zip(ours, theirs, strict=True)
        ]
        for entry, pair in enumerate(arrays):
            sizes = [np.nan_to_num(np.abs(leaf), nan=0.0, posinf=0.0) for leaf in pair]
            scales[entry] = np.maximum(scales[entry], np.maximum(*sizes))
        pairs = zip(arrays, scales, strict=True)
        yield [scaled_distance(a, b, scale) for (a, b), scale in pairs]


def relative_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the largest difference of two arrays relative to the entries themselves."""
    return scaled_distance(a, b, np.maximum(abs(a), abs(b)))


def scaled_distance(a: np.ndarray, b: np.ndarray, scale: np.ndarray) -> float:
    """The largest difference of two arrays relative to a scale; infinite where one is NaN."""
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return np.inf
    with np.errstate(all="ignore"):
        same = (a == b) | np.isnan(a)
        difference = np.where(same, 0.0, np.abs(a - b))
        relative = np.where(same, 0.0, difference / np.where(scale > 0, scale, 1.0))
    return float(np.nan_to_num(relative, nan=np.inf, posinf=np.inf).max(initial=0.0))
