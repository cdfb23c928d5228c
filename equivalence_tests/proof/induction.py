"""The proof by induction: related at the start, and from related states to related states.

Where no relation is given it is found: all leaves that both sides hold and that are equal at the
start are taken for equal; a step from such states shows which of them do not stay so; these are
parted, and so on until all that are left stay equal. It is the largest relation of equal leaves.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax import numpy as jnp

from equivalence_tests.proof import programs
from equivalence_tests.proof.comparing import Comparer, Equality, Level, groups
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.graph import Graph, Node, cone
from equivalence_tests.proof.traced_sides import Inputs, Program


@dataclass(frozen=True)
class Obligation:
    """One thing to prove: that two leaves are equal.

    Attributes:
      when: `start` or `step`.
      leaf: which leaf, e.g. `params['kernel']`.
      equality: what is known of it.
      nodes: both sides.
      params: whether it is a parameter, not a part of the state.
      places: number of the result in the left and the right program.
    """

    when: str
    leaf: str
    equality: Equality
    nodes: tuple[Node, Node]
    params: bool
    places: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Induction:
    """What came of a try.

    Attributes:
      obligations: everything that was to prove.
      relation: which leaves of the states are related, as text.
      given: whether the relation was given.
      classes: for each held leaf of both sides the name of its symbol; None for a constant, and
        for what a given relation makes.
    """

    obligations: tuple[Obligation, ...]
    relation: tuple[str, ...]
    given: bool
    classes: tuple[tuple[str | None, ...], tuple[str | None, ...]]

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
    held, params = world.step(left, general)
    other, other_params = world.step(right, related(general))
    state = world.obligations("step", names, related(held), other, False, level)
    found += world.obligations("step", world.given.paths, params, other_params, True, level)
    classes = (tuple(map(_symbol, general)), (None,) * len(right.paths))
    return Induction((*found, *state), ("as given",), True, classes)


def by_found_relation(world: World, left: Program, right: Program, level: Level) -> Induction:
    """Induction with the largest relation of equal leaves, equal at a level at most."""
    sides = (left, right)
    starts = [world.start(side) for side in sides]
    constants = [
        _constants(world, side, start[0]) for side, start in zip(sides, starts, strict=True)
    ]
    leaves = [
        (side, place)
        for side in (0, 1)
        for place, constant in enumerate(constants[side])
        if constant is None
    ]
    first = [starts[side][0][place] for side, place in leaves]
    parts = list(groups(first, world.comparer, level))
    while True:
        held = _assigned(world, sides, constants, leaves, parts)
        steps = [world.step(side, each) for side, each in zip(sides, held, strict=True)]
        new: list[list[int]] = []
        for part in parts:
            nodes = [steps[side][0][place] for side, place in (leaves[i] for i in part)]
            new += [[part[i] for i in each] for each in groups(nodes, world.comparer, level)]
        shown = zip(steps[0][1], steps[1][1], strict=True)
        same = all(world.comparer.compare(a, b, level).level <= level for a, b in shown)
        if len(new) == len(parts) or not same:
            break  # with fewer leaves related, parameters would part all the more
        parts = new
    found = world.obligations("start", world.given.paths, starts[0][1], starts[1][1], True, level)
    found += world.obligations("step", world.given.paths, steps[0][1], steps[1][1], True, level)
    relation, names = [], [world.names(side) for side in sides]
    for part in parts:
        own = [place for side, place in (leaves[i] for i in part) if side == 0]
        others = [place for side, place in (leaves[i] for i in part) if side == 1]
        if not own or not others:
            continue
        for a, b in _pairs(own, others):
            name = f"{names[0][a]} = {names[1][b]}"
            relation.append(name)
            for when, held_by in (("start", starts), ("step", steps)):
                nodes = (held_by[0][0][a], held_by[1][0][b])
                equality = world.comparer.compare(*nodes, level)
                found.append(Obligation(when, name, equality, nodes, False, (a, b)))
    ours, theirs = (tuple(map(_symbol, each)) for each in held)
    return Induction(tuple(found), tuple(relation), False, (ours, theirs))


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


def _assigned(
    world: World, sides: Any, constants: Any, leaves: Any, parts: list[list[int]]
) -> list[list[Node]]:
    """General states in which related leaves are one symbol."""
    held = [list(each) for each in constants]
    names, used = [world.names(side) for side in sides], set[str]()
    for part in parts:
        side, place = leaves[part[0]]
        aval, name = sides[side].avals[place], names[side][place]
        if name in used:
            name = f"{name} on the right"
        used.add(name)
        symbol = world.graph.leaf(name, aval.shape, aval.dtype)
        for side, place in (leaves[i] for i in part):
            dtype = sides[side].avals[place].dtype
            node = symbol
            if dtype != symbol.dtype:
                node = world.graph.apply("convert_element_type", (symbol,), (), symbol.shape, dtype)
            held[side][place] = node
    return held
