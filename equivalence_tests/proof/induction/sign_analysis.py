# pyright: strict
"""What in a state is never negative: counts, averages of squares."""

from collections.abc import Collection, Sequence

import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.bits.graph import Graph, Node, cone
from equivalence_tests.proof.dtypes import holds, is_wide

_EVEN = ("abs", "exp", "sqrt", "square", "exp2", "logistic")
_ARITHMETIC = ("add", "mul", "div", "rsqrt", "cbrt", "min", "rem", "floor", "ceil", "round")
_SHAPES = ("splat", "broadcast_in_dim", "reshape", "transpose", "slice", "rev", "concatenate")
_SUMS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "cumsum", "dot_general")
_OF_ALL = frozenset((*_ARITHMETIC, *_SHAPES, *_SUMS, "convert_element_type"))


def never_negative(graph: Graph, before: Sequence[Node | None], after: Sequence[Node]) -> set[int]:
    """Which of the candidates stay 0 or more, if all of them are before a step.

    Args:
      graph: the graph.
      before: symbols of what is 0 or more before; None for what is no candidate.
      after: what a step makes of them.

    Returns:
      Their numbers: the largest set that keeps itself.
    """
    candidates = {number for number, node in enumerate(before) if node is not None}
    while True:
        known = {before[number].id for number in candidates}  # type: ignore[union-attr]
        kept = {number for number in candidates if is_never_negative(graph, after[number], known)}
        if kept == candidates:
            return candidates
        candidates = kept


def is_never_negative(graph: Graph, node: Node, known: Collection[int]) -> bool:
    """Whether a node is 0 or more, as a real number, wherever it is defined.

    Args:
      graph: the graph.
      node: the node.
      known: ids of nodes that are.
    """
    signs: dict[int, bool] = {}
    for each in cone(node):
        signs[each.id] = each.id in known or _follows(graph, each, signs)
    return signs[node.id]


def _fits(source: Node, target: Node) -> bool:
    """Whether a conversion leaves signs alone."""
    if any(jnp.issubdtype(node.dtype, jnp.floating) for node in (source, target)):
        return True  # XLA takes the nearest number that there is
    return holds(source.dtype, target.dtype)


def _follows(graph: Graph, node: Node, signs: dict[int, bool]) -> bool:
    own = [signs[arg.id] for arg in node.args]
    if node.dtype == np.bool_ or jnp.issubdtype(node.dtype, jnp.unsignedinteger):
        return True
    if not jnp.issubdtype(node.dtype, jnp.floating) and not is_wide(node.dtype):
        return False  # it may wrap round
    if node.op in _EVEN:
        return True
    if node.op == "convert_element_type" and not _fits(node.args[0], node):
        return False
    if node.op == "const":
        return bool(np.all(graph.values[node.id] >= 0)) if node.id in graph.values else False
    if node.op == "mul" and node.args[0] is node.args[1]:
        return True
    if node.op == "integer_pow":
        return own[0] or node.settings["y"] % 2 == 0
    if node.op == "pow":
        return own[0]
    if node.op == "max":
        return any(own)
    if node.op == "select_n":
        return all(own[1:])
    if node.op == "clamp":
        return own[0] and own[2]
    return bool(own) and node.op in _OF_ALL and all(own)
