"""Both sides along many steps, to where their programs may change their behaviour.

A program says itself at which count it does something else: `count > 50000`. The state there is
reached from the start with a gradient that is 0, or always 1; from it one step is taken with other
gradients.
"""

import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jax.extend import core

from equivalence_tests.proof.counterexample.candidates import (
    Grads,
    alternating,
    full_arrays,
    sizes,
    step_numbers,
)
from equivalence_tests.proof.counterexample.runs import Arrays, Pair, cast, entries, finite
from equivalence_tests.proof.dtypes import is_float, is_key
from equivalence_tests.proof.interpreter.balls import balls, precise
from equivalence_tests.proof.interpreter.run import run
from equivalence_tests.proof.reading.sides import Program

_SOME = 64  # steps that are followed though no number of the programs asks for it
_AROUND = 2  # steps before and after a number
_FIRST_SIZES = 3
_Walked = tuple[list[jax.Array], list[jax.Array]]  # a state, and the parameters after a step


class LongRun:
    """Both sides on their way to far steps."""

    def __init__(self, pair: Pair, params: Arrays, approach: Arrays):
        """Makes the states at the start."""
        self.pair, self.params, self.approach, self.at = pair, params, approach, 0
        self._walks = [_walk(side.step, len(side.paths)) for side in pair.sides]
        self._states = [
            jax.jit(core.jaxpr_as_fun(side.start))(*cast(params, side.start))[: len(side.paths)]
            for side in pair.sides
        ]

    def advance(self, steps: int) -> None:
        """Takes steps with the gradient of the way."""
        self._states = [state for state, _ in self._walk(steps, self.approach)]
        self.at += steps

    def params_after(self, grads: Arrays) -> list[Arrays]:
        """Returns each side's parameters after one step from here."""
        return [[np.asarray(leaf) for leaf in params] for _, params in self._walk(0, grads)]

    def _walk(self, steps: int, last: Arrays) -> list[_Walked]:
        rows = zip(self.pair.sides, self._walks, self._states, strict=True)
        return [
            walk(state, cast(self.approach, side.step), steps, cast(last, side.step))
            for side, walk, state in rows
        ]

    def is_finite(self) -> bool:
        """True if nothing of the states is NaN or infinite."""
        leaves = [leaf for state in self._states for leaf in state if is_float(leaf.dtype)]
        return all(np.isfinite(np.asarray(leaf)).all() for leaf in leaves)

    def moves(self, grads: Arrays) -> Grads:
        """The gradients of all steps so far, and those of the next one."""
        return [self.approach] * self.at + [grads]

    def next_differs_exactly(self, grads: Arrays) -> bool:
        """True if the next step parts the sides in exact arithmetic too."""
        with precise():
            rows = zip(self.pair.sides, self._states, strict=True)
            results = [_exact_step(side, [*state, *grads]) for side, state in rows]
        return any(
            finite(a, b) and abs(a - b) > self.pair.clear * abs(a).max(abs(b))
            for a, b in entries(results)
        )


def _exact_step(side: Program, arguments: Sequence[np.ndarray | jax.Array]) -> Arrays:
    def lift(value: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
        if is_key(value.dtype):
            return value
        return balls(np.asarray(value)) if is_float(value.dtype) else np.asarray(value)

    return run(side.step, list(map(lift, arguments)), exact=True)[len(side.paths) :]  # type: ignore[arg-type]


@functools.lru_cache(8)
def _walk(program: core.ClosedJaxpr, count: int) -> Callable[..., _Walked]:
    """Some steps with one gradient: the state after them, and the parameters after one more."""
    step = core.jaxpr_as_fun(program)

    @jax.jit
    def walk(
        state: list[jax.Array], approach: list[jax.Array], steps: int, last: list[jax.Array]
    ) -> _Walked:
        state = jax.lax.fori_loop(0, steps, lambda _, s: step(*s, *approach)[:count], state)
        return state, step(*state, *last)[count:]

    return walk


def long_runs(pair: Pair) -> Iterator[LongRun]:
    """Yields both sides at the start, to go on with gradients of 0, and of 1."""
    for size in (0.0, 1.0):
        approach = full_arrays(pair.shapes, lambda leaf, size=size: size)
        yield LongRun(pair, full_arrays(pair.shapes, alternating), approach)


def blocks(pair: Pair) -> list[tuple[int, int]]:
    """The first and the last number of steps, after which the next step is to be looked at."""
    return [(0, _SOME), *((n - _AROUND, n + _AROUND) for n in step_numbers(pair.sides))]


def probes(pair: Pair) -> list[Arrays]:
    """Gradients for the step that is to tell: ordinary ones, and around large numbers."""
    around = [factor * size for size in sizes(pair.sides)[:_FIRST_SIZES] for factor in (4.0, 0.25)]
    return [
        full_arrays(pair.shapes, lambda leaf, size=size: size * alternating(leaf))
        for size in (1.0, *around)
    ]
