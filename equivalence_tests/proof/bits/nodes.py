"""Array operations as nodes of a graph: what is computed alike is one node."""

import abc
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from equivalence_tests.proof.dtypes import DType, is_float, is_key
from equivalence_tests.proof.node import Node
from equivalence_tests.proof.primitives import is_elementwise

Constant = ArrayLike | jax.Array  # an array of typed random keys is JAX's


@dataclass
class Nodes(abc.ABC):
    """Nodes by what they are.

    Attributes:
      nodes: key -> node.
      values: the constants by their nodes' ids.
      never_negative: names of inputs that are known to be 0 or more.
    """

    nodes: dict[Hashable, Node] = field(default_factory=dict)
    values: dict[int, np.ndarray] = field(default_factory=dict)
    never_negative: set[str] = field(default_factory=set)

    @abc.abstractmethod
    def apply(
        self,
        op: str,
        args: Sequence[Node],
        params: Hashable,
        shape: Sequence[int],
        dtype: DType,
    ) -> Node:
        """The node of an operation after rewriting.

        Args:
          op: a primitive's name.
          args: operands.
          params: the primitive's parameters as a hashable value; of those that the rules look at,
            `(name, value)` pairs in a tuple.
          shape: of the result.
          dtype: of the result.
        """

    def leaf(self, name: str, shape: Sequence[int], dtype: DType) -> Node:
        """An input."""
        return self.node("leaf", (), name, tuple(shape), dtype)

    def const(self, value: Constant, dtype: DType | None = None) -> Node:
        """A constant; one whose elements are all equal is a scalar that is spread."""
        if dtype is None:
            dtype = cast(DType, getattr(value, "dtype", None) or jnp.result_type(value))
        if is_key(dtype):  # a typed random key
            data = np.asarray(jax.random.key_data(cast(jax.Array, value)))
            return self.node(
                "const", (), ("key", str(dtype), data.tobytes()), np.shape(value), dtype
            )
        array = np.asarray(value).astype(dtype)
        if array.ndim and array.size:
            first = array.reshape(-1)[0]
            if array.tobytes() == first.tobytes() * array.size:  # 0.0 == -0.0, so not by value
                return self.splat(self.const(first, dtype), array.shape)
        if array.ndim == 0 and is_float(array.dtype) and np.isnan(array):
            array = np.asarray(np.nan).astype(dtype)  # NaN is one value
        node = self.node("const", (), (str(array.dtype), array.tobytes()), array.shape, dtype)
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
        key = (op, tuple(arg.id for arg in args), params, shape, str(dtype))
        if key not in self.nodes:
            elementwise = op in ("leaf", "const", "splat") or is_elementwise(op)
            general = elementwise and all(arg.general for arg in args)
            if op == "const" and shape:
                general = False
            self.nodes[key] = Node(len(self.nodes), op, tuple(args), params, shape, dtype, general)
        return self.nodes[key]
