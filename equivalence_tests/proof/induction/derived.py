"""Leaves of a state as functions of other leaves, and of a count."""

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from flint import arb, fmpq

from equivalence_tests.proof.bits.graph import Node
from equivalence_tests.proof.induction.world import Slot, World
from equivalence_tests.proof.reading import programs

HyperParams = Mapping[str, Any]  # numbers by their names: balls, or arrays that JAX traces


@dataclass(frozen=True)
class Factor:
    """A constant, perhaps of hyper-parameters."""

    text: str
    of: Callable[[Any, HyperParams], Any]

    def __neg__(self) -> "Factor":
        return Factor(f"-{self.text}", lambda one, hyper: -self.of(one, hyper))


def recognise(number: arb, hyper: HyperParams) -> Factor | None:
    """The simple constant that a ball holds, perhaps of hyper-parameters; None of others."""
    if abs(number) < _CLOSE or number.rad() > _CLOSE * abs(number):
        return None
    for factor in _settings(hyper):
        for signed in (factor, -factor):
            if number.overlaps(signed.of(arb(1), hyper)):
                return signed
    if (fraction := _fraction(number)) is not None:
        return Factor(str(fraction), lambda one, hyper: _times(one, fraction))
    if (power := _fraction(number.exp())) is not None:
        return Factor(f"log({power})", lambda one, hyper: jnp.log(_times(one, power)))
    return None


def _settings(hyper: HyperParams) -> Iterator[Factor]:
    """Yields products and quotients of hyper-parameters and of 1 less each."""
    parts: list[Factor] = []
    for name in hyper:
        parts.append(Factor(name, lambda one, hyper, name=name: hyper[name]))
        parts.append(Factor(f"(1 - {name})", lambda one, hyper, name=name: one - hyper[name]))
    for a in parts:
        yield a
        yield Factor(f"1 / {a.text}", lambda one, hyper, a=a: one / a.of(one, hyper))
    for a, b in itertools.permutations(parts, 2):
        for sign, operation in (("*", operator.mul), ("/", operator.truediv)):
            yield Factor(
                f"{a.text} {sign} {b.text}",
                lambda one, hyper, a=a, b=b, operation=operation: operation(
                    a.of(one, hyper), b.of(one, hyper)
                ),
            )


def _times(one: jax.Array, fraction: fmpq) -> jax.Array:
    """A fraction in the dtype of `one`, as a quotient of integers."""
    top = int(fraction.p) * one
    return top if fraction.q == 1 else top / int(fraction.q)


def _fraction(number: arb) -> fmpq | None:
    """The simple fraction that a ball holds."""
    near = Fraction(float(number.mid())).limit_denominator(_MOST)
    exact = fmpq(near.numerator, near.denominator)
    return exact if abs(near.numerator) <= _MOST and number.overlaps(arb(exact)) else None


@dataclass(frozen=True)
class Derived:
    """A leaf of a state, as a function of other leaves."""

    slot: Slot
    sources: tuple[Slot, ...]
    text: str
    program: programs.AnyJaxpr
    result: int = 0

    def node(self, world: World, states: Sequence[Sequence[Node]]) -> Node:
        """The leaf as a node, from the states of both sides."""
        sources = [states[side][leaf] for side, leaf in self.sources]
        return programs.run(world.graph, self.program, [*world.hyper, *sources])[self.result]


_CLOSE = 1e-30
_MOST = 10**6  # numerator or denominator of a constant
_FEWEST = 4  # values, of which three decide the sequence and the rest confirm it


@dataclass(frozen=True)
class Progression:
    """A function of a count: `offset + scale * ratio ** count`, or a constant."""

    offset: Factor | None
    scale: Factor | None = None
    ratio: Factor | None = None

    @property
    def text(self) -> str:
        """The function, with `{count}` for the count."""
        offset = "" if self.offset is None else self.offset.text
        if self.scale is None:
            return offset
        rest = "{count}" if self.ratio is None else f"({self.ratio.text}) ** {{count}}"
        if self.scale.text != "1":
            rest = f"{self.scale.text} * {rest}".replace("-1 * ", "-")
        return f"{offset} + {rest}".replace("+ -", "- ") if offset else rest

    def of(self, one: jax.Array, hyper: HyperParams, *count: jax.Array) -> jax.Array:
        """The function of a count as a number of the dtype of `one`."""
        offset = 0 * one if self.offset is None else self.offset.of(one, hyper)
        if self.scale is None:
            return offset
        rest = jnp.asarray(count[0], one.dtype)
        if self.ratio is not None:
            rest = self.ratio.of(one, hyper) ** rest
        if self.scale.text != "1":
            rest = rest * self.scale.of(one, hyper)
        return rest if self.offset is None else offset + rest


def progression_of(
    values: Sequence[arb], counts: Sequence[int], hyper: HyperParams
) -> Progression | None:
    """Returns the function of a count that fits values; None if none does, or all are equal."""
    offset, scale = _line(values, counts)
    ratio = None
    if scale is None:
        offset, scale, ratio = _curve(values, counts)
    if offset is None or scale is None:
        return None
    summand = None if offset.contains(0) else recognise(offset, hyper)
    factor, base = recognise(scale, hyper), None if ratio is None else recognise(ratio, hyper)
    unknown = (summand is None and not offset.contains(0)) or (base is None and ratio is not None)
    return None if factor is None or unknown else Progression(summand, factor, base)


def _line(values: Sequence[arb], counts: Sequence[int]) -> tuple[arb | None, arb | None]:
    """The offset and the slope of values on a line; None of others."""
    first = {count: value for value, count in zip(values, counts, strict=True)}
    (a, b), *_ = [*itertools.pairwise(sorted(first)), (0, 0)]
    if a == b:
        return None, None
    slope = (first[b] - first[a]) / (b - a)
    offset = first[a] - slope * a
    on_it = all((offset + slope * n).overlaps(v) for v, n in zip(values, counts, strict=True))
    determined = len(first) > 2 or offset.contains(0)  # two points are always on one
    return (offset, slope) if on_it and determined and not slope.contains(0) else (None, None)


def _curve(
    values: Sequence[arb], counts: Sequence[int]
) -> tuple[arb | None, arb | None, arb | None]:
    """The limit, the scale and the ratio of values whose steps are a geometric sequence."""
    nothing = None, None, None
    if len(values) < _FEWEST or any(b - a != 1 for a, b in itertools.pairwise(counts)):
        return nothing
    steps = [b - a for a, b in itertools.pairwise(values)]
    if any(step.contains(0) for step in steps):
        return nothing
    ratios = [b / a for a, b in itertools.pairwise(steps)]
    if not all(ratio.overlaps(ratios[0]) for ratio in ratios) or ratios[0].overlaps(arb(1)):
        return nothing
    limit = values[0] - steps[0] / (ratios[0] - 1)
    return limit, (values[0] - limit) / ratios[0] ** counts[0], ratios[0]
