"""Measuring things in turn, so that a slow minute of the machine falls on all of them."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax

from optax_bridge.metadata.trees import PyTree, Updates


@dataclass(frozen=True)
class Spread:
    """A median, and the ends of the interval that holds the true one."""

    median: float
    low: float
    high: float


def interval(values: list[float], confidence: float = 0.95) -> Spread:
    """Returns the median, and the interval that holds the true one with that probability."""
    ranked, count = sorted(values), len(values)
    outside, rank = 0.0, 0
    while (outside := outside + math.comb(count, rank) / 2**count) <= (1 - confidence) / 2:
        rank += 1
    rank = max(rank, 1)
    return Spread(statistics.median(ranked), ranked[rank - 1], ranked[-rank])


class Stepper:
    """A training step, compiled, that continues from its own last state."""

    def __init__(self, step: Callable[[PyTree, Updates], PyTree], state: PyTree, grads: Updates):
        """Compiles the step; the state's buffers are donated to it, as a training loop would."""
        self._state = jax.tree.map(lambda leaf: jax.numpy.array(leaf, copy=True), state)
        self._grads = grads
        start = time.perf_counter()
        lowered = jax.jit(step, donate_argnums=0).lower(self._state, grads)
        self.trace_seconds = time.perf_counter() - start
        self.program = lowered.compile()
        self.compile_seconds = time.perf_counter() - start - self.trace_seconds

    def __call__(self) -> float:
        """Takes one step and waits for it; returns the seconds that it took."""
        start = time.perf_counter()
        self._state = self.program(self._state, self._grads)
        jax.block_until_ready(self._state)
        return time.perf_counter() - start


def in_turn(
    candidates: Mapping[str, Callable[[], float]],
    repeats: int,
    warm_up: int = 3,
    seconds: float = math.inf,
) -> dict[str, list[float]]:
    """Lets candidates take turns; the one that begins changes from turn to turn."""
    names = list(candidates)
    times: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + seconds
    for turn in range(-warm_up, repeats):
        if turn >= 5 and time.perf_counter() > end:
            break
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            duration = candidates[name]()
            if turn >= 0:
                times[name].append(duration)
    return times
