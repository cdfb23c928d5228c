# pyright: strict
"""Both sides' programs run on symbols, in one graph with the inputs that both get."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jax import numpy as jnp

from equivalence_tests.proof.bits.graph import Graph, Node
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.induction.equality import Comparer, Equality
from equivalence_tests.proof.reading import programs
from equivalence_tests.proof.reading.programs import AnyJaxpr
from equivalence_tests.proof.reading.sides import Inputs, Program

Leaves = list[Node]  # of one state
Step = tuple[Leaves, Leaves]  # the new state and the new parameters
Constants = list[Node | None]  # for each leaf of a state its constant value, if it has one
Slot = tuple[int, int]  # a part of a state: the side, and the number of the state's leaf


@dataclass(frozen=True)
class Obligation:
    """One thing to prove: that two leaves are equal."""

    when: str
    leaf: str
    equality: Equality
    nodes: tuple[Node, Node]
    params: bool


class World:
    """A graph with the inputs that both sides get."""

    def __init__(self, inputs: Inputs):
        """Makes the inputs."""
        self.inputs, self.graph = inputs, Graph()
        self.comparer = Comparer(self.graph)
        number = jnp.result_type(float)
        self.hyper = [self.graph.leaf(name, (), number) for name in sorted(inputs.numbers)]
        pairs = list(zip(inputs.paths, inputs.shapes, strict=True))
        self.params = [self.graph.leaf(path, leaf.shape, leaf.dtype) for path, leaf in pairs]
        self.grads = [
            self.graph.leaf(path.replace("params", "grads", 1), leaf.shape, leaf.dtype)
            for path, leaf in pairs
        ]

    def start(self, side: Program) -> Step:
        """The state of a side at first, and its parameters."""
        return self._run(side, side.start, [*self.hyper, *self.params])

    def step(
        self, side: Program, state: Sequence[Node], grads: Sequence[Node] | None = None
    ) -> Step:
        """The state of a side after a step, and its parameters."""
        moves = self.grads if grads is None else grads
        return self._run(side, side.step, [*self.hyper, *state, *moves])

    def other_grads(self) -> list[Node]:
        """Gradients of another step than that of the induction."""
        names = [f"{g.params} of the first step" for g in self.grads]
        return [
            self.graph.leaf(n, g.shape, g.dtype) for n, g in zip(names, self.grads, strict=True)
        ]

    def _run(self, side: Program, jaxpr: AnyJaxpr, args: list[Node]) -> Step:
        try:
            results = programs.run(self.graph, jaxpr, args)
        except ProofError as error:
            raise ProofError(f"{side.name} side ({side.kind}): {error}") from None
        return results[: len(side.paths)], results[len(side.paths) :]

    def names(self, side: Program) -> list[str]:
        """A name for each leaf of a state; that of the parameter with which it starts, if any."""
        start, _ = self.start(side)
        paths = {node.id: path for node, path in zip(self.params, self.inputs.paths, strict=True)}
        names: dict[str, None] = {}
        for path, node in zip(side.paths, start, strict=True):
            called = "count" if path == "[0]" else "state" + re.sub(r"^\[\d+\]", "", path)
            name = paths.get(node.id) or called
            while name in names:
                name = f"state{path}" if f"state{path}" not in names else f"{name}'"
            names[name] = None
        return list(names)

    def symbols(self, side: Program) -> list[Node]:
        """The general state of a side: a symbol for each leaf."""
        pairs = zip(self.names(side), side.avals, strict=True)
        return [self.graph.leaf(name, aval.shape, aval.dtype) for name, aval in pairs]


def constants(world: World, side: Program, start: Sequence[Node]) -> Constants:
    """Returns the constant that each leaf of a state is at every step; None where it changes."""
    values: Constants = [node if is_constant(node) else None for node in start]
    symbols = world.symbols(side)
    while True:
        state = [symbol if n is None else n for symbol, n in zip(symbols, values, strict=True)]
        new, _ = world.step(side, state)
        remaining = [n if n is after else None for n, after in zip(values, new, strict=True)]
        if remaining == values:
            return values
        values = remaining


def is_constant(node: Node) -> bool:
    """True if a node is a constant, perhaps spread over a shape."""
    return node.op == "const" or (node.op == "splat" and node.args[0].op == "const")
