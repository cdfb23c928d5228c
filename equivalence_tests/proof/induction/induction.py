# pyright: strict
"""The proof by induction: related at the start, and from related states to related states.

Where no relation is given it is looked for: all leaves of both states that are equal at the start
are taken for equal; a step from such states shows which of them do not stay so; these are parted,
and so on until all that are left stay equal. It is the largest relation of equal leaves. Leaves
that are functions of others, as a given relation or a guess says it, are no part of it.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp

from equivalence_tests.proof.bits.graph import Node, cone
from equivalence_tests.proof.bits.signs import is_never_negative
from equivalence_tests.proof.dtypes import NO_OVERFLOW, is_float, is_integer, is_wide
from equivalence_tests.proof.induction.derived import Derived
from equivalence_tests.proof.induction.equality import Equality, Level, groups
from equivalence_tests.proof.induction.invariants import (
    at_least,
    cycle,
    never_negative,
)
from equivalence_tests.proof.induction.world import (
    Leaves,
    Obligation,
    Slot,
    Step,
    World,
    constants,
    is_constant,
)
from equivalence_tests.proof.reading.programs import AnyJaxpr
from equivalence_tests.proof.reading.sides import Program

_FIRST = "first step"
Moment = tuple[str, Sequence[Step]]  # when, and both sides' results


@dataclass(frozen=True)
class Induction:
    """The result of one attempt at a proof."""

    world: World
    obligations: tuple[Obligation, ...]
    relation: tuple[str, ...]
    assumptions: tuple[str, ...] = ()
    most_steps: int | None = None

    @property
    def level(self) -> Level:
        """That of the weakest obligation."""
        return max((o.equality.level for o in self.obligations), default=Level.IDENTICAL)


@dataclass(frozen=True)
class Hints:
    """The kinds of relations to try, apart from equality of leaves."""

    derived: tuple[Derived, ...] = ()
    is_given: bool = False
    by_state: bool = False
    after_first: bool = False


def given_relation(relation: AnyJaxpr, sides: tuple[Program, Program]) -> Hints:
    """A relation that is a program from the left side's state to the right one's."""
    left, right = sides
    sources = tuple((0, leaf) for leaf in range(len(left.paths)))
    leaves = range(len(right.paths))
    derived = [Derived((1, leaf), sources, "as given", relation, leaf) for leaf in leaves]
    return Hints(tuple(derived), is_given=True)


def prove(
    world: World, sides: tuple[Program, Program], level: Level, hints: Hints = Hints()
) -> Induction:
    """Induction with the largest relation of leaves that are equal, at a level at most."""
    search = _Search(world, sides, level, hints)
    while search.refine():
        pass
    return search.result()


def may_help(world: World, sides: tuple[Program, Program], hints: Hints) -> bool:
    """True if there is anything of the kind that hints are about."""
    first = [world.start(side)[0] for side in sides]
    if hints.after_first:
        grads = world.other_grads()
        after = [world.step(*pair, grads)[0] for pair in zip(sides, first, strict=True)]
        counts = [node for state in after for node in state if is_wide(node.dtype)]
        return any((world.graph.scalar(node) or 0) > 0 for node in counts)
    constant_leaves = [constants(world, *pair) for pair in zip(sides, first, strict=True)]
    return bool(hints.derived) or len(cycle(world, sides, first, constant_leaves)) > 1


def _standstill(world: World, before: Node, after: Node) -> tuple[float, float] | None:
    """Returns what a count in a floating-point dtype grows by, and where it stands still."""
    if not is_float(after.dtype) or after.op != "add" or before not in after.args:
        return None
    numbers = [world.graph.scalar(arg) for arg in after.args if arg is not before]
    number = numbers[0] if numbers else None
    if number is None or number == 0:
        return None
    return number, 2 * abs(number) / float(jnp.finfo(after.dtype).eps)  # type: ignore[arg-type]


class _Search:
    """The search for the largest relation."""

    def __init__(self, world: World, sides: tuple[Program, Program], level: Level, hints: Hints):
        self.world, self.sides, self.level, self.hints = world, sides, level, hints
        self.starts = [world.start(side) for side in sides]
        self.before_first = self.starts if hints.after_first else []
        if hints.after_first:
            moves, states = world.other_grads(), [state for state, _ in self.starts]
            pairs = zip(sides, states, strict=True)
            self.starts = [world.step(side, state, moves) for side, state in pairs]
        first = [start[0] for start in self.starts]
        pairs = list(zip(sides, first, strict=True))
        self.constants = [constants(world, side, start) for side, start in pairs]
        self.general = [
            [s if n is None else n for s, n in zip(world.symbols(side), numbers, strict=True)]
            for side, numbers in zip(sides, self.constants, strict=True)
        ]
        self.derived = {each.slot: each for each in hints.derived}
        self.cycle: list[dict[Slot, Node]] = [{}]
        if hints.by_state:
            self.cycle = cycle(world, sides, first, self.constants)
        self.slots = [
            (side, leaf)
            for side in (0, 1)
            for leaf, constant in enumerate(self.constants[side])
            if constant is None
            and (side, leaf) not in self.derived
            and (side, leaf) not in self.cycle[0]
        ]
        nodes = [first[side][leaf] for side, leaf in self.slots]
        alone = [[number] for number in range(len(nodes))]
        self.classes = alone if hints.is_given else list(groups(nodes, world.comparer, level))
        self.names = [world.names(side) for side in sides]
        # In every relation a symbol is one leaf and those related to it: a fact about the symbol
        # (it is never negative) is a fact about that leaf.
        self.symbols = [
            self.names[0],
            [f"{n} on the right" if n in self.names[0] else n for n in self.names[1]],
        ]
        self.states: list[tuple[Leaves, Leaves]] = []
        self.steps: list[list[Step]] = []
        self.natural = {
            (number, leaf)
            for number, start in enumerate(first)
            for leaf in self._natural(number, start)
        }
        self.at_first = self._at_first(first) if len(self.cycle) > 1 else {}
        self.least = self._least(first) if hints.after_first else {}

    def _natural(self, side: int, start: Leaves) -> set[int]:
        """The leaves of a state that stay 0 or more."""
        graph, general = self.world.graph, self.general[side]
        candidates = [
            symbol if node.op != "leaf" and is_never_negative(graph, node, ()) else None
            for symbol, node in zip(general, start, strict=True)
        ]
        return never_negative(graph, candidates, self.world.step(self.sides[side], general)[0])

    def _least(self, starts: list[Leaves]) -> dict[Slot, int]:
        """Returns lower bounds of counts from the first step on, of those that have one."""
        graph, result = self.world.graph, dict[Slot, int]()
        for number, side in enumerate(self.sides):
            before = self.general[number]
            after, _ = self.world.step(side, before)
            for leaf, (first, old, new) in enumerate(
                zip(starts[number], before, after, strict=True)
            ):
                least = graph.scalar(first) if is_integer(first.dtype) else None
                if least is None or old.op != "leaf" or not is_wide(first.dtype):
                    continue
                if least > 0 and at_least(graph, new, old, int(least)):
                    result[number, leaf] = int(least)
        return result

    def _at_first(self, starts: list[Leaves]) -> dict[Slot, Node]:
        """Returns the leaves that are constant where cyclic counters are in their first state."""
        last, result = self.cycle[-1], dict[Slot, Node]()
        for number, side in enumerate(self.sides):
            before = [last.get((number, leaf), n) for leaf, n in enumerate(self.general[number])]
            after, _ = self.world.step(side, before)
            for leaf, (first, new) in enumerate(zip(starts[number], after, strict=True)):
                if first is new and is_constant(first):
                    result[number, leaf] = first
        return result

    def refine(self) -> bool:
        """Follows a step from related states; whether fewer leaves are related after it."""
        self.states = [self._general_states(counters) for counters in self.cycle]
        self.steps = [
            [self.world.step(side, each) for side, each in zip(self.sides, state, strict=True)]
            for state in self.states
        ]
        classes = self.classes
        for steps in self.steps:
            finer: list[list[int]] = []
            for members in classes:
                slots = [self.slots[i] for i in members]
                nodes = [steps[side][0][leaf] for side, leaf in slots]
                places = groups(nodes, self.world.comparer, self.level)
                finer += [[members[i] for i in each] for each in places]
            classes = finer
            if not self._keeps(steps):
                return False  # with fewer leaves related, these would part all the more
        changed = len(classes) != len(self.classes)
        self.classes = classes if changed else self.classes
        return changed

    def _keeps(self, steps: Sequence[Step]) -> bool:
        """True if parameters are equal after a step, and functions of leaves are so again."""
        comparer = self.world.comparer
        (lhs, _), (rhs, _) = steps
        derived = [self._both(each, lhs, rhs) for each in self.derived.values()]
        params = zip(*(params for _, params in steps), strict=True)
        for pairs in (derived, params):
            for a, b in sorted(pairs, key=lambda pair: len(cone(*pair))):
                if comparer.compare(a, b, self.level).level > self.level:
                    comparer.patient = False
                    return False
        return True

    def _representative_rank(self, slot: Slot) -> tuple[bool, bool]:
        """Returns a rank of leaves by how little is known of them: naturals and counts first."""
        side, leaf = slot
        return slot not in self.natural, not is_integer(self.sides[side].avals[leaf].dtype)

    def _general_states(self, counters: Mapping[Slot, Node]) -> tuple[Leaves, Leaves]:
        """General states in which related leaves are one symbol."""
        graph, assigned = self.world.graph, dict(counters)
        for members in self.classes:
            slots = [self.slots[i] for i in members]
            side, leaf = min(slots, key=self._representative_rank)
            aval, name = self.sides[side].avals[leaf], self.symbols[side][leaf]
            if (side, leaf) in self.natural:
                graph.never_negative.add(name)
            symbol = graph.leaf(name, aval.shape, aval.dtype)
            if (least := self.least.get((side, leaf))) is not None:
                above = graph.leaf(_above(name, least), aval.shape, aval.dtype)
                graph.never_negative.add(str(above.params))
                more = graph.const(least, aval.dtype)
                symbol = graph.apply("add", (above, more), (), aval.shape, aval.dtype)
            for side, leaf in slots:
                dtype = self.sides[side].avals[leaf].dtype
                node = symbol
                if dtype != symbol.dtype:
                    node = graph.apply("convert_element_type", (symbol,), (), symbol.shape, dtype)
                assigned[side, leaf] = node
        if counters is self.cycle[0]:
            assigned |= self.at_first
        lhs, rhs = (
            [assigned.get((side, leaf), node) for leaf, node in enumerate(self.general[side])]
            for side in (0, 1)
        )
        states = lhs, rhs
        for (side, leaf), each in self.derived.items():
            states[side][leaf] = each.node(self.world, states)
        return states

    def result(self) -> Induction:
        """The obligations of the relation."""
        moments: list[Moment] = [(_FIRST if self.before_first else "start", self.starts)]
        moments += [("step", steps) for steps in self.steps]
        unrelated: list[Moment] = [("start", self.before_first)] if self.before_first else []
        rows = [row for moment in (*moments, *unrelated) for row in self._of_params(moment)]
        relation: list[str] = ["from the first step on:"] * bool(self.before_first)
        for name, pair in self._relation():
            relation.append(name)
            for moment in moments:
                rows.append(self._row(moment, name, pair(*(state for state, _ in moment[1]))))
        if len(self.cycle) > 1:
            names = [self.names[side][leaf] for side, leaf in self.cycle[0]]
            relation.append(f"{', '.join(names)}: {len(self.cycle)} states, one after the other")
        by_bits = all(row.equality.level is Level.IDENTICAL for row in rows)
        counts = [] if by_bits else list(self._float_counts())
        rows += [item for item in counts if isinstance(item, Obligation)]
        assumed = [item for item in counts if isinstance(item, str)]
        assumed += [NO_OVERFLOW] * bool(self.least)
        return Induction(
            self.world,
            tuple(rows),
            ("as given",) if self.hints.is_given else tuple(relation),
            tuple(assumed),
            min((item for item in counts if isinstance(item, int)), default=None),
        )

    def _float_counts(self) -> Iterator[Obligation | int | str]:
        """For each count in a floating-point dtype how many steps it moves: 255 in bfloat16.

        One that never moves is open; one with a start that is not known is assumed to.
        """
        starts = [state for state, _ in self.before_first or self.starts]
        for side, start in zip(self.sides, starts, strict=True):
            before = self.world.symbols(side)
            after, _ = self.world.step(side, before)
            leaves = zip(self.world.names(side), start, before, after, strict=True)
            for name, first, old, new in leaves:
                if (count := _standstill(self.world, old, new)) is None:
                    continue
                begin, (step, most) = self.world.graph.scalar(first), count
                text = f"{name}, a count in {new.dtype}"
                if begin is None:
                    yield f"{text}, is below {most:.0f}, where it stands still"
                    continue
                steps = math.ceil((most - math.copysign(1, step) * begin) / abs(step)) - 1
                if abs(begin) < most and steps > 0:
                    yield steps
                    continue
                stopped = f"{text}, starts at {begin:.0f}, where it stands still"
                unknown = Equality(Level.UNKNOWN, stopped=stopped)
                yield Obligation("step", name, unknown, (old, new), False)

    def _of_params(self, moment: Moment) -> Iterator[Obligation]:
        """That the parameters are equal."""
        (_, ours), (_, theirs) = moment[1]
        columns = zip(self.world.inputs.paths, ours, theirs, strict=True)
        for path, *nodes in columns:
            yield replace(self._row(moment, path, (nodes[0], nodes[1])), params=True)

    def _row(self, moment: Moment, name: str, nodes: tuple[Node, Node]) -> Obligation:
        equality = self.world.comparer.compare(*nodes, self.level)
        return Obligation(moment[0], name, equality, nodes, False)

    def _relation(self) -> Iterator[tuple[str, Callable[[Leaves, Leaves], tuple[Node, Node]]]]:
        """Each related pair: its name, and how to get both leaves."""
        for members in self.classes:
            slots = [self.slots[i] for i in members]
            ours, theirs = ([leaf for number, leaf in slots if number == side] for side in (0, 1))
            for a, b in _pairs(ours, theirs) if ours and theirs else ():
                name = f"{self.names[0][a]} = {self.names[1][b]}"
                yield name, functools.partial(_at, a, b)
        for (side, leaf), each in self.derived.items():
            text = each.text.format(*(self.names[s][i] for s, i in each.sources))
            name = f"{self.names[side][leaf]}{', ' if self.hints.is_given else ' = '}{text}"
            yield name, functools.partial(self._both, each)

    def _both(self, derived: Derived, lhs: Leaves, rhs: Leaves) -> tuple[Node, Node]:
        """Returns the expected and the actual node of a leaf, the left side's first."""
        expected = derived.node(self.world, (lhs, rhs))
        side, leaf = derived.slot
        actual = (lhs, rhs)[side][leaf]
        return (expected, actual) if side == 1 else (actual, expected)


def _at(a: int, b: int, lhs: Leaves, rhs: Leaves) -> tuple[Node, Node]:
    return lhs[a], rhs[b]


def _above(name: str, least: int) -> str:
    """The name of a count's excess over its least value."""
    return f"({name} - {least})"


def _pairs(lhs: list[int], rhs: list[int]) -> list[tuple[int, int]]:
    """Each of both sides once at least."""
    longest = max(len(lhs), len(rhs))
    return [(lhs[min(i, len(lhs) - 1)], rhs[min(i, len(rhs) - 1)]) for i in range(longest)]
