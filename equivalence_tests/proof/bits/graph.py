# pyright: strict
"""Programs as graphs in which equal values are one node, under rules that keep every bit.

A node is one array operation. Nodes are made by `Graph.apply`, which first rewrites by rules that
hold in IEEE arithmetic for every input, NaN (as one value), infinities and signed zeros included,
and then looks whether such a node is there already. So two programs are identical where their
results are the same node.

The rules: the order of two summands or factors; `a - b` is `a + (-b)`; signs move out of products
and quotients; a square is a product; a factor 1 and a summand -0 go; division by a power of two is
a product; copies, conversions and changes of shape that do nothing go; what is computed of scalars
is computed before it is spread; `where` with one outcome is that outcome. Additions are not
reordered, nothing is distributed, nothing is cancelled.
"""

from collections.abc import Hashable, Mapping, Sequence

from equivalence_tests.proof.bits.nodes import Nodes
from equivalence_tests.proof.bits.rewriting import elementwise
from equivalence_tests.proof.bits.rewriting_shapes import SHAPED
from equivalence_tests.proof.dtypes import DType
from equivalence_tests.proof.node import Node as Node
from equivalence_tests.proof.node import cone as cone
from equivalence_tests.proof.primitives import COPIES, is_elementwise


class Graph(Nodes):
    """A graph whose nodes are rewritten as they are made."""

    def apply(
        self,
        op: str,
        args: Sequence[Node],
        params: Hashable,
        shape: Sequence[int],
        dtype: DType,
    ) -> Node:
        """The node of an operation after rewriting."""
        shape, args = tuple(shape), tuple(args)
        if op in COPIES:
            return args[0]
        if op in SHAPED:
            return SHAPED[op](self, args, params, shape, dtype)
        if not is_elementwise(op):
            return self.node(op, args, params, shape, dtype)
        if shape and all(not arg.shape or arg.op == "splat" for arg in args):
            inner = [arg.args[0] if arg.op == "splat" else arg for arg in args]
            return self.splat(self.apply(op, inner, params, (), dtype), shape)
        args = tuple(arg.args[0] if arg.op == "splat" else self._spread(arg, shape) for arg in args)
        return elementwise(self, op, args, params, shape, dtype)

    def _spread(self, node: Node, shape: tuple[int, ...]) -> Node:
        """An operand in the shape of the result: JAX leaves axes of length 1 as they are."""
        if node.shape in ((), shape):
            return node
        dims = (("broadcast_dimensions", tuple(range(len(shape)))),)
        return self.apply("broadcast_in_dim", (node,), dims, shape, node.dtype)

    def rebuild(self, node: Node, args: Sequence[Node]) -> Node:
        """The same operation of other operands."""
        if all(new is old for new, old in zip(args, node.args, strict=True)):
            return node
        if node.op == "splat":
            return self.splat(args[0], node.shape)
        return self.apply(node.op, args, node.params, node.shape, node.dtype)

    def with_inputs(self, replacements: Mapping[int, Node], *nodes: Node) -> list[Node]:
        """Nodes with others in the place of inputs.

        Args:
          replacements: an input's id -> what replaces it.
          nodes: what is computed anew.
        """
        rebuilt = dict(replacements)
        for node in cone(*nodes):
            if node.id not in rebuilt:
                rebuilt[node.id] = self.rebuild(node, [rebuilt[arg.id] for arg in node.args])
        return [rebuilt[node.id] for node in nodes]
