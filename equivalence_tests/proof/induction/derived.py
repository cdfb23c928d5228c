# pyright: strict
"""Parts of states as functions of other parts: what such a relation is made of in the graph."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flint import fmpq

from equivalence_tests.proof.bits.graph import Graph, Node
from equivalence_tests.proof.dtypes import Aval, DType
from equivalence_tests.proof.induction.world import Slot

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
    top, bottom = graph.const(int(fraction.p), kind), graph.const(int(fraction.q), kind)
    return graph.apply("div", (top, bottom), (), (), kind)


def signed(sign: int, build: Build) -> Build:
    """A constant with a sign."""
    if sign > 0:
        return build
    return lambda graph, kind: graph.apply("neg", (build(graph, kind),), (), (), kind)


def combined(op: str, first: Build, second: Build) -> Build:
    """Two constants, by an operation."""
    return lambda graph, kind: graph.apply(
        op, (first(graph, kind), second(graph, kind)), (), (), kind
    )


def turned(slot: Slot, other: Slot, order: Sequence[int], shape: tuple[int, ...]) -> Derived:
    """Another part with its axes in another order."""

    def build(graph: Graph, nodes: Sequence[Node]) -> Node:
        (node,) = nodes
        params = (("permutation", tuple(order)),)
        return graph.apply("transpose", (node,), params, shape, node.dtype)

    return Derived(slot, (other,), f"{{0}}.transpose{tuple(order)}", build)


def joined(slot: Slot, sources: Sequence[Slot], aval: Aval, axis: int) -> Derived:
    """Others one behind the other along an axis, whatever their own axes are."""
    shape = tuple(aval.shape)
    rest = math.prod(shape) // shape[axis]

    def reshaped(graph: Graph, node: Node, shape: tuple[int, ...]) -> Node:
        params = (("dimensions", None), ("new_sizes", shape))
        return graph.apply("reshape", (node,), params, shape, node.dtype)

    def build(graph: Graph, nodes: Sequence[Node]) -> Node:
        parts = [
            reshaped(
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


def summed(slot: Slot, sources: Sequence[Slot], factors: Sequence[Factor]) -> Derived:
    """Others times constants, together."""

    def build(graph: Graph, nodes: Sequence[Node]) -> Node:
        terms = [
            graph.apply("mul", (node, factor.node(graph, node.dtype)), (), node.shape, node.dtype)
            for node, factor in zip(nodes, factors, strict=True)
        ]
        result = terms[0]
        for term in terms[1:]:
            result = graph.apply("add", (result, term), (), term.shape, term.dtype)
        return result

    texts = [f"{factor.text} * {{{i}}}".removeprefix("1 * ") for i, factor in enumerate(factors)]
    return Derived(
        slot, tuple(sources), " + ".join(texts).replace("+ -1 * ", "- ").replace("+ -", "- "), build
    )


def scaled(slot: Slot, other: Slot, factor: Factor, count: Slot | None = None) -> Derived:
    """Another part times a constant, and perhaps times a count."""

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
