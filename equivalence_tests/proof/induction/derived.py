# pyright: strict
"""Parts of states as functions of other parts: what such a relation is made of in the graph."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flint import fmpq

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
    """Others one behind the other along an axis, whatever their own axes are."""
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
