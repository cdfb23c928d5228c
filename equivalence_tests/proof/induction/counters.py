# pyright: strict
"""Counters that go round or stop, as functions of a count: guessed from their own steps."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from equivalence_tests.proof.bits.graph import Node, cone
from equivalence_tests.proof.dtypes import is_integer
from equivalence_tests.proof.induction.world import World
from equivalence_tests.proof.reading.sides import Program

_MOST_STEPS = 50
_COMPARISONS = ("min", "max", "clamp", "eq", "ne", "lt", "le")


@dataclass(frozen=True)
class Counter:
    """A counter as a function of the number of steps."""

    start: int
    sign: int
    period: int | None = None
    least: int = 0
    end: int | None = None

    @property
    def text(self) -> str:
        """The function, with `{0}` for the count."""
        if self.period is None:
            line = f"{self.start} {'+' if self.sign > 0 else '-'} {{0}}"
            return f"{'min' if self.sign > 0 else 'max'}({line}, {self.end})"
        text = f"({self._past} + {{0}}) % {self.period}"
        return f"{self._first} {'+' if self.sign > 0 else '-'} {text}"

    def of(self, count: jax.Array) -> jax.Array:
        """The function of a count of steps."""
        if self.period is not None:
            return self._first + self.sign * ((self._past + count) % self.period)
        assert self.end is not None
        stops = jnp.minimum if self.sign > 0 else jnp.maximum
        return stops(self.start + self.sign * count, self.end)

    @property
    def _first(self) -> int:
        """The value after which a counter that goes round has all others."""
        assert self.period is not None
        return self.least if self.sign > 0 else self.least + self.period - 1

    @property
    def _past(self) -> int:
        return abs(self.start - self._first)


def counter_of(world: World, side: Program, leaf: int) -> Counter | None:
    """Returns the function of the number of steps that a counter is; None of others."""
    first, symbols = world.start(side)[0][leaf], world.symbols(side)
    start = world.graph.scalar(first)
    if start is None or first.shape or not is_integer(first.dtype):
        return None
    after = world.step(side, symbols)[0][leaf]
    values = [
        int(start),
        *itertools.islice(_values(world, symbols[leaf], after, first), _MOST_STEPS),
    ]
    if len(values) < 3 or abs(values[1] - values[0]) > 1:
        return None
    for period in range(2, len(values) // 2 + 1):
        least = min(values)
        for sign in (1, -1):
            counter = Counter(values[0], sign, period, least)
            if max(values) - least == period - 1 and values == _counts(counter, len(values)):
                return counter
    sign = values[1] - values[0]
    ends = [end for end in _compared_numbers(world, after) if (end - values[0]) * sign > 0]
    for end in sorted(ends, key=lambda end: abs(end - values[0])):
        counter = Counter(values[0], sign, end=end)
        if values == _counts(counter, len(values)):
            return counter
    return None


def _values(world: World, before: Node, after: Node, value: Node) -> Iterator[int]:
    """Yields a counter after each step, as long as it depends on itself alone."""
    while True:
        (value,) = world.graph.with_inputs({before.id: value}, after)
        number = world.graph.scalar(value)
        if number is None:
            return
        yield int(number)


def _counts(counter: Counter, length: int) -> list[int]:
    return [int(counter.of(jnp.int32(step))) for step in range(length)]


def _compared_numbers(world: World, after: Node) -> Sequence[int]:
    """The numbers with which a step compares a counter."""
    args = [arg for node in cone(after) if node.op in _COMPARISONS for arg in node.args]
    numbers = [world.graph.scalar(arg) for arg in args if is_integer(arg.dtype)]
    largest = int(jnp.iinfo(after.dtype).max)
    return [int(number) for number in numbers if number is not None and number != largest]
