# pyright: strict
"""Sequences of numbers that are a simple function of a count: `a + b * n` and `a + b * r ** n`."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flint import arb

from equivalence_tests.proof.bits.graph import Graph, Node
from equivalence_tests.proof.dtypes import Aval, DType
from equivalence_tests.proof.induction.derived import Derived, Factor
from equivalence_tests.proof.induction.world import Slot

_FEWEST = 4  # values, of which three decide the sequence and the rest confirm it
# From a number to the constant that it is; None if it is none that is known.
Recognise = Callable[[arb], Factor | None]


@dataclass(frozen=True)
class Progression:
    """A function of a count.

    Attributes:
      offset: the summand that does not change; None for 0.
      scale: the factor of the rest.
      ratio: the base of the power of the count; None where the rest is linear.
    """

    offset: Factor | None
    scale: Factor
    ratio: Factor | None

    @property
    def text(self) -> str:
        """The function, with `{0}` for the count."""
        rest = "{0}" if self.ratio is None else f"({self.ratio.text}) ** {{0}}"
        if self.scale.text != "1":
            rest = f"{self.scale.text} * {rest}".replace("-1 * ", "-")
        return rest if self.offset is None else f"{self.offset.text} + {rest}".replace("+ -", "- ")

    def node(self, graph: Graph, count: Node, kind: DType) -> Node:
        """The function of a count as a number of a dtype."""

        def apply(op: str, *args: Node) -> Node:
            return graph.apply(op, args, (), (), kind)

        rest = apply("convert_element_type", count)
        if self.ratio is not None:
            rest = apply("pow", self.ratio.node(graph, kind), rest)
        if self.scale.text != "1":
            rest = apply("mul", rest, self.scale.node(graph, kind))
        return rest if self.offset is None else apply("add", self.offset.node(graph, kind), rest)


def progression_of(
    values: Sequence[arb], counts: Sequence[int], recognise: Recognise
) -> Progression | None:
    """Returns the function of a count that values are; None if they are none, or all the same."""
    offset, scale = _line(values, counts)
    ratio = None
    if scale is None:
        offset, scale, ratio = _curve(values, counts)
    if offset is None or scale is None:
        return None
    summand = None if offset.contains(0) else recognise(offset)
    factor, base = recognise(scale), None if ratio is None else recognise(ratio)
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


def function_of_count(slot: Slot, count: Slot, aval: Aval, progression: Progression) -> Derived:
    """A part of a state that is a function of a count."""

    def build(graph: Graph, nodes: Sequence[Node]) -> Node:
        return graph.splat(progression.node(graph, nodes[0], aval.dtype), aval.shape)

    return Derived(slot, (count,), progression.text, build)


def multiple_by_count(slot: Slot, other: Slot, count: Slot, progression: Progression) -> Derived:
    """A part of a state that is another one times a function of a count."""

    def build(graph: Graph, nodes: Sequence[Node]) -> Node:
        node, number = nodes
        factor = progression.node(graph, number, node.dtype)
        return graph.apply("mul", (node, factor), (), node.shape, node.dtype)

    text = progression.text.replace("{0}", "{1}")
    text = f"({text})" if " + " in text or " - " in text else text
    return Derived(slot, (other, count), f"{{0}} * {text}", build)
