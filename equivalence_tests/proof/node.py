# pyright: strict
"""One array value of a program, in a graph in which equal values are one node."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from equivalence_tests.proof.dtypes import DType

# A function under `jax.jit` with this in front of its name is left unknown: of two calls it is
# known that equal arguments give equal results, and nothing else.
UNKNOWN = "unknown_"
Settings = dict[str, Any]  # a primitive's parameters by their names


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One array value."""

    id: int
    op: str
    args: tuple["Node", ...]
    params: Hashable
    shape: tuple[int, ...]
    dtype: DType
    general: bool

    def __repr__(self) -> str:
        return f"%{self.id}:{self.op}"

    @property
    def settings(self) -> Settings:
        """The primitive's parameters by their names."""
        return settings_of(self.params)


def settings_of(params: Hashable) -> Settings:
    """A primitive's parameters, `(name, value)` pairs, by their names."""
    return dict(cast(Iterable[tuple[str, object]], params))


def cone(*nodes: Node) -> list[Node]:
    """All nodes that nodes are computed with, operands first."""
    reached: dict[int, Node] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.id not in reached:
            reached[node.id] = node
            waiting += node.args
    return [reached[number] for number in sorted(reached)]
