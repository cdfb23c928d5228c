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
_AT_ONCE, _MOST = 2**22, 2**26  # entries of parameters, over all numbers of steps
_MOST_FOUND = 6


def turning_points(pair: Pair) -> list[int]:
    """Returns the first numbers of steps at which a step's results begin to differ, or cease to.

    States after a few steps get counters, the numbers that every step makes one more, as they would
    be after any number of steps. No run has led to such a state, so these say only where to look;
    but any condition on a count turns there, `log(count) > 9` or `count & 1024`. None of programs
    with loops, which take too long for so many.
    """
    if pair.has_loops:
        return []
    size = sum(int(np.prod(leaf.shape, dtype=int)) for leaf in pair.shapes)
    at_once, most = max(_AT_ONCE // size, 1), min(FARTHEST, _MOST // size)
    lhs, rhs = (_after(side, pair) for side in pair.sides)
    turns, differed = list[int](), False
    for first in range(_STEPS, most, at_once):
        numbers = np.arange(first, min(first + at_once, most))
        a, b = lhs(numbers), rhs(numbers)
        with np.errstate(all="ignore"):
            far = abs(a - b) > pair.clear * np.maximum(abs(a), abs(b))
        differs = [differed, *(far | (np.isnan(a) != np.isnan(b))).any(axis=1).tolist()]
        turns += numbers[np.diff(differs)].tolist()
        differed = differs[-1]
        if len(turns) >= _MOST_FOUND:
            break
    return turns[:_MOST_FOUND]


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
