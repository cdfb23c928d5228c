"""Values of a graph's nodes at random points, by which equal nodes are guessed."""

import zlib
from collections.abc import Hashable

import jax
import numpy as np

from equivalence_tests.proof.bits.graph import Graph, Node, cone
from equivalence_tests.proof.dtypes import is_float
from equivalence_tests.proof.interpreter.entries import compute

_POINTS = 4
_DIGITS = 9


class Numeric:
    """Nodes of a graph in float64, at a few random points."""

    def __init__(self, graph: Graph):
        """Computes nodes of this graph."""
        self.graph = graph
        self._known: dict[int, list[np.ndarray] | None] = {}

    def values_of(self, *nodes: Node) -> list[tuple[Node, Hashable]]:
        """All nodes that some are computed with, operands first, each with its value as a key."""
        rows = list[tuple[Node, Hashable]]()
        for node in cone(*nodes):
            if node.id not in self._known:
                with np.errstate(all="ignore"):
                    self._known[node.id] = self._at(node)
            values = self._known[node.id]
            if values is not None and node.op not in ("leaf", "const", "splat"):
                rows.append((node, (node.shape, *map(_key, values))))
        return rows

    def _at(self, node: Node) -> list[np.ndarray] | None:
        """The values of a node whose operands have theirs; None if they cannot be computed."""
        if node.op == "leaf":
            return [self._input(node, point) for point in range(_POINTS)]
        kind = np.float64 if is_float(node.dtype) else node.dtype
        aval, value = jax.ShapeDtypeStruct(node.shape, kind), self.graph.values.get(node.id)
        rows = [[value] * _POINTS] if node.op == "const" else [self._known[a.id] for a in node.args]
        if not rows or any(row is None or row[0] is None for row in rows):
            return None
        columns = list(zip(*(row for row in rows if row is not None), strict=True))
        moved = node.op in ("const", "splat", "convert_element_type")
        try:
            results = [
                column[0] if moved else compute(node.op, node.settings, aval, column)
                for column in columns
            ]
            if any(result is None for result in results):
                return None
            return [np.broadcast_to(np.asarray(r).astype(kind), node.shape) for r in results]
        except (KeyError, TypeError, ValueError):
            return None

    def _input(self, node: Node, point: int) -> np.ndarray:
        rng = np.random.default_rng(zlib.crc32(f"{node.params} {point}".encode()))
        if is_float(node.dtype):
            return rng.uniform(0.2 if point % 2 == 0 else -1.8, 1.8, node.shape)
        if node.dtype == np.bool_:
            return rng.random(node.shape) < 0.5
        return rng.integers(1, 9, node.shape)


def _key(value: np.ndarray) -> Hashable:
    """A value as a key that does not depend on rounding."""
    if not np.issubdtype(value.dtype, np.floating):
        return value.tobytes()
    return tuple(f"{number:.{_DIGITS}g}" for number in value.reshape(-1)[:16].tolist())
