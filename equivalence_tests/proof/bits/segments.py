# pyright: strict
"""Segments of concatenated arrays, and entries in another order, of which a sum is the same."""

from collections.abc import Hashable

from equivalence_tests.proof.bits.graph import Graph, Node
from equivalence_tests.proof.primitives import is_elementwise


def segment_ends(node: Node, axis: int) -> tuple[int, ...]:
    """Returns the ends of the arrays that a node joins along an axis; empty if it joins none."""
    ends = _ends(node, axis, {})
    return (*sorted(ends), node.shape[axis]) if ends else ()


def _ends(node: Node, axis: int, cache: dict[int, frozenset[int]]) -> frozenset[int]:
    """The ends but the last."""
    if node.id not in cache:
        ends: set[int] = set()
        if node.op == "concatenate" and node.settings["dimension"] == axis:
            start = 0
            for arg in node.args:
                ends |= {start + end for end in _ends(arg, axis, cache)}
                start += arg.shape[axis]
                ends.add(start)
            ends -= {0, start}
        elif is_elementwise(node.op):
            for arg in node.args:
                if arg.shape == node.shape:
                    ends |= _ends(arg, axis, cache)
        cache[node.id] = frozenset(ends)
    return cache[node.id]


def segment(graph: Graph, node: Node, axis: int, begin: int, end: int) -> Node:
    """The elements of an array from one index along an axis to another, that of a whole part."""
    return _Parts(graph, axis).segment(node, begin, end)


class _Parts:
    def __init__(self, graph: Graph, axis: int):
        self.graph, self.axis = graph, axis
        self.ends: dict[int, frozenset[int]] = {}
        self.segments: dict[tuple[int, int, int], Node] = {}

    def segment(self, node: Node, begin: int, end: int) -> Node:
        key = (node.id, begin, end)
        if key not in self.segments:
            self.segments[key] = self._part(node, begin, end)
        return self.segments[key]

    def _part(self, node: Node, begin: int, end: int) -> Node:
        axis, graph = self.axis, self.graph
        shape = (*node.shape[:axis], end - begin, *node.shape[axis + 1 :])
        if shape == node.shape:
            return node
        if node.op == "splat":
            return graph.splat(node.args[0], shape)
        if node.op == "const" and (value := graph.constant(node)) is not None:
            return graph.const(value.take(range(begin, end), axis), node.dtype)
        if node.op == "concatenate" and node.settings["dimension"] == axis:
            start = 0
            for arg in node.args:
                size = arg.shape[axis]
                if start <= begin and end <= start + size:
                    return self.segment(arg, begin - start, end - start)
                start += size
        if is_elementwise(node.op) and _ends(node, axis, self.ends):
            args = [
                self.segment(arg, begin, end) if arg.shape == node.shape else arg
                for arg in node.args
            ]
            return graph.apply(node.op, args, node.params, shape, node.dtype)
        starts = tuple(begin if number == axis else 0 for number in range(len(shape)))
        limits = tuple(a + size for a, size in zip(starts, shape, strict=True))
        params = (("limit_indices", limits), ("start_indices", starts))
        return graph.apply("slice", (node,), params, shape, node.dtype)


_PERMUTATIONS = frozenset(("reshape", "transpose", "rev", "sort"))


def undo_permutation(graph: Graph, node: Node) -> Node | None:
    """Returns the array whose entries were permuted; None if none were."""
    if node.op in _PERMUTATIONS:
        return _source(node)
    if not is_elementwise(node.op):
        return None
    arrays = [arg for arg in node.args if arg.shape == node.shape and arg.op != "splat"]
    orders = {_order(arg) for arg in arrays}
    if not node.shape or len(orders) != 1 or None in orders or len(arrays) == 0:
        return None
    sources = {arg.id: _source(arg) for arg in arrays}
    shapes = {source.shape for source in sources.values() if source is not None}
    if len(shapes) != 1 or None in sources.values():
        return None
    (shape,) = shapes
    args: list[Node] = []
    for arg in node.args:
        source = sources.get(arg.id)
        scalar = arg.args[0] if arg.op == "splat" else arg
        args.append(source if source is not None else scalar)
    return graph.apply(node.op, args, node.params, shape, node.dtype)


def _source(node: Node) -> Node | None:
    """Returns the array whose entries a permutation has; None of a sort by other arrays."""
    return node.args[0] if node.op in _PERMUTATIONS and len(node.args) == 1 else None


def _order(node: Node) -> Hashable:
    """Returns the key of a permuted array's order; None of others."""
    if _source(node) is None:
        return None
    decides = node.args[0].id if node.op == "sort" else None  # its own entries
    return (node.op, node.params, node.args[0].shape, decides)
