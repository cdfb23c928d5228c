# pyright: strict
"""Invariants of states: leaves that stay 0 or more, lower bounds and cycles of counters."""

from collections.abc import Sequence

from equivalence_tests.proof.bits.graph import Graph, Node
from equivalence_tests.proof.bits.signs import is_never_negative
from equivalence_tests.proof.dtypes import is_integer, is_wide
from equivalence_tests.proof.induction.world import Constants, Slot, World
from equivalence_tests.proof.reading.sides import Program

_MOST_STATES = 24
_GROWS = ("add", "select_n", "min", "max", "convert_element_type")
Counters = dict[Slot, Node]


def at_least(graph: Graph, node: Node, before: Node, least: int) -> bool:
    """True if a step keeps a count at or above a lower bound."""
    if node is before:
        return True
    number = graph.scalar(node)
    if number is not None:
        return number >= least
    if node.op not in _GROWS or not is_integer(node.dtype) or not is_wide(node.dtype):
        return False
    if node.op != "add":
        parts = node.args[1:] if node.op == "select_n" else node.args
        either = any if node.op == "max" else all
        return either(at_least(graph, part, before, least) for part in parts)
    one, other = node.args
    numbers = [graph.scalar(part) for part in (one, other)]
    return any(
        number is not None and number >= 0 and at_least(graph, part, before, least)
        for number, part in zip(numbers, (other, one), strict=True)
    )


def cycle(
    world: World,
    sides: tuple[Program, Program],
    starts: Sequence[Sequence[Node]],
    constants: Sequence[Constants],
) -> list[Counters]:
    """The states of counters that go round, one after the other; one without any if none do."""
    symbols = [world.symbols(side) for side in sides]

    def after(counters: Counters) -> Counters:
        new: list[list[Node]] = []
        for number, side in enumerate(sides):
            general = zip(symbols[number], constants[number], strict=True)
            state = [
                counters.get((number, leaf), symbol if constant is None else constant)
                for leaf, (symbol, constant) in enumerate(general)
            ]
            new.append(world.step(side, state)[0])
        return {(side, leaf): new[side][leaf] for side, leaf in counters}

    going = {
        (side, leaf): node
        for side in (0, 1)
        for leaf, (node, constant) in enumerate(zip(starts[side], constants[side], strict=True))
        if constant is None and node.op == "const" and is_integer(node.dtype)
    }
    scalar = world.graph.scalar
    while going:
        states, counters = [going], after(going)
        while counters != going and len(states) < _MOST_STATES:
            if any(scalar(node) is None for node in counters.values()):
                break
            states.append(counters)
            counters = after(counters)
        if counters == going:
            return states
        # Those that come back to where they began go round, perhaps without the others.
        back = {
            slot: node
            for slot, node in going.items()
            if scalar(counters[slot]) is not None
            and any(each[slot] is node for each in states[len(states) // 2 :])
        }
        if len(back) == len(going):
            break
        going = back
    return [{}]


def never_negative(graph: Graph, before: Sequence[Node | None], after: Sequence[Node]) -> set[int]:
    """Returns the candidates that stay 0 or more if all of them are so before a step."""
    candidates = {number for number, node in enumerate(before) if node is not None}
    while True:
        ids = {before[number].id for number in candidates}  # type: ignore[union-attr]
        remaining = {
            number for number in candidates if is_never_negative(graph, after[number], ids)
        }
        if remaining == candidates:
            return candidates
        candidates = remaining
