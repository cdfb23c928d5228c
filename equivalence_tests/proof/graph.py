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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
_SAME = frozenset(
    ["copy", "copy_p", "optimization_barrier", "stop_gradient", "device_put", "sharding_constraint"]
)
COMMUTATIVE = frozenset(("add", "mul", "eq", "ne", "and", "or", "xor"))
_MIRRORED = {"gt": "lt", "ge": "le"}


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
    dtype: Any
    general: bool

    def __repr__(self) -> str:
        return f"%{self.id}:{self.op}"

    @property
    def settings(self) -> dict[str, Any]:
        """The primitive's parameters by their names."""
        pairs: Any = self.params
        return dict(pairs)


@dataclass
class Graph:
    """Nodes by what they are.

    Attributes:
      nodes: key -> node.
      values: the constants by their nodes' ids.
      never_negative: names of inputs that are known to be 0 or more.
    """

    nodes: dict[Hashable, Node] = field(default_factory=dict)
    values: dict[int, np.ndarray] = field(default_factory=dict)
    never_negative: set[str] = field(default_factory=set)

    def leaf(self, name: str, shape: Sequence[int], dtype: Any) -> Node:
        """An input."""
        return self._node("leaf", (), name, tuple(shape), dtype)

    def const(self, value: Any, dtype: Any = None) -> Node:
        """A constant; one whose elements are all equal is a scalar that is spread."""
        if dtype is None:
            dtype = getattr(value, "dtype", None) or jnp.result_type(value)
        if _is_extended(dtype):  # a typed random key
            data = np.asarray(jax.random.key_data(value))
            return self._node(
                "const", (), ("key", str(dtype), data.tobytes()), np.shape(value), dtype
            )
        array = np.asarray(value).astype(dtype)
        if array.ndim and array.size:
            first = array.reshape(-1)[0]
            if array.tobytes() == first.tobytes() * array.size:  # 0.0 == -0.0, so not by value
                return self.splat(self.const(first, dtype), array.shape)
        if array.ndim == 0 and jnp.issubdtype(array.dtype, jnp.floating) and np.isnan(array):
            array = np.asarray(np.nan).astype(dtype)  # NaN is one value
        node = self._node("const", (), (str(array.dtype), array.tobytes()), array.shape, dtype)
        self.values[node.id] = array
        return node

    def splat(self, scalar: Node, shape: Sequence[int]) -> Node:
        """A scalar spread over a shape."""
        shape = tuple(shape)
        return self._node("splat", (scalar,), (), shape, scalar.dtype) if shape else scalar

    def scalar(self, node: Node) -> float | int | bool | None:
        """The number that a node is everywhere; None if it is no constant."""
        if node.op == "splat":
            node = node.args[0]
        if node.op != "const" or node.shape or node.id not in self.values:
            return None
        return self.values[node.id].item()

    def apply(
        self, op: str, args: Sequence[Node], params: Hashable, shape: Sequence[int], dtype: Any
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
        shape, args = tuple(shape), tuple(args)
        if op in _SAME:
            return args[0]
        if op in _SHAPED:
            return _SHAPED[op](self, args, params, shape, dtype)
        if op not in ELEMENTWISE:
            return self._node(op, args, params, shape, dtype)
        if shape and all(not arg.shape or arg.op == "splat" for arg in args):
            inner = [arg.args[0] if arg.op == "splat" else arg for arg in args]
            return self.splat(self.apply(op, inner, params, (), dtype), shape)
        args = tuple(arg.args[0] if arg.op == "splat" else self._spread(arg, shape) for arg in args)
        return _elementwise(self, op, args, params, shape, dtype)

    def _spread(self, node: Node, shape: tuple[int, ...]) -> Node:
        """An operand in the shape of the result: JAX leaves axes of length 1 as they are."""
        if node.shape in ((), shape):
            return node
        dims = (("broadcast_dimensions", tuple(range(len(shape)))),)
        return self.apply("broadcast_in_dim", (node,), dims, shape, node.dtype)

    def again(self, node: Node, args: Sequence[Node]) -> Node:
        """The same operation of other operands."""
        if all(new is old for new, old in zip(args, node.args, strict=True)):
            return node
        if node.op == "splat":
            return self.splat(args[0], node.shape)
        return self.apply(node.op, args, node.params, node.shape, node.dtype)

    def with_inputs(self, known: Mapping[int, Node], *nodes: Node) -> list[Node]:
        """Nodes with others in the place of inputs.

        Args:
          known: an input's id -> what replaces it.
          nodes: what is computed anew.
        """
        found = dict(known)
        for node in cone(*nodes):
            if node.id not in found:
                found[node.id] = self.again(node, [found[arg.id] for arg in node.args])
        return [found[node.id] for node in nodes]

    def _node(self, op: str, args: Any, params: Hashable, shape: Any, dtype: Any) -> Node:
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
    found: dict[int, Node] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.id not in found:
            found[node.id] = node
            waiting += node.args
    return [found[number] for number in sorted(found)]


def _elementwise(g: Graph, op: str, args: Any, params: Any, shape: Any, dtype: Any) -> Node:
    def again(op: str, *args: Node, params: Any = ()) -> Node:
        return g.apply(op, args, params, shape, dtype)

    def fitted(node: Node) -> Node:
        return g.splat(node, shape) if node.shape != shape else node

    floating = jnp.issubdtype(dtype, jnp.floating)
    whole = jnp.issubdtype(dtype, jnp.integer)
    if params and op in ("add", "sub", "mul", "div", "neg"):
        return g._node(op, args, params, shape, dtype)  # of a kind that the rules do not know
    if (folded := _folded(g, op, args, params, dtype)) is not None:
        return folded
    if op in _MIRRORED:
        return again(_MIRRORED[op], args[1], args[0])
    if op == "sub" and (floating or whole):
        negative = g.apply("neg", (args[1],), (), args[1].shape, dtype)
        return again("add", args[0], negative)
    if op == "pow" and floating and args[1].dtype != dtype:  # so JAX lowers a whole exponent
        exponent = g.apply("convert_element_type", (args[1],), (), args[1].shape, dtype)
        return again("pow", args[0], exponent)
    if op in ("square", "integer_pow") and (floating or whole):
        power = 2 if op == "square" else dict(params)["y"]
        if power == 1:
            return args[0]
        if power == 2:
            return again("mul", args[0], args[0])
    if op == "convert_element_type":
        return _converted(g, args[0], dtype, shape)
    if op == "neg" and args[0].op == "neg":
        return args[0].args[0]
    if op == "abs" and args[0].op == "neg" and floating:
        return again("abs", args[0].args[0])
    if op == "abs" and floating and _is_square(args[0]):
        return args[0]
    if op == "not" and args[0].op == "not":
        return args[0].args[0]
    if op == "select_n":
        return _selected(g, args, shape, dtype)
    if op in ("mul", "div") and floating:
        stripped, flips = zip(*(_sign_off(g, arg) for arg in args), strict=True)
        if any(flips):
            inner = again(op, *stripped)
            return again("neg", inner) if sum(flips) % 2 else inner
        first, second = (g.scalar(arg) for arg in args)
        if second == 1:
            return fitted(args[0])
        if op == "mul" and first == 1:
            return fitted(args[1])
        if op == "div" and second is not None and _is_power_of_two(second, dtype):
            return again("mul", args[0], g.const(1 / second, dtype))
    if op == "add":
        for here, there in (args, args[::-1]):
            number = g.scalar(here)
            if number == 0 and (whole or (floating and np.signbit(number))):
                return fitted(there)
        if args[0] is args[1] and (floating or whole):
            return again("mul", args[0], g.const(2, dtype))
        if whole:  # exact, also where it wraps round
            for here, there in (args, args[::-1]):
                number = g.scalar(here)
                if number is not None and there.op == "add":
                    for inner, rest in (there.args, there.args[::-1]):
                        if g.scalar(inner) is not None:
                            return again("add", rest, again("add", here, inner))
    if op == "mul" and whole:
        for here, there in (args, args[::-1]):
            if g.scalar(here) == 1:
                return fitted(there)
    ordered = op in COMMUTATIVE or (op in ("max", "min") and not floating)
    if ordered and not jnp.issubdtype(args[0].dtype, jnp.complexfloating):
        args = tuple(sorted(args, key=lambda arg: arg.id))
    if op == "and" or op == "or":
        if args[0] is args[1]:
            return args[0]
        for here, there in (args, args[::-1]):
            if (known := g.scalar(here)) is not None and dtype == np.bool_:
                return fitted(there) if known == (op == "and") else fitted(here)
    return g._node(op, args, params, shape, dtype)


def _selected(g: Graph, args: Any, shape: Any, dtype: Any) -> Node:
    """`select_n`, whose first operand says which of the others it is."""
    which, *cases = args
    if all(case is cases[0] for case in cases):
        return g.splat(cases[0], shape) if cases[0].shape != shape else cases[0]
    known = g.scalar(which)
    if known is not None and 0 <= int(known) < len(cases):
        chosen = cases[int(known)]
        return g.splat(chosen, shape) if chosen.shape != shape else chosen
    if which.op == "convert_element_type" and which.args[0].dtype == np.bool_ and len(cases) == 2:
        return g.apply("select_n", (which.args[0], *cases), (), shape, dtype)
    if which.op == "not" and which.dtype == np.bool_:
        return g.apply("select_n", (which.args[0], *cases[::-1]), (), shape, dtype)
    return g._node("select_n", tuple(args), (), shape, dtype)


def _converted(g: Graph, arg: Node, dtype: Any, shape: Any) -> Node:
    if arg.dtype == dtype:
        return arg
    if arg.op == "convert_element_type":  # wider, and back
        inner = arg.args[0]
        if inner.dtype == dtype and _keeps(inner.dtype, arg.dtype):
            return inner
        if _keeps(inner.dtype, arg.dtype) and _keeps(arg.dtype, dtype):
            return _converted(g, inner, dtype, shape)
    if arg.op == "neg" and all(jnp.issubdtype(d, jnp.floating) for d in (arg.dtype, dtype)):
        inner = g.apply("convert_element_type", (arg.args[0],), (), shape, dtype)
        return g.apply("neg", (inner,), (), shape, dtype)
    return g._node("convert_element_type", (arg,), (), shape, dtype)


def _keeps(narrow: Any, wide: Any) -> bool:
    """Whether every value of a floating-point or boolean dtype is one of the other."""
    if narrow == np.bool_:
        return jnp.issubdtype(wide, jnp.number)
    both = all(jnp.issubdtype(dtype, jnp.floating) for dtype in (narrow, wide))
    if not both or jnp.finfo(wide).bits <= jnp.finfo(narrow).bits:
        return False
    return (
        jnp.finfo(wide).nmant >= jnp.finfo(narrow).nmant
        and jnp.finfo(wide).maxexp >= jnp.finfo(narrow).maxexp
        and jnp.finfo(wide).minexp <= jnp.finfo(narrow).minexp
    )


def _folded(g: Graph, op: str, args: Any, params: Any, dtype: Any) -> Node | None:
    """The constant that an operation of constants gives, where IEEE arithmetic says which."""
    if op not in _FOLDS or not args or any(arg.shape for arg in args):
        return None
    if any(arg.op != "const" or arg.id not in g.values for arg in args):
        return None
    values = [g.values[arg.id] for arg in args]
    if op in _ROUNDS and jnp.issubdtype(dtype, jnp.floating):
        return None
    if op in ("rem", "div") and (values[1] == 0 or max(map(abs, map(int, values))) > 2**31):
        return None
    if op == "not" and dtype != np.bool_:
        return None
    if op == "convert_element_type":
        from_float = jnp.issubdtype(args[0].dtype, jnp.floating)
        if from_float and not jnp.issubdtype(dtype, jnp.floating):
            return None  # what does not fit is nobody's rule
    if any(jnp.issubdtype(arg.dtype, jnp.complexfloating) for arg in args):
        return None
    with np.errstate(all="ignore"):
        return g.const(np.asarray(_FOLDS[op](*values)).astype(dtype), dtype)


# Sums, products and quotients of floating-point constants stay as they are written: over the reals
# they are meant without the rounding.
_FOLDS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "not": np.logical_not,
    "convert_element_type": lambda value: value,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "max": np.maximum,
    "min": np.minimum,
    "rem": np.fmod,
    "div": lambda a, b: np.trunc(a / b) if b else np.zeros_like(a),
    "sign": np.sign,
    "clamp": lambda low, value, high: np.minimum(np.maximum(value, low), high),
}
_ROUNDS = ("add", "sub", "mul", "div", "rem", "max", "min", "sign", "clamp")


def _sign_off(g: Graph, node: Node) -> tuple[Node, bool]:
    """A factor without its sign, and whether it had one."""
    if node.op == "neg":
        return node.args[0], True
    number = g.scalar(node)
    if number is not None and not np.isnan(number) and np.signbit(number):
        return g.apply("neg", (node,), (), node.shape, node.dtype), True
    return node, False


def _is_square(node: Node) -> bool:
    return node.op == "mul" and node.args[0] is node.args[1]


def _is_power_of_two(value: float, dtype: Any) -> bool:
    info = jnp.finfo(dtype)
    if not np.isfinite(value) or value == 0:
        return False
    within = float(info.tiny) <= abs(value) <= 1 / float(info.tiny)
    return within and np.frexp(abs(value))[0] == 0.5 and float(info.tiny) <= 1 / abs(value)


def _broadcast(g: Graph, args: Any, params: Any, shape: Any, dtype: Any) -> Node:
    (arg,) = args[:1]
    if len(args) > 1:
        return g._node("broadcast_in_dim", args, params, shape, dtype)
    if not arg.shape:
        return g.splat(arg, shape)
    if arg.op == "splat":
        return g.splat(arg.args[0], shape)
    dims = tuple(dict(params)["broadcast_dimensions"])
    if arg.shape == shape and dims == tuple(range(len(shape))):
        return arg
    if int(np.prod(arg.shape)) == int(np.prod(shape)) and list(dims) == sorted(dims):
        return _reshape(g, args, (), shape, dtype)
    return g._node("broadcast_in_dim", args, (("broadcast_dimensions", dims),), shape, dtype)


def _reshape(g: Graph, args: Any, params: Any, shape: Any, dtype: Any) -> Node:
    (arg,) = args[:1]
    order = dict(params).get("dimensions")
    if len(args) > 1:
        return g._node("reshape", args, params, shape, dtype)
    if order is not None:  # it is read along its axes in another order
        moved = tuple(arg.shape[axis] for axis in order)
        arg = _transpose(g, args, (("permutation", order),), moved, dtype)
    if arg.op == "reshape" and len(arg.args) == 1:
        arg = arg.args[0]
    if arg.shape == shape:
        return arg
    if arg.op == "splat":
        return g.splat(arg.args[0], shape)
    if not arg.shape:
        return g.splat(arg, shape)
    return g._node("reshape", (arg,), (), shape, dtype)


def _same_order(g: Graph, args: Any, params: Any, shape: Any, dtype: Any) -> Node:
    del params  # they name axes of length 1
    return _reshape(g, args, (), shape, dtype)


def _transpose(g: Graph, args: Any, params: Any, shape: Any, dtype: Any) -> Node:
    (arg,) = args
    order = tuple(dict(params)["permutation"])
    if arg.op == "splat":
        return g.splat(arg.args[0], shape)
    if arg.op == "transpose":
        inner = arg.settings["permutation"]
        order, arg = tuple(inner[axis] for axis in order), arg.args[0]
    if order == tuple(range(len(order))):
        return arg
    return g._node("transpose", (arg,), (("permutation", order),), shape, dtype)


_SHAPED = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _same_order,
    "expand_dims": _same_order,
    "transpose": _transpose,
}


def _is_extended(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)
