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
from dataclasses import dataclass, field
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from equivalence_tests.proof.bits.rewriting import SHAPED, elementwise
from equivalence_tests.proof.dtypes import DType, dtype_name, is_float, is_key
from equivalence_tests.proof.node import Node as Node
from equivalence_tests.proof.node import cone as cone
from equivalence_tests.proof.primitives import COPIES, is_elementwise

Constant = ArrayLike | jax.Array  # an array of typed random keys is JAX's


@dataclass
class Graph:
    """A graph whose nodes are rewritten as they are made; equal operations are one node."""

    nodes: dict[Hashable, Node] = field(default_factory=dict[Hashable, Node])
    values: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])
    never_negative: set[str] = field(default_factory=set[str])

    def leaf(self, name: str, shape: Sequence[int], dtype: DType) -> Node:
        """An input."""
        return self.node("leaf", (), name, tuple(shape), dtype)

    def const(self, value: Constant, dtype: DType | None = None) -> Node:
        """A constant; one whose elements are all equal is a scalar that is spread."""
        if dtype is None:
            dtype = cast(DType, getattr(value, "dtype", None) or jnp.result_type(value))
        if is_key(dtype):  # a typed random key
            data = self.const(np.asarray(jax.random.key_data(cast(jax.Array, value))))
            return self.apply("random_wrap", (data,), (), np.shape(value), dtype)
        array = np.asarray(value).astype(dtype)
        if array.ndim and array.size:
            first = array.reshape(-1)[0]
            if array.tobytes() == first.tobytes() * array.size:  # 0.0 == -0.0, so not by value
                return self.splat(self.const(first, dtype), array.shape)
        if array.ndim == 0 and is_float(array.dtype) and np.isnan(array):
            array = np.asarray(np.nan).astype(dtype)  # NaN is one value
        node = self.node("const", (), (dtype_name(dtype), array.tobytes()), array.shape, dtype)
        self.values[node.id] = array
        return node

    def splat(self, scalar: Node, shape: Sequence[int]) -> Node:
        """A scalar spread over a shape."""
        shape = tuple(shape)
        return self.node("splat", (scalar,), (), shape, scalar.dtype) if shape else scalar

    def scalar(self, node: Node) -> float | int | bool | None:
        """The number that a node is everywhere; None if it is no constant."""
        if node.op == "splat":
            node = node.args[0]
        if node.op != "const" or node.shape or node.id not in self.values:
            return None
        return self.values[node.id].item()

    def constant(self, node: Node) -> np.ndarray | None:
        """The value of a constant's node; None of a key's, or of another operation."""
        return self.values.get(node.id)

    def node(
        self,
        op: str,
        args: Sequence[Node],
        params: Hashable,
        shape: tuple[int, ...],
        dtype: DType,
    ) -> Node:
        """The node of an operation as it stands."""
        key = (op, tuple(arg.id for arg in args), params, shape, dtype_name(dtype))
        if key not in self.nodes:
            elementwise = op in ("leaf", "const", "splat") or is_elementwise(op)
            general = elementwise and all(arg.general for arg in args)
            if op == "const" and shape:
                general = False
            self.nodes[key] = Node(len(self.nodes), op, tuple(args), params, shape, dtype, general)
        return self.nodes[key]

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
        """Nodes with others in the place of inputs."""
        rebuilt = dict(replacements)
        for node in cone(*nodes):
            if node.id not in rebuilt:
                rebuilt[node.id] = self.rebuild(node, [rebuilt[arg.id] for arg in node.args])
        return [rebuilt[node.id] for node in nodes]
