# pyright: strict
"""Arrays whose entries are those of another, in another order: of a sum over all it is the same."""

from collections.abc import Hashable

from equivalence_tests.proof.bits.graph import Graph, Node
from equivalence_tests.proof.primitives import is_elementwise

_PERMUTATIONS = frozenset(("reshape", "transpose", "rev", "sort"))


def undo_permutation(graph: Graph, node: Node) -> Node | None:
    """Returns an array with the same entries in their first order; None if they are in no other.

    What is computed of each entry of arrays that stand in one order, `sort(x) ** 2`, is computed
    of the arrays in their first order.
    """
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
    """Returns what decides the order of a permuted array; None if it is none."""
    if _source(node) is None:
        return None
    decides = node.args[0].id if node.op == "sort" else None  # its own entries
    return (node.op, node.params, node.args[0].shape, decides)
