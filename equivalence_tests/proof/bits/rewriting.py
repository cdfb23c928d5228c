"""The node of an operation on elements: folded, by the rules of its primitive, or as it stands."""

from collections.abc import Hashable

from equivalence_tests.proof.bits.folding import fold_constants
from equivalence_tests.proof.dtypes import DType, is_complex, is_float
from equivalence_tests.proof.node import Node
from equivalence_tests.proof.primitives import PRIMITIVES
from equivalence_tests.proof.primitives.primitive import Builder, Shape, Site

_WITHOUT_SETTINGS = frozenset(("add", "sub", "mul", "div", "neg"))


def elementwise(
    graph: Builder,
    op: str,
    args: tuple[Node, ...],
    params: Hashable,
    shape: Shape,
    dtype: DType,
) -> Node:
    """Returns the node of an operation whose operands are arrays of one shape or scalars."""
    if params and op in _WITHOUT_SETTINGS:
        return graph.node(op, args, params, shape, dtype)  # of a kind that the rules do not know
    row = PRIMITIVES[op]
    if (constant := fold_constants(graph, row, args, params, dtype)) is not None:
        return constant
    if row.rewrite is not None:
        rewritten = row.rewrite(Site(graph, args, params, shape, dtype))
        if rewritten is not None:
            return rewritten
    ordered = row.commutative is True or (row.commutative == "whole" and not is_float(dtype))
    if ordered and not is_complex(args[0].dtype):
        args = tuple(sorted(args, key=lambda arg: arg.id))
    return graph.node(op, args, params, shape, dtype)
