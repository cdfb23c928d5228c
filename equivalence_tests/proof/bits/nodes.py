"""Array operations as nodes of a graph: what is computed alike is one node."""

import abc
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from equivalence_tests.proof.dtypes import DType, is_float, is_key

Constant = ArrayLike | jax.Array  # an array of typed random keys is JAX's
# Operations that treat every element alike; their operands have one shape, or are scalars.
ELEMENTWISE = frozenset([
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil",
    "clamp", "convert_element_type", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv",
    "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "lgamma",
    "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or",
    "population_count", "pow", "reduce_precision", "rem", "round", "rsqrt", "select_n",
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt",
    "square", "sub", "tan", "tanh", "xor",
])  # fmt: skip

COMMUTATIVE = frozenset(("add", "mul", "eq", "ne", "and", "or", "xor"))


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One array value.

    Attributes:
      id: number within its graph; operands have smaller ones.
      op: name of the operation: a primitive's, or `leaf`, `const`, `splat` (a scalar spread).
      args: operands.
      params: what else decides the value.
      shape: of the array.
      dtype: of the array.
      general: whether every element is computed alike, from elements at the same place and scalars:
        what is proved of it holds for all shapes.
    """

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
    def settings(self) -> dict[str, Any]:
        """The primitive's parameters by their names."""
        return settings_of(self.params)


def settings_of(params: Hashable) -> dict[str, Any]:
    """A primitive's parameters, `(name, value)` pairs, by their names."""
    return dict(cast(tuple[tuple[str, Any], ...], params))


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
            alike = op in ("leaf", "const", "splat") or op in ELEMENTWISE
            general = alike and all(arg.general for arg in args)
            if op == "const" and shape:
                general = False
            self.nodes[key] = Node(len(self.nodes), op, tuple(args), params, shape, dtype, general)
        return self.nodes[key]


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
