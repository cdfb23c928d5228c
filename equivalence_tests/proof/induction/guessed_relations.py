"""Relations of states that are guessed from a run: a sign, a factor, a power of a count.

Both sides are run in exact arithmetic on one random input; a part of one side's state that is, in
this run, a constant times a part of the other's (and perhaps times a count), or a constant to the
power of a count, is a guess. Guesses are proved like every other relation, or dropped.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flint import arb, arb_mat, fmpq

from equivalence_tests.proof.dtypes import Aval, is_float, is_key
from equivalence_tests.proof.induction.counters import counter_of
from equivalence_tests.proof.induction.derived import (
    Derived,
    Factor,
    HyperParams,
    Progression,
    progression_of,
    recognise,
)
from equivalence_tests.proof.induction.world import Slot, World
from equivalence_tests.proof.interpreter.balls import balls, precise
from equivalence_tests.proof.interpreter.run import run
from equivalence_tests.proof.reading.sides import Inputs, Program

_SIZES = (1, 4, 1, 64, 2, 16)  # by which gradients are divided, so that maxima are no averages
_MOST_SOURCES, _MOST_AXES = 8, 4
Number = arb | int
Term = tuple[Slot, int]  # a leaf of a state, and the power to which it is taken
Arrays = list[np.ndarray]  # of balls or whole numbers
Rows = Sequence[np.ndarray]  # of balls or whole numbers, one after each step


class Fits:
    """Both sides' states along one run."""

    def __init__(self, sides: tuple[Program, Program], inputs: Inputs):
        """Runs both."""
        self.sides = sides
        world = World(inputs)
        self.counters = {
            (number, leaf): counter_of(world, side, leaf)
            for number, side in enumerate(sides)
            for leaf in range(len(side.paths))
        }
        with precise():
            rng = np.random.default_rng(5)
            arrays = {name: balls(np.asarray(n)) for name, n in inputs.numbers.items()}
            self.numbers = {name: array[()] for name, array in arrays.items()}
            settings = [arrays[name] for name in sorted(arrays)]
            params = [_random(rng, leaf.shape) for leaf in inputs.shapes]
            grads = [[_random(rng, leaf.shape, size) for leaf in inputs.shapes] for size in _SIZES]
            self.runs = [_run(side, settings, params, grads) for side in sides]

    def guesses(self) -> list[Derived]:
        """Guesses for leaves that have no equal on the other side."""
        by_slot: dict[Slot, Derived] = {}
        used = set[Slot]()
        with precise():
            alone = self._alone()
            # The right side's state as a function of the left side's, else the other way round.
            for slot in [at for at in alone if at[0] == 1] + [at for at in alone if at[0] == 0]:
                others = [at for at in self._all() if at != slot and at not in by_slot]
                guess = None if slot in used else next(self._guesses(slot, others), None)
                if guess is not None:
                    by_slot[slot] = guess
                    used |= set(guess.sources)
        return list(by_slot.values())

    def _all(self) -> list[Slot]:
        return [
            (side, i)
            for side in (0, 1)
            for i, leaf in enumerate(self.sides[side].avals)
            if not is_key(leaf.dtype) and leaf.dtype != np.bool_
        ]

    def _alone(self) -> list[Slot]:
        """Leaves that no leaf of the other side was equal to."""
        return [
            slot
            for slot in self._all()
            if not any(
                self._aval(slot).shape == self._aval(other).shape
                and self.counters[slot] == self.counters[other]
                and all(_are_equal(a, b) for a, b in _pairs(self._rows(slot), self._rows(other)))
                for other in self._all()
                if other[0] != slot[0]
            )
        ]

    def _guesses(self, slot: Slot, sources: Sequence[Slot]) -> Iterator[Derived]:
        counts = [at for at in sources if self._aval(at).shape == () and not self._is_float(at)]
        yield from self._counter(slot, counts)
        yield from self._multiple(slot, None, counts)
        if not self._is_float(slot):
            return
        for other in sources:
            same = self._aval(other).shape == self._aval(slot).shape and self._is_float(other)
            if other[0] != slot[0] and same:
                yield from self._multiple(slot, other, counts)
                yield from self._root(slot, other)
        yield from self._laid_out(slot, sources)
        yield from self._row(slot, sources, counts)
        yield from self._sum(slot, sources)

    def _counter(self, slot: Slot, counts: Sequence[Slot]) -> Iterator[Derived]:
        """A counter that goes round or stops, of one that does not."""
        counter = self.counters[slot]
        if counter is None:
            return
        for count in counts:
            first = self._numbers(count)[0] - 1
            is_count = self._numbers(count) == [first + n + 1 for n in range(len(_SIZES))]
            if is_count and self.counters[count] is None:
                yield self._derive(
                    slot,
                    (count,),
                    counter.text.format(f"({{0}} - {first})" if first else "{0}"),
                    lambda _, hyper, count, first=first: counter.of(count - first),
                )

    def _multiple(
        self, slot: Slot, other: Slot | None, counts: Sequence[Slot]
    ) -> Iterator[Derived]:
        """Another times a constant, or it or 1 times a function of a count."""
        values: list[tuple[int, arb]] = []  # of each step that has a ratio
        for step, row in enumerate(self._rows(slot)):
            divisors = np.full(row.shape, 1, object) if other is None else self._rows(other)[step]
            ratios = [_ratio(a, b) for a, b in _pairs([row], [divisors])]
            numbers = [ratio for ratio in ratios if ratio is not None]
            value = _uniform(numbers)
            if value is not None:
                values.append((step, value))
            elif numbers or other is None:
                return
        constant = None if other is None else _uniform([value for _, value in values])
        factor = None if constant is None else recognise(constant, self.numbers)
        if factor is not None:
            yield self._times(slot, other, None, Progression(factor))
        for count in counts:
            numbers = self._numbers(count)
            at = [numbers[step] for step, _ in values]
            progression = progression_of([value for _, value in values], at, self.numbers)
            if progression is not None:
                yield self._times(slot, other, count, progression)

    def _times(
        self, slot: Slot, other: Slot | None, count: Slot | None, progression: Progression
    ) -> Derived:
        """Another, or 1, times a function of a count."""
        sources = [at for at in (count, other) if at is not None]

        def multiple(one: jax.Array, hyper: HyperParams, *leaves: jax.Array) -> jax.Array:
            factor = progression.of(one, hyper, *leaves[:1])
            return factor if other is None else leaves[-1] * factor

        text = progression.text.replace("{count}", "{0}")
        if other is not None:
            text = f"({text})" if " + " in text or " - " in text else text
            text = f"{text} * {{{len(sources) - 1}}}".removeprefix("1 * ").replace("-1 * ", "-")
        return self._derive(slot, sources, text, multiple)

    def _root(self, slot: Slot, other: Slot) -> Iterator[Derived]:
        """The square root of another."""
        squares = [
            _ratio(_plain(a) ** 2, b) for a, b in _pairs(self._rows(slot), self._rows(other))
        ]
        positive = all(value >= 0 for value in _column(self._rows(slot)))
        if positive and all(each is None or each.overlaps(arb(1)) for each in squares):
            yield self._derive(slot, (other,), "sqrt({0})", lambda _, hyper, leaf: jnp.sqrt(leaf))

    def _combination(self, slot: Slot, terms: Sequence[Term], factors: Sequence[Factor]) -> Derived:
        """A leaf as the sum of others, or their squares, times constants."""

        def total(one: jax.Array, hyper: HyperParams, *leaves: jax.Array) -> jax.Array:
            powers = [
                leaf if power == 1 else leaf * leaf
                for leaf, (_, power) in zip(leaves, terms, strict=True)
            ]
            pairs = zip(powers, factors, strict=True)
            products = [power * factor.of(one, hyper) for power, factor in pairs]
            return functools.reduce(operator.add, products)

        texts = [
            f"{factor.text} * {{{i}}}{' ** 2' if power == 2 else ''}".removeprefix("1 * ")
            for i, ((_, power), factor) in enumerate(zip(terms, factors, strict=True))
        ]
        text = " + ".join(texts).replace("-1 * ", "-").replace("+ -", "- ")
        return self._derive(slot, [at for at, _ in terms], text, total)

    def _derive(
        self, slot: Slot, sources: Sequence[Slot], text: str, function: Callable[..., jax.Array]
    ) -> Derived:
        """A leaf as a function: (1 of the leaf's dtype, hyper-parameters, sources) -> the leaf."""
        aval = self._aval(slot)

        def leaf(numbers: Mapping[str, jax.Array], *leaves: jax.Array) -> jax.Array:
            hyper = {name: jnp.asarray(number, aval.dtype) for name, number in numbers.items()}
            value = function(jnp.asarray(1, aval.dtype), hyper, *leaves)
            return jnp.broadcast_to(jnp.asarray(value, aval.dtype), aval.shape)

        arrays = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in map(self._aval, sources)]
        program = jax.make_jaxpr(leaf)(dict.fromkeys(self.numbers, 0.0), *arrays)
        return Derived(slot, tuple(sources), text, program)

    def _numbers(self, count: Slot) -> list[int]:
        return [int(row.flat[0]) for row in self._rows(count)]

    def _laid_out(self, slot: Slot, sources: Sequence[Slot]) -> Iterator[Derived]:
        """Others in a row, in another shape, or with their axes in another order."""
        dtype, shape = self._aval(slot).dtype, tuple(self._aval(slot).shape)
        fit = [at for at in sources if at[0] != slot[0] and self._aval(at).dtype == dtype]
        orders = itertools.permutations(range(len(shape))) if len(shape) <= _MOST_AXES else ()
        for order, other in itertools.product([*orders][1:], fit):  # all but the identity
            theirs = self._aval(other).shape
            if len(theirs) != len(shape) or tuple(theirs[axis] for axis in order) != shape:
                continue
            if _all_equal(self._rows(slot), [row.transpose(order) for row in self._rows(other)]):
                yield self._derive(
                    slot,
                    (other,),
                    f"{{0}}.transpose{order}",
                    lambda _, hyper, leaf, order=order: leaf.transpose(order),
                )
        for axis in range(len(shape)):
            row = self._in_a_row(slot, fit, axis)
            if row is not None:
                yield self._concatenation(slot, row, axis)

    def _concatenation(self, slot: Slot, sources: Sequence[Slot], axis: int) -> Derived:
        """A leaf as the concatenation of others along an axis, of any axes of their own."""
        shape = tuple(self._aval(slot).shape)
        rest = math.prod(shape) // shape[axis]

        def concatenation(one: jax.Array, hyper: HyperParams, *leaves: jax.Array) -> jax.Array:
            parts = [
                leaf.reshape(*shape[:axis], leaf.size // rest, *shape[axis + 1 :])
                for leaf in leaves
            ]
            return jnp.concatenate(parts, axis)

        names = ", ".join(f"{{{index}}}" for index in range(len(sources)))
        text = f"[{names}] in a row" if len(sources) > 1 else f"{{0}} in the shape {shape}"
        text += f" along axis {axis}" * (axis > 0)
        return self._derive(slot, sources, text, concatenation)

    def _in_a_row(self, slot: Slot, sources: Sequence[Slot], axis: int) -> list[Slot] | None:
        """The others that, one behind the other along an axis, are a leaf; stacked ones as well."""
        shape = tuple(self._aval(slot).shape)
        rest = (*shape[:axis], *shape[axis + 1 :])
        mine = [np.moveaxis(row, axis, 0).ravel() for row in self._rows(slot)]
        parts: dict[Slot, list[np.ndarray]] = {}
        for other in sources:
            theirs = tuple(self._aval(other).shape)
            of_any_axes = axis == 0 and math.prod(theirs) % max(math.prod(rest), 1) == 0
            across = len(theirs) == len(shape) and (*theirs[:axis], *theirs[axis + 1 :]) == rest
            if of_any_axes or across or theirs == rest:
                at = axis if across and not of_any_axes else 0
                moved = (np.moveaxis(row, at, 0) if at else row for row in self._rows(other))
                parts[other] = [row.ravel() for row in moved]
        segments: list[Slot] = []
        at = 0
        while at < mine[0].size:
            for other, theirs in parts.items():
                size = theirs[0].size
                part = [row[at : at + size] for row in mine]
                if part[0].size == size > 0 and _all_equal(part, theirs):
                    segments.append(other)
                    at += size
                    break
            else:
                return None
        return segments

    def _row(
        self, slot: Slot, sources: Sequence[Slot], counts: Sequence[Slot]
    ) -> Iterator[Derived]:
        """A row of another: always the same one, or one after the other."""
        shape = tuple(self._aval(slot).shape)
        for other in sources:
            length, *rest = (*self._aval(other).shape, 0)
            if tuple(rest[:-1]) != shape or rest == [] or other[0] == slot[0]:
                continue
            pairs = list(zip(self._rows(slot), self._rows(other), strict=True))
            places = [
                {at for at in range(length) if _all_equal([mine], [np.asarray(rows[at])])}
                for mine, rows in pairs
            ]
            for at in range(length):
                if all(at in here for here in places):
                    yield self._derive(
                        slot, (other,), f"{{0}}[{at}]", lambda _, hyper, leaf, at=at: leaf[at]
                    )
            for count, by in itertools.product(counts, range(length)):
                numbers = self._numbers(count)
                if all((n + by) % length in p for n, p in zip(numbers, places, strict=True)):
                    yield self._derive(
                        slot,
                        (other, count),
                        f"{{0}}[({{1}} + {by}) % {length}]",
                        lambda _, hyper, leaf, count, by=by: leaf[(count + by) % len(leaf)],
                    )

    def _sum(self, slot: Slot, sources: Sequence[Slot]) -> Iterator[Derived]:
        """A sum of two or three others or their squares, each times a constant."""
        shape = self._aval(slot).shape
        fit = [at for at in sources if self._is_float(at) and self._aval(at).shape == shape]
        fit = self._distinct(sorted(fit, key=lambda at: (at[0] == slot[0], at)))[:_MOST_SOURCES]
        columns: dict[Term, list[arb]] = {(at, 1): _column(self._rows(at)) for at in fit}
        columns |= {(at, 2): [value**2 for value in columns[at, 1]] for at in fit}
        mine = _column(self._rows(slot))
        for number in (2, 3):
            for chosen in itertools.combinations(columns, number):
                if all(at[0] == slot[0] for at, _ in chosen):
                    continue
                factors = self._factors(mine, [columns[each] for each in chosen])
                if factors is not None:
                    yield self._combination(slot, chosen, factors)

    def _distinct(self, slots: Sequence[Slot]) -> list[Slot]:
        """The first of each group of leaves with the same values."""
        distinct: list[Slot] = []
        for at in slots:
            mine = _column(self._rows(at))
            if any(_are_equal(a, 0) is False for a in mine) and not any(
                all(map(_are_equal, mine, _column(self._rows(other)))) for other in distinct
            ):
                distinct.append(at)
        return distinct

    def _factors(
        self, mine: Sequence[arb], columns: Sequence[Sequence[arb]]
    ) -> list[Factor] | None:
        """The constants with which columns make up one; None if none do."""
        count = len(columns)
        rows = list(zip(*columns, strict=True))
        if len(rows) < 2 * count:
            return None
        # Rows of different steps, so that they are independent where the columns are.
        some = [(i * (len(rows) - 1)) // (count - 1) for i in range(count)]
        try:
            solved = arb_mat([list(rows[i]) for i in some]).solve(
                arb_mat([[mine[i]] for i in some])
            )
        except ZeroDivisionError:
            return None
        numbers = [solved[i, 0] for i in range(count)]
        for value, row in zip(mine, rows, strict=True):
            predicted = sum((a * b for a, b in zip(numbers, row, strict=True)), arb(0))
            if not predicted.overlaps(value):
                return None
        factors = [recognise(number, self.numbers) for number in numbers]
        constants = [factor for factor in factors if factor is not None]
        return constants if len(constants) == count else None

    def _rows(self, slot: Slot) -> list[np.ndarray]:
        return [np.asarray(state[slot[1]]) for state in self.runs[slot[0]]]

    def _aval(self, slot: Slot) -> Aval:
        return self.sides[slot[0]].avals[slot[1]]

    def _is_float(self, slot: Slot) -> bool:
        return is_float(self._aval(slot).dtype)


def _run(
    side: Program,
    settings: list[np.ndarray],
    params: list[np.ndarray],
    grads: list[list[np.ndarray]],
) -> list[list[np.ndarray]]:
    """The state of a side after each step, from the first on."""
    states: list[Arrays] = []
    state = run(side.start, [*settings, *params], exact=True)[: len(side.paths)]
    for each in grads:
        state = run(side.step, [*settings, *state, *each], exact=True)[: len(side.paths)]
        states.append(state)
    return states


def _random(rng: np.random.Generator, shape: tuple[int, ...], size: int = 1) -> np.ndarray:
    """Random numbers, divided by a size; those of a scalar are an array as well."""
    result = np.empty(shape, object)
    for slot in np.ndindex(shape):
        number = int(rng.integers(1, 64)) * int(rng.choice([-1, 1]))
        result[slot] = arb(fmpq(number, 16 * size))
    return result


def _column(rows: Rows) -> list[arb]:
    """All entries after all steps."""
    return [_plain(value) for row in rows for value in row.flat]


def _pairs(lhs: Rows, rhs: Rows) -> Iterator[tuple[Number, Number]]:
    for a, b in zip(lhs, rhs, strict=True):
        yield from zip(a.flat, b.flat, strict=True)


def _are_equal(a: Number, b: Number) -> bool:
    return bool(_plain(a).overlaps(_plain(b)))


def _ratio(a: Number, b: Number) -> arb | None:
    """The quotient; None of 0 / 0."""
    a, b = _plain(a), _plain(b)
    if b.contains(0) and a.contains(0):
        return None
    return a / b if not b.contains(0) else arb("nan")


def _uniform(row: Iterable[Number]) -> arb | None:
    """Returns the number that all entries are; None if they are not one."""
    values = [_plain(value) for value in row]
    if not values or not all(each.is_finite() and each.overlaps(values[0]) for each in values):
        return None
    return values[0]


def _plain(value: Number) -> arb:
    return value if isinstance(value, arb) else arb(int(value))


def _all_equal(lhs: Rows, rhs: Rows) -> bool:
    return all(_are_equal(a, b) for a, b in _pairs(lhs, rhs))
