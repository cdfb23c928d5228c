"""The rows of the table beside JAX's own operations: signs, folded constants, rewritten nodes."""

import functools
import itertools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from equivalence_tests.proof.bits.graph import Graph
from equivalence_tests.proof.node import Node, settings_of
from equivalence_tests.proof.primitives import PRIMITIVES

NUMBERS = (-np.inf, -2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, 8.0, np.inf, np.nan)
VALUES: dict[str, Any] = {
    "float32": np.array(NUMBERS, np.float32),
    "float16": np.array(NUMBERS[1:4], np.float16),
    "int32": np.array([-7, -1, 0, 1, 2, 8], np.int32),
    "uint8": np.array([0, 2, 255], np.uint8),
    "bool": np.array([False, True]),
}
_OF_LAX = {name: f"bitwise_{name}" for name in ("and", "or", "xor", "not")}
# Further parameters of an operation, as many kinds as its rules distinguish.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "integer_pow": [{"y": y} for y in (-1, 1, 2, 3)],
    "reduce_precision": [{"exponent_bits": 5, "mantissa_bits": 2}],
    "convert_element_type": [{"new_dtype": np.dtype(name)} for name in VALUES],
}


def run(op: str, args: Any, settings: dict[str, Any]) -> jax.Array:
    """What JAX makes of operands."""
    if op == "round":
        return lax.round(args[0], lax.RoundingMethod.TO_NEAREST_EVEN)
    if op == "select_n" and args[0].dtype != np.bool_:
        raise TypeError("of indices")
    function: Any = getattr(lax, _OF_LAX.get(op, op))
    return function(*args, *settings.values())


def arity(op: str) -> int:
    """The number of operands."""
    return {"select_n": 3, "clamp": 3}.get(op) or next(
        count for count in (1, 2) if _is_taken(op, ["float32", "int32", "bool"], count)
    )


def _is_taken(op: str, dtypes: list[str], count: int, given: Any = None) -> bool:
    for dtype, settings in itertools.product(dtypes, [given] if given else SETTINGS.get(op, [{}])):
        try:
            jax.eval_shape(lambda *args, s=settings: run(op, args, s), *[VALUES[dtype]] * count)
        except TypeError:
            continue
        return True
    return False


WITH_SIGNS = [n for n, row in PRIMITIVES.items() if row.signs is not None and row.elementwise]


@pytest.mark.parametrize("op", WITH_SIGNS)
def test_what_is_said_to_be_never_negative_is_not(op: str):
    numbers = [x for x in VALUES["float32"] if np.isfinite(x)]
    signs: Any = PRIMITIVES[op].signs
    for settings, args in itertools.product(
        SETTINGS.get(op, [{}]), itertools.product(numbers, repeat=arity(op))
    ):
        if "new_dtype" in settings and settings["new_dtype"] != np.float16:
            continue
        known = [bool(x >= 0) for x in args]
        given = [args[0] > 0, *args[1:]] if op == "select_n" else args
        kinds = [types.SimpleNamespace(dtype=np.dtype(np.float32)) for _ in args]
        node: Any = types.SimpleNamespace(args=kinds, settings=settings, dtype=np.dtype("float32"))
        if signs(node, known):
            result = run(op, [jnp.asarray(x) for x in given], settings)
            assert not (jnp.isfinite(result) and result < 0), (args, result)


def evaluated(graph: Graph, node: Node, leaves: dict[str, jax.Array]) -> Any:
    """The value of a node where its leaves have these."""
    if node.op == "leaf":
        return leaves[str(node.params)]
    if node.op == "const":
        return jnp.asarray(graph.values[node.id])
    args = [evaluated(graph, arg, leaves) for arg in node.args]
    settings = settings_of(node.params) if node.params else {}
    if node.op == "convert_element_type":
        settings = {"new_dtype": node.dtype}
    size = next(iter(leaves.values())).shape
    return run(node.op, [jnp.broadcast_to(arg, size) for arg in args], settings)


def same_bits(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype:
        return False
    if a.dtype.kind == "f":
        nan = np.isnan(a) & np.isnan(b)
        a, b = np.where(nan, 0, a), np.where(nan, 0, b)
    return a.tobytes() == b.tobytes()


def operands(graph: Graph, dtype: str) -> list[Node]:
    """Leaves, constants, and nodes that rules look into."""
    kind = np.dtype(dtype)
    x, y = (graph.leaf(f"{name} {dtype}", (), kind) for name in "xy")
    signed = [] if kind.kind == "u" else ["neg", "abs"]
    more = ["not"] if dtype == "bool" else ["square", *signed]
    nodes = [x, y, *(graph.apply(op, (x,), (), (), kind) for op in more)]
    return [*nodes, *(graph.const(value, kind) for value in VALUES[dtype])]


def grid(dtype: str) -> dict[str, jax.Array]:
    """Values for the leaves of a dtype, in all pairs."""
    pairs = np.meshgrid(VALUES[dtype], VALUES[dtype])
    return {f"{n} {dtype}": jnp.asarray(p.ravel()) for n, p in zip("xy", pairs, strict=True)}


REWRITTEN = [
    n for n, row in PRIMITIVES.items() if row.elementwise and (row.rewrite or row.folds is not None)
]


@pytest.mark.parametrize("op", REWRITTEN)
def test_what_is_rewritten_or_folded_keeps_every_bit(op: str):
    count, rewritten = arity(op), 0
    for dtype, settings in itertools.product(VALUES, SETTINGS.get(op, [{}])):
        dtypes = {"select_n": ["bool", dtype, dtype], "pow": [dtype, "int32"]}.get(
            op, [dtype] * count
        )
        if op != "select_n" and not _is_taken(op, [dtype], count, settings):
            continue
        if (op, dtype) == ("clamp", "bool"):  # the emitters that tests compile with have none
            continue
        graph, leaves = Graph(), grid(dtype)
        size = len(next(iter(leaves.values())))
        for more in {*dtypes} - {dtype}:
            leaves |= {name: jnp.resize(part, (size,)) for name, part in grid(more).items()}
        kinds = [operands(graph, each)[: None if count < 3 else 7] for each in dtypes]
        for args in itertools.product(*kinds):
            node = _node(graph, op, args, settings)
            if (node.op, node.args) == (op, args):
                continue
            own = [jnp.broadcast_to(evaluated(graph, arg, leaves), size) for arg in args]
            actual = jnp.broadcast_to(evaluated(graph, node, leaves), size)
            assert same_bits(actual, run(op, own, settings)), (args, settings)
            rewritten += 1
    assert rewritten


def _node(graph: Graph, op: str, args: tuple[Node, ...], settings: dict[str, Any]) -> Node:
    return graph.apply(op, args, tuple(settings.items()), (), _dtype(op, args, settings))


def _dtype(op: str, args: tuple[Node, ...], settings: dict[str, Any]) -> np.dtype:
    shapes = tuple(jax.ShapeDtypeStruct((), arg.dtype) for arg in args)
    return _of_shapes(op, shapes, tuple(settings.items()))


@functools.cache
def _of_shapes(op: str, shapes: Any, settings: Any) -> np.dtype:
    return jax.eval_shape(lambda *args: run(op, args, dict(settings)), *shapes).dtype
