# pyright: strict
"""Relations of states that are guessed from a run: a sign, a factor, a power of a count.

Both sides are run in exact arithmetic on one random input; a part of one side's state that is, in
this run, a constant times a part of the other's (and perhaps times a count), or a constant to the
power of a count, is a guess. Guesses are proved like every other relation, or dropped.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from flint import arb, arb_mat, fmpq

from equivalence_tests.proof.bits.graph import Graph, Node
from equivalence_tests.proof.dtypes import Aval, DType, is_float, is_key
from equivalence_tests.proof.induction.derived import (
    Build,
    Derived,
    Factor,
    combined,
    joined,
    of_fraction,
    scaled,
    signed,
    summed,
    turned,
)
from equivalence_tests.proof.induction.world import Slot
from equivalence_tests.proof.interpreter import run as interpreter
from equivalence_tests.proof.reading.traced_sides import Inputs, Program

_STEPS = 6
_MOST_SOURCES, _MOST_AXES = 8, 4
_CLOSE = 1e-30
Number = arb | int
Arrays = list[np.ndarray]  # of balls or whole numbers
Rows = Sequence[np.ndarray]  # of balls or whole numbers, one after each step
_MOST = 10**6  # numerator or denominator of a constant


class Fits:
    """Both sides' states along one run."""

    def __init__(self, sides: tuple[Program, Program], given: Inputs):
        """Runs both.

        Args:
          sides: the programs.
          given: what both get.

        Raises:
          NoRule: something cannot be followed in exact arithmetic.
          Unclear: a comparison is too close.
        """
        self.sides = sides
        with interpreter.precise(), interpreter.ties_are_equal():
            rng = np.random.default_rng(5)
            self.numbers = {name: _ball(value) for name, value in given.numbers.items()}
            settings = [_array(self.numbers[name]) for name in sorted(self.numbers)]
            params = [_random(rng, leaf.shape) for leaf in given.shapes]
            grads = [[_random(rng, leaf.shape) for leaf in given.shapes] for _ in range(_STEPS)]
            self.runs = [_run(side, settings, params, grads) for side in sides]

    def derived(self) -> list[Derived]:
        """Guesses for leaves that have no equal on the other side."""
        guesses: dict[Slot, Derived] = {}
        used = set[Slot]()
        with interpreter.precise():
            alone = self._alone()
            # The right side's state as a function of the left side's, else the other way round.
            for slot in [at for at in alone if at[0] == 1] + [at for at in alone if at[0] == 0]:
                others = [at for at in self._all() if at != slot and at not in guesses]
                guess = None if slot in used else next(self._guesses(slot, others), None)
                if guess is not None:
                    guesses[slot] = guess
                    used |= set(guess.sources)
        return list(guesses.values())

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
                and all(_are_equal(a, b) for a, b in _pairs(self._rows(slot), self._rows(other)))
                for other in self._all()
                if other[0] != slot[0]
            )
        ]

    def _guesses(self, slot: Slot, sources: Sequence[Slot]) -> Iterator[Derived]:
        mine = self._rows(slot)
        counts = [each for each in sources if self._aval(each).shape == ()]
        if not self._is_float(slot):
            for other in sources:
                if not self._is_float(other) and self._aval(other).shape == self._aval(slot).shape:
                    yield from self._offset(slot, other)
            return
        for other in sources:
            if other[0] == slot[0] or self._aval(other).shape != self._aval(slot).shape:
                continue
            theirs = self._rows(other)
            if not self._is_float(other):
                continue
            if (
                factor := self._constant([_ratio(a, b) for a, b in _pairs(mine, theirs)])
            ) is not None:
                yield scaled(slot, other, factor)
                continue
            for count in counts:
                ratios = self._by_count(mine, theirs, self._rows(count))
                if (factor := self._constant(ratios)) is not None:
                    yield scaled(slot, other, factor, count)
        if self._aval(slot).shape == ():
            for count in counts:
                yield from self._power(slot, count)
        yield from self._laid_out(slot, sources)
        yield from self._sum(slot, sources)

    def _laid_out(self, slot: Slot, sources: Sequence[Slot]) -> Iterator[Derived]:
        """Others in a row, in another shape, or with their axes in another order."""
        dtype = self._aval(slot).dtype
        fit = [at for at in sources if at[0] != slot[0] and self._aval(at).dtype == dtype]
        shape = self._aval(slot).shape
        for other in fit:
            theirs = self._aval(other).shape
            if sorted(theirs) != sorted(shape) or not 1 < len(shape) <= _MOST_AXES:
                continue
            for order in itertools.permutations(range(len(shape))):
                if tuple(theirs[axis] for axis in order) != shape:
                    continue
                rows = [row.transpose(order) for row in self._rows(other)]
                if list(order) != sorted(order) and _all_equal(self._rows(slot), rows):
                    yield turned(slot, other, order, shape)
        for axis in range(len(shape)):
            row = self._in_a_row(slot, fit, axis)
            if row is not None:
                yield joined(slot, row, self._aval(slot), axis)

    def _in_a_row(self, slot: Slot, sources: Sequence[Slot], axis: int) -> list[Slot] | None:
        """The others that, one behind the other along an axis, are a leaf; stacked ones as well."""
        shape = self._aval(slot).shape
        rest = (*shape[:axis], *shape[axis + 1 :])
        mine = [np.moveaxis(row, axis, 0).ravel() for row in self._rows(slot)]
        parts: dict[Slot, list[np.ndarray]] = {}
        for other in sources:
            theirs, rows = self._aval(other).shape, self._rows(other)
            if axis == 0 and math.prod(theirs) % max(math.prod(rest), 1) == 0:
                parts[other] = [row.ravel() for row in rows]  # whatever its axes are
            elif theirs == rest:
                parts[other] = [row.ravel() for row in rows]
            elif len(theirs) == len(shape) and (*theirs[:axis], *theirs[axis + 1 :]) == rest:
                parts[other] = [np.moveaxis(row, axis, 0).ravel() for row in rows]
        found: list[Slot] = []
        at = 0
        while at < mine[0].size:
            for other, theirs in parts.items():
                size = theirs[0].size
                part = [row[at : at + size] for row in mine]
                if part[0].size == size > 0 and _all_equal(part, theirs):
                    found.append(other)
                    at += size
                    break
            else:
                return None
        return found

    def _sum(self, slot: Slot, sources: Sequence[Slot]) -> Iterator[Derived]:
        """A sum of two or three others, each times a constant: a step is a difference of places."""
        shape = self._aval(slot).shape
        fit = [at for at in sources if self._is_float(at) and self._aval(at).shape == shape]
        fit = self._distinct(sorted(fit, key=lambda at: (at[0] == slot[0], at)))[:_MOST_SOURCES]
        columns = {at: _column(self._rows(at)) for at in fit}
        mine = _column(self._rows(slot))
        for number in (2, 3):
            for chosen in itertools.combinations(fit, number):
                if all(at[0] == slot[0] for at in chosen):
                    continue
                factors = self._factors(mine, [columns[at] for at in chosen])
                if factors is not None:
                    yield summed(slot, chosen, factors)

    def _distinct(self, slots: Sequence[Slot]) -> list[Slot]:
        """Of those with the same values the first."""
        found: list[Slot] = []
        for at in slots:
            mine = _column(self._rows(at))
            if any(_are_equal(a, 0) is False for a in mine) and not any(
                all(map(_are_equal, mine, _column(self._rows(other)))) for other in found
            ):
                found.append(at)
        return found

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
            made = sum((a * b for a, b in zip(numbers, row, strict=True)), arb(0))
            if not made.overlaps(value):
                return None
        factors = [self._constant([number]) for number in numbers]
        known = [factor for factor in factors if factor is not None]
        return known if len(known) == count else None

    def _by_count(self, mine: Rows, theirs: Rows, steps: Rows) -> list[arb | None]:
        """Yields the relation of one leaf to another one times a count, if there can be one."""
        ratios: list[arb | None] = []
        counts = set[str]()
        for a, b, row in zip(mine, theirs, steps, strict=True):
            count = _plain(row.flat[0])
            counts.add(str(count))
            for x, y in zip(a.flat, b.flat, strict=True):
                if count == 0:
                    if _plain(x) != 0:
                        return []
                    continue
                ratios.append(_ratio(x, y * count))
        return ratios if len(counts) > 2 else []

    def _offset(self, slot: Slot, other: Slot) -> Iterator[Derived]:
        pairs = list(zip(self._rows(slot), self._rows(other), strict=True))
        for sign in (1, -1):  # a count that goes up, or down
            apart = {int(number) for a, b in pairs for number in (a - sign * b).flat}
            if len(apart) != 1 or slot[0] == other[0] or (sign, *apart) == (1, 0):
                continue
            number = apart.pop()

            def build(
                graph: Graph, nodes: Sequence[Node], number: int = number, sign: int = sign
            ) -> Node:
                (node,) = nodes
                if sign < 0:
                    node = graph.apply("neg", (node,), (), node.shape, node.dtype)
                more = graph.const(number, node.dtype)
                return graph.apply("add", (node, more), (), node.shape, node.dtype)

            yield Derived(slot, (other,), f"{'-' * (sign < 0)}{{0}} + {number}", build)

    def _power(self, slot: Slot, count: Slot) -> Iterator[Derived]:
        values = [row.flat[0] for row in self._rows(slot)]
        steps = [row.flat[0] for row in self._rows(count)]
        if any(b - a != 1 for a, b in itertools.pairwise(steps)):
            return
        base = self._constant([_ratio(b, a) for a, b in itertools.pairwise(values)])
        if base is None or base.text == "1":
            return
        ratio = _plain(values[1]) / _plain(values[0])
        first = _ratio(values[0], ratio ** int(steps[0]))
        factor = self._constant([first])
        if factor is None:
            return

        def build(graph: Graph, nodes: Sequence[Node]) -> Node:
            (node,) = nodes
            kind = self._aval(slot).dtype
            exponent = graph.apply("convert_element_type", (node,), (), (), kind)
            power = graph.apply("pow", (base.node(graph, kind), exponent), (), (), kind)
            return graph.apply("mul", (power, factor.node(graph, kind)), (), (), kind)

        yield Derived(
            slot,
            (count,),
            f"{factor.text} * " * (factor.text != "1") + f"({base.text}) ** {{0}}",
            build,
        )

    def _constant(self, ratios: Sequence[arb | None]) -> Factor | None:
        """Returns the simple number that all values are; None if there is none."""
        known = [ratio for ratio in ratios if ratio is not None]
        if not known or not all(each.is_finite() and each.overlaps(known[0]) for each in known):
            return None
        number = known[0]
        if abs(number) < _CLOSE or number.rad() > _CLOSE * abs(number):
            return None
        for text, value, build in self._settings():
            for sign in (1, -1):
                if number.overlaps(sign * value):
                    return Factor(f"{'-' if sign < 0 else ''}{text}", signed(sign, build))
        fraction = _fraction(number)
        if fraction is None:
            return None
        return Factor(str(fraction), lambda graph, kind: of_fraction(graph, fraction, kind))

    def _settings(self) -> Iterator[tuple[str, arb, Build]]:
        """Products of hyper-parameters and what is missing of them to 1."""
        parts: list[tuple[str, arb, Build]] = []
        for name, value in self.numbers.items():
            parts.append((name, value, self._symbol(name, False)))
            parts.append((f"(1 - {name})", 1 - value, self._symbol(name, True)))
        for text, value, build in parts:
            yield text, value, build
            yield f"1 / {text}", 1 / value, combined("div", lambda g, k: g.const(1, k), build)
        for (a, x, f), (b, y, g) in itertools.permutations(parts, 2):
            yield f"{a} * {b}", x * y, combined("mul", f, g)
            yield f"{a} / {b}", x / y, combined("div", f, g)

    def _symbol(self, name: str, rest: bool) -> Build:
        def build(graph: Graph, kind: DType) -> Node:
            symbol = graph.leaf(name, (), jnp.result_type(float))
            node = graph.apply("convert_element_type", (symbol,), (), (), kind)
            if not rest:
                return node
            return graph.apply("sub", (graph.const(1, kind), node), (), (), kind)

        return build

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
    state = interpreter.exactly(side.start, [*settings, *params])[: len(side.paths)]
    for each in grads:
        state = interpreter.exactly(side.step, [*settings, *state, *each])[: len(side.paths)]
        states.append(state)
    return states


def _ball(value: float) -> arb:
    return interpreter.ball(np.float64(value))


def _array(value: arb) -> np.ndarray:
    result = np.empty((), object)
    result[()] = value
    return result


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    result = np.empty(shape, object)
    for slot in np.ndindex(shape):
        result[slot] = arb(fmpq(int(rng.integers(1, 64)) * int(rng.choice([-1, 1])), 16))
    return result


def _column(rows: Rows) -> list[arb]:
    """All entries after all steps."""
    return [_plain(value) for row in rows for value in row.flat]


def _pairs(left: Rows, right: Rows) -> Iterator[tuple[Number, Number]]:
    for a, b in zip(left, right, strict=True):
        yield from zip(a.flat, b.flat, strict=True)


def _are_equal(a: Number, b: Number) -> bool:
    return bool(_plain(a).overlaps(_plain(b)))


def _ratio(a: Number, b: Number) -> arb | None:
    """The quotient; None of 0 and 0, or of what is no number."""
    a, b = _plain(a), _plain(b)
    if b.contains(0) and a.contains(0):
        return None
    return a / b if not b.contains(0) else arb("nan")


def _plain(value: Number) -> arb:
    return value if isinstance(value, arb) else arb(int(value))


def _fraction(number: arb) -> fmpq | None:
    """The simple fraction that a ball holds."""
    rest, before, now = number, (0, 1), (1, 0)
    for _ in range(30):
        near = (rest.mid() + arb(0.5)).floor().unique_fmpz()
        if near is None:
            return None
        term = int(near)
        before, now = now, (term * now[0] + before[0], term * now[1] + before[1])
        if max(map(abs, now)) > _MOST:
            return None
        if number.overlaps(arb(fmpq(*now))):
            return fmpq(*now)
        rest = 1 / (rest - term)
    return None


def _all_equal(left: Rows, right: Rows) -> bool:
    return all(_are_equal(a, b) for a, b in _pairs(left, right))
