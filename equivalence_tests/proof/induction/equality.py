"""The equality of two nodes of a graph: bit for bit, over the reals, or not known."""

import enum
import functools
import math
import re
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.algebra.algebra import Algebra, CapacityExceeded
from equivalence_tests.proof.algebra.atoms import format_quotient
from equivalence_tests.proof.algebra.cases import Cases
from equivalence_tests.proof.bits.graph import Graph, Node, cone
from equivalence_tests.proof.dtypes import DType
from equivalence_tests.proof.errors import Undecided
from equivalence_tests.proof.induction.random_values import Numeric
from equivalence_tests.proof.reals.indexing import indices
from equivalence_tests.proof.reals.reals import Reals

UNDEFINED_TOLD = "nothing is divided by 0, and nothing computed of infinity"
_MOST_ELEMENTS = 36
_CAPACITIES = (32, 96, 256)
# Terms that are handled: about half a second, some seconds, a few milliseconds.
_QUICK, _LONG, _SMALL = 30_000, 200_000, 4_000


class Level(enum.IntEnum):
    """Kinds of equality, from strong to weak."""

    IDENTICAL = 0
    REALS = 1
    UNKNOWN = 2


@dataclass
class Equality:
    """The result of a comparison of two values."""

    level: Level
    assumptions: list[str] = field(default_factory=list)
    general: bool = False
    forms: tuple[str, str] | None = None
    stopped: str = ""
    hard: bool = False


class Comparer:
    """Compares nodes of one graph, and remembers the results."""

    def __init__(self, graph: Graph):
        """Compares nodes of this graph."""
        self.graph = graph
        self.numeric, self.patient = Numeric(graph), True
        self._known: dict[tuple[int, int], Equality] = {}
        self._older: dict[int, Node] = {}  # node -> an older one that is equal over the reals
        self._assumed: dict[int, list[str]] = {}  # what each of these assumes

    def compare(self, lhs: Node, rhs: Node, weakest: Level = Level.REALS) -> Equality:
        """Compares two nodes, up to a level."""
        if lhs is rhs:
            return Equality(Level.IDENTICAL, general=lhs.general)
        if weakest is Level.IDENTICAL:
            return Equality(Level.UNKNOWN, stopped="they are not computed alike")
        key = (lhs.id, rhs.id)
        if key not in self._known:
            try:
                equality = self._in_turn(lhs, rhs)
            except RecursionError:  # parts that are equal may be computed of one another
                equality = Equality(Level.UNKNOWN, stopped="the program is too deep", hard=True)
            self._note(lhs, rhs, equality)
            self._known[key] = equality
        return self._known[key]

    def _in_turn(self, lhs: Node, rhs: Node) -> Equality:
        """Compares two nodes over the reals, the quickest way first."""
        equality = self._by_parts(lhs, rhs) or self._over_reals(lhs, rhs, _QUICK)
        if equality.level is Level.UNKNOWN and not self.patient:
            return equality
        if equality.level is Level.UNKNOWN and equality.hard:
            self._sweep(lhs, rhs)
            equality = self._by_parts(lhs, rhs, cut=True) or self._over_reals(lhs, rhs, _LONG)
        if equality.level is Level.UNKNOWN:
            return self._by_elements(lhs, rhs) or equality
        return equality

    def _by_elements(self, lhs: Node, rhs: Node) -> Equality | None:
        """Equal, element by element with sums written out; of small arrays, where that helps."""
        positional = not (lhs.general and rhs.general)
        if not positional or lhs.shape != rhs.shape or math.prod(lhs.shape) > _MOST_ELEMENTS:
            return None
        if not _is_real(lhs.dtype) or not _is_real(rhs.dtype):
            return None
        algebra = Algebra(_CAPACITIES[-1], _QUICK)
        reals = Reals(self.graph, algebra, in_full=True)
        try:
            for index in np.ndindex(*lhs.shape):
                if not Cases(algebra).equal(reals.entry(lhs, index), reals.entry(rhs, index)):
                    return None
        except (Undecided, RecursionError):
            return None
        if any(atom.kind == "special" for atom in algebra.atoms):
            algebra.assumptions[UNDEFINED_TOLD] = None
        return Equality(Level.REALS, list(algebra.assumptions))

    def _note(self, lhs: Node, rhs: Node, equality: Equality) -> None:
        if equality.level is Level.REALS:
            older, newer = sorted((lhs, rhs), key=lambda node: node.id)
            self._older[newer.id] = older
            self._assumed[newer.id] = equality.assumptions

    def _sweep(self, lhs: Node, rhs: Node) -> None:
        """Proves that parts of both are equal, from the smallest to the largest."""
        values = self.numeric.values_of(lhs, rhs)
        heads: dict[object, list[Node]] = {}
        rebuilt: dict[int, Node] = {}
        for node, value in values:
            here = self._with_merged(node, rebuilt)
            for head in heads.setdefault(value, []):
                other = self._with_merged(head, {})
                if other is here:
                    break
                equality = self._with_common(other, here)
                if equality.level is Level.UNKNOWN:
                    equality = self._over_reals(other, here, _SMALL)
                if equality.level is Level.REALS:
                    self._note(other, here, equality)
                    rebuilt = {}
                    break
            else:
                heads[value].append(node)

    def _with_common(self, lhs: Node, rhs: Node, *, arrays: bool = False) -> Equality:
        """Compared with what both have in common as inputs."""
        cones = [{node.id: node for node in cone(root)} for root in (lhs, rhs)]
        inputs = {id for id, node in cones[0].items() if node.op in ("const", "splat", "leaf")}
        common = {id for id in cones[0] if id in cones[1]} - inputs
        if arrays:
            common = {id for id in common if cones[0][id].shape}
            others = [node for root in cones for node in root.values() if node.id not in common]
            common &= {arg.id for node in others for arg in node.args}
            available = common | inputs
            common = {id for id in common if not {arg.id for arg in cones[0][id].args} <= available}
        return self._over_reals(lhs, rhs, _SMALL, common)

    def _by_parts(self, lhs: Node, rhs: Node, *, cut: bool = False) -> Equality | None:
        """Equal by the same operations on parts that are known to be equal."""
        if not self._older:
            return None
        rebuilt: dict[int, Node] = {}
        ours, theirs = self._with_merged(lhs, rebuilt), self._with_merged(rhs, rebuilt)
        assumed = [text for node in rebuilt for text in self._assumed.get(node, ())]
        if ours is not theirs and not cut:
            return None
        if ours is not theirs:
            equality = self._with_common(ours, theirs, arrays=True)
            if equality.level is Level.UNKNOWN:
                return None
            assumed += equality.assumptions
        return Equality(Level.REALS, list(dict.fromkeys(assumed)), lhs.general and rhs.general)

    def _with_merged(self, node: Node, rebuilt: dict[int, Node]) -> Node:
        """A node computed of the older ones of equal parts."""
        if node.id not in rebuilt:
            older = self._older.get(node.id)
            if older is not None:
                rebuilt[node.id] = self._with_merged(older, rebuilt)
            elif not node.args:
                rebuilt[node.id] = node
            else:
                args = [self._with_merged(arg, rebuilt) for arg in node.args]
                new = self.graph.rebuild(node, args)
                rebuilt[node.id] = new if new is node else self._with_merged(new, rebuilt)
        return rebuilt[node.id]

    def _over_reals(self, lhs: Node, rhs: Node, work: int, cut: Set[int] = frozenset()) -> Equality:
        if lhs.shape != rhs.shape:
            return Equality(Level.UNKNOWN, stopped=f"the shapes are {lhs.shape} and {rhs.shape}")
        for node in (lhs, rhs):
            if not _is_real(node.dtype):
                return Equality(Level.UNKNOWN, stopped=f"`{node.op}` gives {node.dtype}")
        stopped = ""
        for capacity in _CAPACITIES:
            try:
                make = functools.partial(Algebra, capacity, work)
                equality = self._in_algebra(lhs, rhs, algebra := make(), cut)
                if equality.level is Level.REALS and not cut:
                    equality = self._with_guards(lhs, rhs, algebra, make) or equality
                return equality
            except CapacityExceeded as error:
                stopped = str(error)
            except Undecided as error:
                return Equality(Level.UNKNOWN, stopped=str(error), hard=True)
            except RecursionError:
                return Equality(Level.UNKNOWN, stopped="the program is too deep", hard=True)
        return Equality(Level.UNKNOWN, stopped=stopped, hard=True)

    def _with_guards(
        self, lhs: Node, rhs: Node, algebra: Algebra, make: Callable[..., Algebra]
    ) -> Equality | None:
        """The equality without assumptions on denominators that the programs compare with 0."""
        try:
            guards = algebra.guards()
            better = self._in_algebra(lhs, rhs, make(guards)) if guards else None
        except Undecided:
            return None
        if better is None or better.level is not Level.REALS:
            return None
        return None if UNDEFINED_TOLD in better.assumptions else better

    def _in_algebra(
        self, lhs: Node, rhs: Node, algebra: Algebra, cut: Set[int] = frozenset()
    ) -> Equality:
        reals = Reals(self.graph, algebra, cut)
        number = indices(lhs.shape)
        first, second = reals.entry(lhs, number), reals.entry(rhs, number)
        same = algebra.equal(first, second) or Cases(algebra).equal(first, second)
        if cut and not same:
            return Equality(Level.UNKNOWN)
        if algebra.holds_special(first, second):
            algebra.assumptions[UNDEFINED_TOLD] = None
        unknown = ", ".join(f"`{op}`" for op in reals.scalars.unknown)
        stopped = "" if same else "their normal forms differ"
        if not same and unknown:
            stopped += f"; of {unknown} it is known only that it equals itself"
        return Equality(
            Level.REALS if same else Level.UNKNOWN,
            [self._spelled_out(text) if cut else text for text in algebra.assumptions],
            general=lhs.general and rhs.general,
            forms=(format_quotient(algebra.atoms, first), format_quotient(algebra.atoms, second)),
            stopped=stopped,
        )

    def _spelled_out(self, text: str) -> str:
        """A formula with those of the nodes that were taken for inputs in it."""

        def formula(match: re.Match[str]) -> str:
            node = next(n for n in self.graph.nodes.values() if n.id == int(match[1]))
            algebra = Algebra(_CAPACITIES[-1], _SMALL)
            try:
                text = algebra.text(Reals(self.graph, algebra).entry(node, indices(node.shape)))
            except (Undecided, RecursionError):
                return f"what `{node.op}` gives"
            text = text if len(text) <= 200 else f"{text[:200]} ..."
            return f"({text})" if " " in text else text

        return re.sub(r"node (\d+)(?:\[[^]]*\])?", formula, text)


def _is_real(dtype: DType) -> bool:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return False
    return dtype == jnp.bool_ or (
        jnp.issubdtype(dtype, jnp.number) and not jnp.issubdtype(dtype, jnp.complexfloating)
    )


def groups(nodes: list[Node], comparer: Comparer, level: Level) -> Iterator[list[int]]:
    """Places of nodes that are equal at a level, in order of the first of each group."""
    equality: list[tuple[Node, list[int]]] = []
    for number, node in enumerate(nodes):
        for head, members in equality:
            if head is node:
                members.append(number)
                break
            comparable = level is Level.REALS and head.shape == node.shape
            if comparable and comparer.compare(head, node).level <= level:
                members.append(number)
                break
        else:
            equality.append((node, [number]))
    for _, members in equality:
        yield members
