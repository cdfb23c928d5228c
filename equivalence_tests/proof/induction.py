"""The proof by induction: related at the start, and from related states to related states.

Where no relation is given it is found: all leaves that both sides hold and that are equal at the
start are taken for equal; a step from such states shows which of them do not stay so; these are
parted, and so on until all that are left stay equal. It is the largest relation of equal leaves.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax import numpy as jnp

from equivalence_tests.proof import programs
from equivalence_tests.proof.comparing import Comparer, Equality, Level, groups
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.fitted import Derived, Place
from equivalence_tests.proof.graph import Graph, Node, cone
from equivalence_tests.proof.signs import is_never_negative, never_negative
from equivalence_tests.proof.traced_sides import Inputs, Program

_MOST_STATES = 24


@dataclass(frozen=True)
class Obligation:
    """One thing to prove: that two leaves are equal.

    Attributes:
      when: `start` or `step`.
      leaf: which leaf, e.g. `params['kernel']`.
      equality: what is known of it.
      nodes: both sides.
      params: whether it is a parameter, not a part of the state.
      places: number of the result in the left and the right program; None for what a relation
        makes of other results.
      where: side, number and value of held counters for which it is to prove; empty for all.
    """

    when: str
    leaf: str
    equality: Equality
    nodes: tuple[Node, Node]
    params: bool
    places: tuple[int | None, int | None] = (0, 0)
    where: tuple[tuple[int, int, Any], ...] = ()


@dataclass(frozen=True)
class Induction:
    """What came of a try.

    Attributes:
      obligations: everything that was to prove.
      relation: which leaves of the states are related, as text.
      given: whether the relation was given.
      states: general states of both sides, as related.
    """

    obligations: tuple[Obligation, ...]
    relation: tuple[str, ...]
    given: bool
    states: tuple[tuple[Node, ...], tuple[Node, ...]]

    @property
    def classes(self) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
        """For each held leaf of both sides the name of its symbol.

        None for a constant, and for what a given relation makes.
        """
        left, right = (tuple(map(_symbol, nodes)) for nodes in self.states)
        return left, (None,) * len(right) if self.given else right

    @property
    def level(self) -> Level:
        """That of the weakest obligation."""
        return max((o.equality.level for o in self.obligations), default=Level.IDENTICAL)


class World:
    """A graph with the inputs that both sides get."""

    def __init__(self, given: Inputs):
        """Makes the inputs."""
        self.given, self.graph = given, Graph()
        self.comparer = Comparer(self.graph)
        number = jnp.result_type(float)
        self.hyper = [self.graph.leaf(name, (), number) for name in sorted(given.numbers)]
        pairs = list(zip(given.paths, given.shapes, strict=True))
        self.params = [self.graph.leaf(path, leaf.shape, leaf.dtype) for path, leaf in pairs]
        self.grads = [
            self.graph.leaf(path.replace("params", "grads", 1), leaf.shape, leaf.dtype)
            for path, leaf in pairs
        ]

    def start(self, side: Program) -> tuple[list[Node], list[Node]]:
        """What a side holds at first, and its parameters."""
        results = self._run(side, side.start, [*self.hyper, *self.params])
        return results[: len(side.paths)], results[len(side.paths) :]

    def step(self, side: Program, held: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """What a side holds after a step, and its parameters."""
        results = self._run(side, side.step, [*self.hyper, *held, *self.grads])
        return results[: len(side.paths)], results[len(side.paths) :]

    def _run(self, side: Program, jaxpr: Any, args: list[Node]) -> list[Node]:
        try:
            return programs.run(self.graph, jaxpr, args)
        except ProofError as error:
            raise ProofError(f"{side.name} side ({side.kind}): {error}") from None

    def names(self, side: Program) -> list[str]:
        """A name for each leaf that a side holds; of what starts as a parameter, that one's."""
        start, _ = self.start(side)
        paths = {node.id: path for node, path in zip(self.params, self.given.paths, strict=True)}
        found: dict[str, None] = {}
        for path, node in zip(side.paths, start, strict=True):
            name = paths.get(node.id) or "state" + re.sub(r"^\[\d+\]", "", path)
            while name in found:
                name = f"state{path}" if f"state{path}" not in found else f"{name}'"
            found[name] = None
        return list(found)

    def symbols(self, side: Program) -> list[Node]:
        """General states of a side."""
        pairs = zip(self.names(side), side.avals, strict=True)
        return [self.graph.leaf(name, aval.shape, aval.dtype) for name, aval in pairs]

    def obligations(
        self, when: str, names: Sequence[str], left: Any, right: Any, params: bool, level: Level
    ) -> list[Obligation]:
        """Each pair of leaves, compared, the smallest programs first.

        What is computed of parts that are known to be equal is then computed alike.
        """
        for a, b in sorted(zip(left, right, strict=True), key=_size):
            self.comparer.compare(a, b, level)
        return [
            Obligation(when, name, self.comparer.compare(a, b, level), (a, b), params, (i, i))
            for i, (name, a, b) in enumerate(zip(names, left, right, strict=True))
        ]


def _size(pair: tuple[Node, Node]) -> int:
    """The number of operations that a pair of nodes is computed with."""
    return len(cone(*pair))


def by_given_relation(
    world: World, left: Program, right: Program, relation: Any, level: Level
) -> Induction:
    """Induction with a relation: a program from what the left side holds to the right one's."""
    names = [f"state{path}" for path in right.paths]
    found = []

    def related(held: list[Node]) -> list[Node]:
        return programs.run(world.graph, relation, [*world.hyper, *held])

    held, params = world.start(left)
    other, other_params = world.start(right)
    found += world.obligations("start", world.given.paths, params, other_params, True, level)
    found += world.obligations("start", names, related(held), other, False, level)
    # What never changes is no symbol.
    constants = _constants(world, left, held)
    pairs = zip(world.symbols(left), constants, strict=True)
    general = [symbol if constant is None else constant for symbol, constant in pairs]
    natural = never_negative(
        world.graph,
        [
            symbol if start.op != "leaf" and is_never_negative(world.graph, start, ()) else None
            for symbol, start in zip(general, held, strict=True)
        ],
        world.step(left, general)[0],
    )
    world.graph.never_negative |= {
        str(general[place].params) for place in natural if general[place].op == "leaf"
    }
    states = (tuple(general), tuple(related(general)))
    held, params = world.step(left, general)
    other, other_params = world.step(right, states[1])
    state = world.obligations("step", names, related(held), other, False, level)
    found += world.obligations("step", world.given.paths, params, other_params, True, level)
    return Induction((*found, *state), ("as given",), True, states)


@dataclass(frozen=True)
class Hints:
    """What else a relation may say than that leaves are equal.

    Attributes:
      derived: leaves that are functions of others.
      by_state: whether counters that go round are followed state by state.
    """

    derived: tuple[Derived, ...] = ()
    by_state: bool = False


def by_found_relation(
    world: World, left: Program, right: Program, level: Level, hints: Hints = Hints()
) -> Induction:
    """Induction with the largest relation of equal leaves, equal at a level at most."""
    search = _Found(world, (left, right), level, hints)
    while search.refined():
        pass
    return search.result()


class _Found:
    """The search for the largest relation."""

    def __init__(self, world: World, sides: tuple[Program, Program], level: Level, hints: Hints):
        self.world, self.sides, self.level, self.hints = world, sides, level, hints
        self.starts = [world.start(side) for side in sides]
        held = [start[0] for start in self.starts]
        self.constants = [
            _constants(world, side, start) for side, start in zip(sides, held, strict=True)
        ]
        self.derived = {each.place: each for each in hints.derived}
        self.cycle: list[dict[Place, Node]] = [{}]
        if hints.by_state:
            self.cycle = _cycle(world, sides, held, self.constants)
        self.leaves = [
            (side, place)
            for side in (0, 1)
            for place, constant in enumerate(self.constants[side])
            if constant is None
            and (side, place) not in self.derived
            and (side, place) not in self.cycle[0]
        ]
        first = [held[side][place] for side, place in self.leaves]
        self.parts = list(groups(first, world.comparer, level))
        self.names = [world.names(side) for side in sides]
        # Whatever is related to what, a symbol stands for one leaf and those related to it: what is
        # known of the symbol, that it is never negative, say, is known of that leaf.
        self.symbols = [
            self.names[0],
            [f"{n} on the right" if n in self.names[0] else n for n in self.names[1]],
        ]
        self.states: list[tuple[list[Node], list[Node]]] = []
        self.steps: list[list[tuple[list[Node], list[Node]]]] = []
        self.natural = self._never_negative(held)
        self.at_first = self._at_first(held) if len(self.cycle) > 1 else {}

    def _at_first(self, starts: list[list[Node]]) -> dict[Place, Node]:
        """What is a constant whenever counters that go round are at their first state."""
        last, found = self.cycle[-1], {}
        for number, side in enumerate(self.sides):
            symbols = self.world.symbols(side)
            held = [
                last.get((number, place), symbol if known is None else known)
                for place, (symbol, known) in enumerate(
                    zip(symbols, self.constants[number], strict=True)
                )
            ]
            after, _ = self.world.step(side, held)
            for place, (first, new) in enumerate(zip(starts[number], after, strict=True)):
                if first is new and (first.op == "const" or _is_constant(first)):
                    found[number, place] = first
        return found

    def _never_negative(self, starts: list[list[Node]]) -> frozenset[Place]:
        """What stays 0 or more."""
        graph, found = self.world.graph, set[Place]()
        for number, side in enumerate(self.sides):
            symbols = [
                symbol if constant is None else constant
                for symbol, constant in zip(
                    self.world.symbols(side), self.constants[number], strict=True
                )
            ]
            after, _ = self.world.step(side, symbols)
            candidates = [
                symbol if node.op != "leaf" and is_never_negative(graph, node, ()) else None
                for symbol, node in zip(symbols, starts[number], strict=True)
            ]
            found |= {(number, place) for place in never_negative(graph, candidates, after)}
        return frozenset(found)

    def refined(self) -> bool:
        """Follows a step from related states; whether fewer leaves are related after it."""
        self.states = [self._assigned(state) for state in self.cycle]
        self.steps = [
            [self.world.step(side, each) for side, each in zip(self.sides, held, strict=True)]
            for held in self.states
        ]
        comparer, level = self.world.comparer, self.level
        parts = self.parts
        for steps in self.steps:
            new: list[list[int]] = []
            for part in parts:
                nodes = [steps[side][0][place] for side, place in (self.leaves[i] for i in part)]
                new += [[part[i] for i in each] for each in groups(nodes, comparer, level)]
            parts = new
            shown = zip(steps[0][1], steps[1][1], strict=True)
            if any(comparer.compare(a, b, level).level > level for a, b in shown):
                return False  # with fewer leaves related, parameters would part all the more
        changed = len(parts) != len(self.parts)
        self.parts = parts if changed else self.parts
        return changed

    def _assigned(self, state: Mapping[Place, Node]) -> tuple[list[Node], list[Node]]:
        """General states in which related leaves are one symbol."""
        graph = self.world.graph
        held: Any = [list(each) for each in self.constants]
        for (side, place), node in state.items():
            held[side][place] = node
        for part in self.parts:
            side, place = self.leaves[part[0]]
            aval, name = self.sides[side].avals[place], self.symbols[side][place]
            if (side, place) in self.natural:
                graph.never_negative.add(name)
            symbol = graph.leaf(name, aval.shape, aval.dtype)
            for side, place in (self.leaves[i] for i in part):
                dtype = self.sides[side].avals[place].dtype
                node = symbol
                if dtype != symbol.dtype:
                    node = graph.apply("convert_element_type", (symbol,), (), symbol.shape, dtype)
                held[side][place] = node
        for (side, place), node in self.at_first.items() if state is self.cycle[0] else ():
            held[side][place] = node
        for (side, place), each in self.derived.items():
            held[side][place] = each.build(graph, [held[s][p] for s, p in each.sources])
        return held[0], held[1]

    def result(self) -> Induction:
        """The obligations of the relation."""
        world, level = self.world, self.level
        first, last = self.starts
        found = world.obligations("start", world.given.paths, first[1], last[1], True, level)
        for steps, state in zip(self.steps, self.cycle, strict=True):
            left, right = steps[0][1], steps[1][1]
            own = world.obligations("step", world.given.paths, left, right, True, level)
            found += [replace(each, where=self._where(state)) for each in own]
        relation = []
        for name, a, b in self._equal_leaves():
            relation.append(name)
            found += self._kept(name, (a, b), lambda held, a=a, b=b: (held[0][a], held[1][b]))
        for place, each in self.derived.items():
            told = each.text.format(*(self.names[s][p] for s, p in each.sources))
            name = f"{self.names[place[0]][place[1]]} = {told}"
            relation.append(name)
            places = (place[1], None) if place[0] == 0 else (None, place[1])
            found += self._kept(name, places, lambda held, e=each: self._both(held, e))
        if len(self.cycle) > 1:
            names = [self.names[side][place] for side, place in self.cycle[0]]
            relation.append(f"{', '.join(names)}: {len(self.cycle)} states, one after the other")
        states = self.states[0]
        return Induction(tuple(found), tuple(relation), False, (tuple(states[0]), tuple(states[1])))

    def _both(self, held: Any, each: Derived) -> tuple[Node, Node]:
        """What a leaf is to be, and what it is; the left side's first."""
        wanted = each.build(self.world.graph, [held[s][p] for s, p in each.sources])
        side, place = each.place
        own = held[side][place]
        return (wanted, own) if side == 1 else (own, wanted)

    def _kept(
        self, name: str, places: tuple[int | None, int | None], pair: Any
    ) -> list[Obligation]:
        """That something is so at the start and after every step."""
        rows: list[tuple[str, Any, Mapping[Place, Node]]]
        rows = [("start", [start[0] for start in self.starts], {})]
        for steps, state in zip(self.steps, self.cycle, strict=True):
            rows.append(("step", [step[0] for step in steps], state))
        found = []
        for when, held, state in rows:
            nodes, where = pair(held), self._where(state)
            equality = self.world.comparer.compare(nodes[0], nodes[1], self.level)
            found.append(Obligation(when, name, equality, nodes, False, places, where))
        return found

    def _equal_leaves(self) -> Iterator[tuple[str, int, int]]:
        for part in self.parts:
            own = [place for side, place in (self.leaves[i] for i in part) if side == 0]
            others = [place for side, place in (self.leaves[i] for i in part) if side == 1]
            if own and others:
                for a, b in _pairs(own, others):
                    yield f"{self.names[0][a]} = {self.names[1][b]}", a, b

    def _where(self, state: Mapping[Place, Node]) -> tuple[tuple[int, int, Any], ...]:
        scalar = self.world.graph.scalar
        return tuple((side, place, scalar(node)) for (side, place), node in state.items())


def _cycle(world: World, sides: Any, starts: Any, constants: Any) -> list[dict[Place, Node]]:
    """The states of counters that go round, one after the other; one without any if none do."""
    graph = world.graph
    counters = {
        (side, place): starts[side][place]
        for side in (0, 1)
        for place, constant in enumerate(constants[side])
        if constant is None
        and starts[side][place].op == "const"
        and jnp.issubdtype(starts[side][place].dtype, jnp.integer)
    }
    symbols = [world.symbols(side) for side in sides]

    def after(state: dict[Place, Node]) -> dict[Place, Node]:
        held = [
            [
                state.get((side, place), symbols[side][place] if known is None else known)
                for place, known in enumerate(constants[side])
            ]
            for side in (0, 1)
        ]
        new = [world.step(each, own)[0] for each, own in zip(sides, held, strict=True)]
        return {(side, place): new[side][place] for side, place in state}

    round_only = dict(counters)
    while round_only:
        seen, state = [round_only], after(round_only)
        while state != round_only and len(seen) < _MOST_STATES:
            if any(graph.scalar(node) is None for node in state.values()):
                break
            seen.append(state)
            state = after(state)
        if state == round_only:
            return seen
        # Those that come back to where they began go round, perhaps without the others.
        back = [
            at
            for at in round_only
            if graph.scalar(state[at]) is not None
            and any(row[at] is round_only[at] for row in seen[len(seen) // 2 :])
        ]
        if len(back) == len(round_only):
            break
        round_only = {at: round_only[at] for at in back}
    return [{}]


def _symbol(node: Node) -> str | None:
    """The name of a held leaf's symbol; None for a constant."""
    if node.op == "convert_element_type":
        node = node.args[0]
    return str(node.params) if node.op == "leaf" else None


def _pairs(left: list[int], right: list[int]) -> list[tuple[int, int]]:
    """Each of both sides once at least."""
    longest = max(len(left), len(right))
    return [(left[min(i, len(left) - 1)], right[min(i, len(right) - 1)]) for i in range(longest)]


def _constants(world: World, side: Program, start: list[Node]) -> list[Node | None]:
    """What a side holds and never changes: the constant for each leaf, else None."""
    known: list[Node | None] = [
        node if node.op == "const" or _is_constant(node) else None for node in start
    ]
    symbols = world.symbols(side)
    while True:
        held = [symbol if n is None else n for symbol, n in zip(symbols, known, strict=True)]
        new, _ = world.step(side, held)
        kept = [n if n is after else None for n, after in zip(known, new, strict=True)]
        if kept == known:
            return known
        known = kept


def _is_constant(node: Node) -> bool:
    return node.op == "splat" and node.args[0].op == "const"
