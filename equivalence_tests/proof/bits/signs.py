# pyright: strict
"""Nodes that are never negative, as real numbers, by what their primitives say of signs."""

import itertools
from collections.abc import Collection, Mapping

import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.bits.graph import Graph, Node, cone
from equivalence_tests.proof.dtypes import is_wide
from equivalence_tests.proof.primitives import PRIMITIVES


def is_never_negative(graph: Graph, node: Node, nonnegative: Collection[int]) -> bool:
    """True if a node is 0 or more, as a real number, wherever it is defined."""
    signs: dict[int, bool] = {}
    for each in cone(node):
        signs[each.id] = each.id in nonnegative or _follows(graph, each, signs)
    return signs[node.id]


def _follows(graph: Graph, node: Node, signs: Mapping[int, bool]) -> bool:
    if node.dtype == np.bool_ or jnp.issubdtype(node.dtype, jnp.unsignedinteger):
        return True
    if not jnp.issubdtype(node.dtype, jnp.floating) and not is_wide(node.dtype):
        return False  # it may wrap round
    if node.op == "const":
        return bool(np.all(graph.values[node.id] >= 0)) if node.id in graph.values else False
    if node.op == "mul" and any(
        _is_scaled(a, b, signs) for a, b in itertools.permutations(node.args)
    ):
        return True
    row = PRIMITIVES.get(node.op)
    if row is None or row.signs is None:
        return False
    return row.signs(node, [signs[arg.id] for arg in node.args])


def _is_scaled(node: Node, other: Node, signs: Mapping[int, bool]) -> bool:
    """True if a node is another one times something that is 0 or more, rounded or not."""
    while node.op in ("reduce_precision", "convert_element_type"):
        node = node.args[0]
    pairs = itertools.permutations(node.args) if node.op == "mul" else ()
    return any(base is other and signs[factor.id] for base, factor in pairs)
