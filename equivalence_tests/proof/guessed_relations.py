# pyright: strict
"""Relations of states that are guessed from a run: a sign, a factor, a power of a count.

Both sides are run in exact arithmetic on one random input; a part of one side's state that is, in
this run, a constant times a part of the other's (and perhaps times a count), or a constant to the
power of a count, is a guess. Guesses are proved like every other relation, or dropped.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from flint import arb, arb_mat, fmpq

from equivalence_tests.proof import interpreter
from equivalence_tests.proof.dtypes import Aval, DType, is_float, is_key
from equivalence_tests.proof.graph import Graph, Node
from equivalence_tests.proof.traced_sides import Inputs, Program
from equivalence_tests.proof.world import Slot

_STEPS = 6
_MOST_SOURCES = 8
_CLOSE = 1e-30
Number = arb | int
Arrays = list[np.ndarray]  # of balls or whole numbers
Rows = Sequence[np.ndarray]  # of balls or whole numbers, one after each step
_MOST = 10**6  # numerator or denominator of a constant


# Makes a factor, of a dtype.
Build = Callable[[Graph, DType], Node]


@dataclass(frozen=True)
class Factor:
    """A constant, perhaps of hyper-parameters, as text and as a node."""

    text: str
    node: Build


@dataclass(frozen=True)
class Derived:
    """A part of a state, as a function of other parts.

    Attributes:
      slot: what it is about.
      sources: what it is a function of.
      text: the function, with `{0}`, `{1}` for the sources.
      build: from the graph and the sources' nodes to its node.
    """

    slot: Slot
    sources: tuple[Slot, ...]
    text: str
    build: Callable[[Graph, Sequence[Node]], Node]


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
                yield _scaled(slot, other, factor)
                continue
            for count in counts:
                ratios = self._by_count(mine, theirs, self._rows(count))
                if (factor := self._constant(ratios)) is not None:
                    yield _scaled(slot, other, factor, count)
        if self._aval(slot).shape == ():
            for count in counts:
                yield from self._power(slot, count)
        yield from self._sum(slot, sources)

    def _sum(self, slot: Slot, sources: Sequence[Slot]) -> Iterator[Derived]:
        """A sum of two or three others, each times a constant: a step is a difference of places."""
        shape = self._aval(slot).shape
        fit = [at for at in sources if self._is_float(at) and self._aval(at).shape == shape]
        fit = self._distinct(fit)[:_MOST_SOURCES]
        columns = {at: _column(self._rows(at)) for at in fit}
        mine = _column(self._rows(slot))
        for number in (2, 3):
            for chosen in itertools.combinations(fit, number):
                if all(at[0] == slot[0] for at in chosen):
                    continue
                factors = self._factors(mine, [columns[at] for at in chosen])
                if factors is not None:
                    yield _summed(slot, chosen, factors)

    def _distinct(self, slots: Sequence[Slot]) -> list[Slot]:
        """Of those with the same values one, of the left side where there is one."""
        found: list[Slot] = []
        for at in sorted(slots):
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
        """What one is to the other times a count; nothing where that cannot be."""
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
        """What all of these are; None if they differ, or are no simple number."""
        known = [ratio for ratio in ratios if ratio is not None]
        if not known or not all(each.is_finite() and each.overlaps(known[0]) for each in known):
            return None
        number = known[0]
        if abs(number) < _CLOSE or number.rad() > _CLOSE * abs(number):
            return None
        for text, value, build in self._settings():
            for sign in (1, -1):
                if number.overlaps(sign * value):
                    return Factor(f"{'-' if sign < 0 else ''}{text}", _signed(sign, build))
        fraction = _fraction(number)
        if fraction is None:
            return None
        return Factor(str(fraction), lambda graph, kind: _node(graph, fraction, kind))

    def _settings(self) -> Iterator[tuple[str, arb, Build]]:
        """Products of hyper-parameters and what is missing of them to 1."""
        parts: list[tuple[str, arb, Build]] = []
        for name, value in self.numbers.items():
            parts.append((name, value, self._symbol(name, False)))
            parts.append((f"(1 - {name})", 1 - value, self._symbol(name, True)))
        for text, value, build in parts:
            yield text, value, build
            yield f"1 / {text}", 1 / value, _combined("div", lambda g, k: g.const(1, k), build)
        for (a, x, f), (b, y, g) in itertools.permutations(parts, 2):
            yield f"{a} * {b}", x * y, _combined("mul", f, g)
            yield f"{a} / {b}", x / y, _combined("div", f, g)

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


def _node(graph: Graph, fraction: fmpq, kind: DType) -> Node:
    top, bottom = graph.const(int(fraction.p), kind), graph.const(int(fraction.q), kind)
    return graph.apply("div", (top, bottom), (), (), kind)


def _signed(sign: int, build: Build) -> Build:
    if sign > 0:
        return build
    return lambda graph, kind: graph.apply("neg", (build(graph, kind),), (), (), kind)


def _combined(op: str, first: Build, second: Build) -> Build:
    return lambda graph, kind: graph.apply(
        op, (first(graph, kind), second(graph, kind)), (), (), kind
    )


def _summed(slot: Slot, sources: Sequence[Slot], factors: Sequence[Factor]) -> Derived:
    def build(graph: Graph, nodes: Sequence[Node]) -> Node:
        terms = [
            graph.apply("mul", (node, factor.node(graph, node.dtype)), (), node.shape, node.dtype)
            for node, factor in zip(nodes, factors, strict=True)
        ]
        result = terms[0]
        for term in terms[1:]:
            result = graph.apply("add", (result, term), (), term.shape, term.dtype)
        return result

    texts = [f"{factor.text} * {{{index}}}" for index, factor in enumerate(factors)]
    return Derived(slot, tuple(sources), " + ".join(texts), build)


def _scaled(slot: Slot, other: Slot, factor: Factor, count: Slot | None = None) -> Derived:
    def build(graph: Graph, nodes: Sequence[Node]) -> Node:
        node = nodes[0]
        if factor.text == "-1":
            result = graph.apply("neg", (node,), (), node.shape, node.dtype)
        else:
            constant = factor.node(graph, node.dtype)
            result = graph.apply("mul", (node, constant), (), node.shape, node.dtype)
        if len(nodes) == 1:
            return result
        count = graph.apply("convert_element_type", (nodes[1],), (), (), node.dtype)
        return graph.apply("mul", (result, count), (), node.shape, node.dtype)

    text = {"1": "{0}", "-1": "-{0}"}.get(factor.text, f"{factor.text} * {{0}}")
    if count is None:
        return Derived(slot, (other,), text, build)
    return Derived(slot, (other, count), f"{text} * {{1}}", build)
