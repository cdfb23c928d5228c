"""The numbers of steps at which two programs begin to differ, or cease to."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from equivalence_tests.proof.counterexample.candidates import FARTHEST, alternating, full_arrays
from equivalence_tests.proof.counterexample.runs import Pair, cast
from equivalence_tests.proof.reading.sides import Program

_STEPS = 3  # from the start, by which a counter is known
_AT_ONCE, _MOST = 2**22, 2**24  # entries of parameters, over all numbers of steps
_ALL, _STRIDE = 2**17, 64  # so many numbers are all tried, of those above one in so many
_MOST_FOUND = 6


def turning_points(pair: Pair) -> list[int]:
    """Returns the first numbers of steps at which a step's results begin to differ, or cease to."""
    if pair.has_loops:
        return []
    size = sum(int(np.prod(leaf.shape, dtype=int)) for leaf in pair.shapes)
    lhs, rhs = (_after(side, pair) for side in pair.sides)

    def differs(numbers: np.ndarray) -> np.ndarray:
        rows = list[np.ndarray]()
        for some in np.array_split(numbers, max(len(numbers) * size // _AT_ONCE, 1)):
            a, b = lhs(some), rhs(some)
            with np.errstate(all="ignore"):
                far = abs(a - b) > pair.clear * np.maximum(abs(a), abs(b))
            rows.append((far | (np.isnan(a) != np.isnan(b))).any(axis=1))
        return np.concatenate(rows)

    numbers = np.concatenate([np.arange(_STEPS, _ALL), np.arange(_ALL, FARTHEST, _STRIDE)])
    numbers = numbers[: max(_MOST // size, 1)]
    apart, turns = differs(numbers), list[int]()
    if apart[0]:
        turns.append(_STEPS)
    for place in np.flatnonzero(np.diff(apart))[:_MOST_FOUND]:
        between = np.arange(int(numbers[place]), int(numbers[place + 1]) + 1)
        turns += between[1:][np.diff(differs(between))].tolist()
    return turns


def _after(side: Program, pair: Pair) -> Callable[[np.ndarray], np.ndarray]:
    """The parameters after one more step, of shape (numbers, entries)."""
    count, step = len(side.paths), core.jaxpr_as_fun(side.step)
    moves = cast(full_arrays(pair.shapes, lambda leaf: 1.0), side.step)
    start = jax.jit(core.jaxpr_as_fun(side.start))
    states = [start(*cast(full_arrays(pair.shapes, alternating), side.start))[:count]]
    for _ in range(_STEPS):
        states.append(jax.jit(step)(*states[-1], *moves)[:count])
    counters = {
        leaf: column[0]
        for leaf, column in enumerate(zip(*states, strict=True))
        if column[0].ndim == 0
        and jnp.issubdtype(column[0].dtype, jnp.number)
        and [float(value - column[0]) for value in column] == list(range(_STEPS + 1))
    }

    def after(number: jax.Array) -> jax.Array:
        state = [
            counters[leaf] + number.astype(value.dtype) if leaf in counters else value
            for leaf, value in enumerate(states[-1])
        ]
        return jnp.concatenate([jnp.ravel(leaf) for leaf in step(*state, *moves)[count:]])

    mapped = jax.jit(jax.vmap(after))
    return lambda numbers: np.asarray(mapped(jnp.asarray(numbers)), float)
