"""Inputs on which two sides part after very many steps: both are run to that step, compiled.

A program says itself at which count it does something else, `count > 50000`. The state there is
reached from the start, in float64, with a gradient that is 0, or always the same; from it one step
is taken with ordinary gradients, and followed in exact arithmetic as well.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from equivalence_tests.proof.counterexample.candidates import (
    alternating,
    compared_numbers,
    full_arrays,
    sizes,
)
from equivalence_tests.proof.interpreter import run as interpreter
from equivalence_tests.proof.reading.traced_sides import Program

Arrays = list[np.ndarray]
FARTHEST = 2_000_000  # steps; some seconds of a small program
_MOST_NUMBERS = 6
_AROUND = 2  # steps before and after a number
_FIRST_SIZES = 3


def far_numbers(sides: Sequence[Program], least: int) -> list[int]:
    """Returns the counts that programs ask for, and products of two of these, in order."""
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
            jax.jit(core.jaxpr_as_fun(side.start))(*params)[: len(side.paths)] for side in sides
        ]
        self.at = 0

    def advance(self, steps: int) -> None:
        """Takes steps with the gradient of the way."""
        moves = [jnp.asarray(g) for g in self.approach]
        self.states = [
            advance(state, moves, steps)
            for advance, state in zip(self._advance, self.states, strict=True)
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
            [np.asarray(leaf) for leaf in step(*state, *grads)[len(side.paths) :]]
            for side, step, state in pairs
        ]

    def differs_exactly(self, grads: Arrays, clear: float) -> bool:
        """True if the step from here parts the sides in exact arithmetic too.

        Raises:
          NoRule: something cannot be followed in exact arithmetic.
        """
        results = []
        for side, state in zip(self.sides, self.states, strict=True):
            with interpreter.precise(), interpreter.ties_are_equal():
                arguments = [_lift(np.asarray(leaf)) for leaf in (*state, *grads)]
                values = interpreter.exactly(side.step, arguments)[len(side.paths) :]
            results.append([value for array in values for value in array.flat])
        return any(
            a.is_finite() and b.is_finite() and abs(a - b) > clear * abs(a).max(abs(b))
            for a, b in zip(*results, strict=True)
        )


def _lift(leaf: np.ndarray) -> np.ndarray:
    return interpreter.to_balls(leaf) if np.issubdtype(leaf.dtype, np.floating) else leaf


def _advancing(side: Program) -> Any:
    count = len(side.paths)
    step = core.jaxpr_as_fun(side.step)

    @jax.jit
    def advance(state: list[jax.Array], moves: list[jax.Array], steps: int) -> list[jax.Array]:
        return jax.lax.fori_loop(0, steps, lambda _, s: step(*s, *moves)[:count], state)

    return advance


def probes(sides: Sequence[Program], shapes: Sequence[Any]) -> Iterator[Arrays]:
    """Yields gradients for the step that is to tell: ordinary ones, and around large numbers."""
    yield full_arrays(shapes, alternating)
    for size in sizes(sides)[:_FIRST_SIZES]:
        for factor in (4.0, 0.25):
            yield full_arrays(shapes, lambda leaf, each=factor * size: each * alternating(leaf))


def runs(
    sides: Sequence[Program], shapes: Sequence[Any], numbers: Sequence[int]
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
