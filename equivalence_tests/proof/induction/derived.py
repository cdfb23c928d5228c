# pyright: strict
"""Leaves of a state as functions of other leaves, and the nodes that compute them."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flint import arb, fmpq

from equivalence_tests.proof.bits.graph import Graph, Node
from equivalence_tests.proof.dtypes import Aval, DType
from equivalence_tests.proof.induction.world import Slot

Term = tuple[Slot, int]  # a part of a state, and the power to which it is taken
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


def of_fraction(graph: Graph, fraction: fmpq, kind: DType) -> Node:
    """A fraction as a node of a dtype."""
    if fraction.q == 1:
        return graph.const(int(fraction.p), kind)
    top, bottom = graph.const(int(fraction.p), kind), graph.const(int(fraction.q), kind)
    return graph.apply("div", (top, bottom), (), (), kind)


def log_of(graph: Graph, fraction: fmpq, kind: DType) -> Node:
    """The logarithm of a fraction as a node of a dtype."""
    return graph.apply("log", (of_fraction(graph, fraction, kind),), (), (), kind)


def with_sign(sign: int, build: Build) -> Build:
    """A constant with a sign."""
    if sign > 0:
        return build
    return lambda graph, kind: graph.apply("neg", (build(graph, kind),), (), (), kind)


def binary_constant(op: str, first: Build, second: Build) -> Build:
    """Two constants, by an operation."""
    return lambda graph, kind: graph.apply(
        op, (first(graph, kind), second(graph, kind)), (), (), kind
    )


def transpose_of(slot: Slot, other: Slot, order: Sequence[int], shape: tuple[int, ...]) -> Derived:
    """Another part with its axes in another order."""

    def build(graph: Graph, nodes: Sequence[Node]) -> Node:
        (node,) = nodes
        params = (("permutation", tuple(order)),)
        return graph.apply("transpose", (node,), params, shape, node.dtype)

    return Derived(slot, (other,), f"{{0}}.transpose{tuple(order)}", build)


def concatenation_of(slot: Slot, sources: Sequence[Slot], aval: Aval, axis: int) -> Derived:
    """The concatenation of others along an axis, of any axes of their own."""
    shape = tuple(aval.shape)
    rest = math.prod(shape) // shape[axis]

    def reshape(graph: Graph, node: Node, shape: tuple[int, ...]) -> Node:
        params = (("dimensions", None), ("new_sizes", shape))
        return graph.apply("reshape", (node,), params, shape, node.dtype)

    def build(graph: Graph, nodes: Sequence[Node]) -> Node:
        parts = [
            reshape(
                graph,
                node,
                (*shape[:axis], math.prod(node.shape) // rest, *shape[axis + 1 :]),
            )
            for node in nodes
        ]
        if len(parts) == 1:
            return parts[0]
        return graph.apply("concatenate", parts, (("dimension", axis),), shape, aval.dtype)

    names = ", ".join(f"{{{index}}}" for index in range(len(sources)))
    text = f"[{names}] in a row" if len(sources) > 1 else f"{{0}} in the shape {shape}"
    return Derived(slot, tuple(sources), text + f" along axis {axis}" * (axis > 0), build)


def linear_combination(slot: Slot, chosen: Sequence[Term], factors: Sequence[Factor]) -> Derived:
    """Others, or their squares, times constants, together."""

    def build(graph: Graph, nodes: Sequence[Node]) -> Node:
        def apply(op: str, *args: Node) -> Node:
            return graph.apply(op, args, (), nodes[0].shape, nodes[0].dtype)

        powers = [
            node if power == 1 else apply("mul", node, node)
            for node, (_, power) in zip(nodes, chosen, strict=True)
        ]
        terms = [
            apply("mul", node, factor.node(graph, node.dtype))
            for node, factor in zip(powers, factors, strict=True)
        ]
        return functools.reduce(functools.partial(apply, "add"), terms)

    pairs = enumerate(zip(chosen, factors, strict=True))
    texts = [
        f"{factor.text} * {{{i}}}{' ** 2' if power == 2 else ''}".removeprefix("1 * ")
        for i, ((_, power), factor) in pairs
    ]
    text = " + ".join(texts).replace("+ -1 * ", "- ").replace("+ -", "- ")
    return Derived(slot, tuple(at for at, _ in chosen), text, build)


def root_of(slot: Slot, other: Slot) -> Derived:
    """The square root of another part."""

    def build(graph: Graph, nodes: Sequence[Node]) -> Node:
        (node,) = nodes
        return graph.apply("sqrt", (node,), (), node.shape, node.dtype)

    return Derived(slot, (other,), "sqrt({0})", build)


def multiple_of(slot: Slot, other: Slot, factor: Factor) -> Derived:
    """Another part times a constant."""

    def build(graph: Graph, nodes: Sequence[Node]) -> Node:
        (node,) = nodes
        if factor.text == "-1":
            return graph.apply("neg", (node,), (), node.shape, node.dtype)
        constant = factor.node(graph, node.dtype)
        return graph.apply("mul", (node, constant), (), node.shape, node.dtype)

    text = {"1": "{0}", "-1": "-{0}"}.get(factor.text, f"{factor.text} * {{0}}")
    return Derived(slot, (other,), text, build)


_FEWEST = 4  # values, of which three decide the sequence and the rest confirm it
# From a number to the constant that it is; None if it is not recognised.
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
    """Returns the function of a count that values are; None of others, or of equal ones."""
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
