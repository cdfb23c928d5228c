"""Measuring things in turn, so that a slow minute of the machine falls on all of them."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Spread:
    """Several measurements of one thing.

    Attributes:
      median: the median.
      low: what it may be at least: the first quartile, or an interval's lower end.
      high: what it may be at most, likewise.
    """

    median: float
    low: float
    high: float


def spread(seconds: list[float]) -> Spread:
    """Median and quartiles of measurements, at least one."""
    if len(seconds) < 2:
        return Spread(seconds[0], seconds[0], seconds[0])
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Spread(median, low, high)


def interval(values: list[float], sure: float = 0.95) -> Spread:
    """The median, and the interval that holds the true one with that probability.

    By ranks (the sign test turned around), whatever the values' distribution is; of fewer than six
    values it is all there is.
    """
    ranked, count = sorted(values), len(values)
    outside, rank = 0.0, 0
    while (outside := outside + math.comb(count, rank) / 2**count) <= (1 - sure) / 2:
        rank += 1
    rank = max(rank, 1)
    return Spread(statistics.median(ranked), ranked[rank - 1], ranked[-rank])


class Stepper:
    """A training step, compiled, that goes on from its own last state.

    Attributes:
      compile_seconds: time for tracing and compiling the step.
    """

    def __init__(self, step: Callable[[Any, Any], Any], state: Any, grads: Any):
        """Compiles the step; the state's buffers are donated to it, as a training loop would.

        Args:
          step: (state, gradients) -> state.
          state: the first state; copied, for donation destroys it.
          grads: the gradients of every step.
        """
        self._state = jax.tree.map(lambda leaf: jax.numpy.array(leaf, copy=True), state)
        self._grads = grads
        start = time.perf_counter()
        lowered = jax.jit(step, donate_argnums=0).lower(self._state, grads)
        self.trace_seconds = time.perf_counter() - start
        self._step = self.program = lowered.compile()
        self.compile_seconds = time.perf_counter() - start

    @property
    def state_and_gradients(self) -> tuple[Any, Any]:
        """What it is at, and what it is given."""
        return self._state, self._grads

    def __call__(self) -> float:
        """Takes one step and waits for it; returns the seconds that it took."""
        start = time.perf_counter()
        self._state = self._step(self._state, self._grads)
        jax.block_until_ready(self._state)
        return time.perf_counter() - start


def in_turn(
    candidates: Mapping[str, Callable[[], float]],
    repeats: int,
    warm_up: int = 3,
    seconds: float = math.inf,
) -> dict[str, list[float]]:
    """Lets candidates take turns; the one that begins changes from turn to turn.

    Args:
      candidates: name -> function that does the work once and returns the seconds.
      repeats: turns that count.
      warm_up: turns before them.
      seconds: after which no turn is begun, once five have counted.

    Returns:
      Name -> seconds of each counted turn.
    """
    names = list(candidates)
    taken: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + seconds
    for turn in range(-warm_up, repeats):
        if turn >= 5 and time.perf_counter() > end:
            break
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            took = candidates[name]()
            if turn >= 0:
                taken[name].append(took)
    return taken
