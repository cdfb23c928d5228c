"""From a jaxpr to a graph: calls are followed, branches become selections.

Short loops whose end is known beforehand are followed step by step, others stay whole.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeGuard, cast

import numpy as np
from jax.extend import core
from jax.extend.core import JaxprEqn, Literal, Var

from equivalence_tests.proof.bits.graph import Graph, Node
from equivalence_tests.proof.bits.segments import segment
from equivalence_tests.proof.dtypes import Aval, is_float
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.node import UNKNOWN, Settings
from equivalence_tests.proof.primitives import is_commutative, is_elementwise
from equivalence_tests.sides.scanned import constants_and_carry
from optax_bridge._internals import program_within

AnyJaxpr = core.Jaxpr | core.ClosedJaxpr
_UNROLLED = 16  # steps of a loop that are followed one by one
# Primitives that call the one jaxpr among their parameters.
_CALLS = ("jit", "call", "closed_call", "remat2", "custom_jvp_call", "custom_vjp_call")
# What says how, not what: it is left out of a node.
_HINTS = {
    "sharding",
    "out_sharding",
    "weak_type",
    "debug_info",
    "unroll",
    "_split_transpose",
}


def callee(eqn: JaxprEqn) -> AnyJaxpr | None:
    """The jaxpr that an equation calls once with its operands; None if it is no call."""
    if (program := program_within(eqn)) is not None:
        return program
    if eqn.primitive.name not in _CALLS or str(eqn.params.get("name", "")).startswith(UNKNOWN):
        return None
    return next(filter(is_jaxpr, eqn.params.values()), None)


def is_jaxpr(value: object) -> TypeGuard[AnyJaxpr]:
    """True if a parameter of an equation is a program."""
    return isinstance(value, core.Jaxpr | core.ClosedJaxpr)


def jaxpr_and_consts(jaxpr: AnyJaxpr) -> tuple[core.Jaxpr, Sequence[np.ndarray]]:
    """A jaxpr, closed or not, and its constants."""
    return (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, core.ClosedJaxpr) else (jaxpr, ())


def aval_of(atom: Var | Literal) -> Aval:
    """Shape and dtype of a variable or a literal."""
    return cast(Aval, atom.aval)


def run(graph: Graph, jaxpr: AnyJaxpr, args: Sequence[Node]) -> list[Node]:
    """The results of a program as nodes."""
    return _Run(graph, 0).program(jaxpr, args)


class _Run:
    def __init__(self, graph: Graph, depth: int):
        self.graph, self.depth = graph, depth

    def program(self, jaxpr: AnyJaxpr, args: Sequence[Node]) -> list[Node]:
        inner, consts = jaxpr_and_consts(jaxpr)
        nodes: dict[Var, Node] = {}
        for var, const in zip(inner.constvars, consts, strict=True):
            nodes[var] = self.graph.const(const)
        nodes.update(zip(inner.invars, args, strict=True))

        def read(atom: Var | Literal) -> Node:
            if isinstance(atom, Literal):
                aval = aval_of(atom)
                value = self.graph.const(atom.val, aval.dtype)
                return self.graph.splat(value, aval.shape) if not value.shape else value
            return nodes[atom]

        for eqn in inner.eqns:
            results = self.equation(eqn, [read(atom) for atom in eqn.invars])
            nodes.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in inner.outvars]

    def equation(self, eqn: JaxprEqn, args: list[Node]) -> list[Node]:
        name = eqn.primitive.name
        if "callback" in name or eqn.effects:
            what = ", ".join(map(str, eqn.effects)) or "a call of Python"
            raise ProofError(
                f"`{name}` ({what}) is in the program: what Python does there cannot be seen. Take "
                "it out of the step"
            )
        if (inner := callee(eqn)) is not None:
            return self.program(inner, args)
        if name == "cond":
            return self.branches(eqn, args)
        if name == "scan" and eqn.params["length"] <= _UNROLLED:
            return self.scan(eqn, args)
        if name == "while" and (results := self.loop(eqn.params, args)) is not None:
            return results
        if name in ("optimization_barrier", "device_put"):
            return args
        if name == "stack":
            return [_stack(self.graph, args, eqn.params["axis"], aval_of(eqn.outvars[0]).shape)]
        if name == "slice" and set(eqn.params["strides"] or (1,)) == {1}:
            return [_slice_of(self.graph, args[0], eqn.params)]
        if name == "dynamic_slice" and (cut := _static_slice(self.graph, args, eqn)) is not None:
            return [cut]
        if name == "unstack" and eqn.params["axis"] == 0:  # rows one by one, since JAX 0.12
            return [_row(self.graph, args[0], number) for number in range(len(eqn.outvars))]
        if name == "split":
            return list(_split(self.graph, args[0], eqn.params["axis"], eqn.params["sizes"]))
        name = "add" if name == "add_any" else name  # what differentiation writes
        params = self.params(eqn)
        if name == "bitcast_convert_type" and _is_computed(args[0]):
            # A NaN's sign and payload show here, which the graph does not follow.
            params = (params, object())
        if name == "rng_uniform":  # draws another number each time, and is no function
            params = (params, object())
        outs = [aval_of(var) for var in eqn.outvars]
        if len(outs) == 1:
            return [self.graph.apply(name, args, params, outs[0].shape, outs[0].dtype)]
        return [
            self.graph.apply(name, args, (("result", index), params), aval.shape, aval.dtype)
            for index, aval in enumerate(outs)
        ]

    def branches(self, eqn: JaxprEqn, args: list[Node]) -> list[Node]:
        which, *operands = args
        # `lax.switch` has clamped the index, which is an operation of its own.
        cases = [self.program(branch, operands) for branch in eqn.params["branches"]]
        return [
            self.graph.apply("select_n", (which, *column), (), aval.shape, aval.dtype)
            for aval, *column in zip(map(aval_of, eqn.outvars), *cases, strict=True)
        ]

    def scan(self, eqn: JaxprEqn, args: list[Node]) -> list[Node]:
        """A short loop, step by step."""
        params, graph = eqn.params, self.graph
        n, m = constants_and_carry(params)
        consts, state, rows = args[:n], args[n : n + m], args[n + m :]
        order = range(params["length"])
        seen: list[list[Node]] = []
        for number in reversed(order) if params["reverse"] else order:
            here = [_row(graph, array, number) for array in rows]
            results = self.program(params["jaxpr"], [*consts, *state, *here])
            state = results[:m]
            seen.append(results[m:])
        if not seen:
            rows = [np.zeros(aval.shape, aval.dtype) for aval in map(aval_of, eqn.outvars[m:])]
            return [*state, *map(graph.const, rows)]
        columns = zip(*(seen[::-1] if params["reverse"] else seen), strict=True)
        stacked = [_stack_rows(graph, column) for column in columns]
        return [*state, *stacked]

    def loop(self, params: Settings, args: list[Node]) -> list[Node] | None:
        """A loop whose end is known beforehand, step by step; None if it is not."""
        n, m = params["cond_nconsts"], params["body_nconsts"]
        of_cond, of_body, state = args[:n], args[n : n + m], args[n + m :]
        for _ in range(_UNROLLED):
            (again,) = self.program(params["cond_jaxpr"], [*of_cond, *state])
            goes_on = self.graph.scalar(again)
            if goes_on is None:
                return None
            if not goes_on:
                return state
            state = self.program(params["body_jaxpr"], [*of_body, *state])
        return None

    def params(self, eqn: JaxprEqn) -> Hashable:
        shown = []
        for name, value in sorted(eqn.params.items()):
            if name not in _HINTS and value is not None:
                shown.append((name, self.hashable(value)))
        if str(eqn.params.get("name", "")).startswith(UNKNOWN):
            shown = [("name", eqn.params["name"])]
        return tuple(shown)

    def hashable(self, value: object) -> Hashable:
        """A parameter as a value that is equal only where the parameter is."""
        if is_jaxpr(value):
            return self.abstract_program(value)
        if isinstance(value, list | tuple):
            return tuple(map(self.hashable, value))
        if isinstance(value, dict):
            return ("dict", tuple((key, self.hashable(item)) for key, item in value.items()))
        if isinstance(value, np.integer | np.bool_):
            return value.item()
        if isinstance(value, np.ndarray | np.generic):
            return ("array", str(value.dtype), np.shape(value), value.tobytes())
        try:
            hash(value)
        except TypeError:
            return object()  # equal to nothing
        return ("float", repr(value)) if isinstance(value, float) else value

    def abstract_program(self, jaxpr: AnyJaxpr) -> Hashable:
        """A program within a parameter, by what it makes of any arguments."""
        inner, _ = jaxpr_and_consts(jaxpr)
        bound = [
            self.graph.leaf(f"bound {self.depth}.{index}", aval.shape, aval.dtype)
            for index, aval in enumerate(map(aval_of, inner.invars))
        ]
        results = _Run(self.graph, self.depth + 1).program(jaxpr, bound)
        shapes = tuple((node.shape, str(node.dtype)) for node in bound)
        return ("program", shapes, tuple(node.id for node in results))


def _row(graph: Graph, array: Node, number: int) -> Node:
    """One row of an array."""
    shape = array.shape
    limits = (number + 1, *shape[1:])
    params = (("limit_indices", limits), ("start_indices", (number, *(0 for _ in shape[1:]))))
    row = graph.apply("slice", (array,), params, (1, *shape[1:]), array.dtype)
    return graph.apply("reshape", (row,), (), shape[1:], array.dtype)


def _split(graph: Graph, array: Node, axis: int, sizes: Sequence[int]) -> Iterator[Node]:
    """The parts of an array, one behind the other along an axis."""
    start = 0
    for size in map(int, sizes):  # they may be NumPy's, which are no JSON
        yield segment(graph, array, axis, start, start + size)
        start += size


def _slice_of(graph: Graph, array: Node, params: Settings) -> Node:
    """A slice: of arrays that stand one behind the other perhaps one of them."""
    rows = zip(params["start_indices"], params["limit_indices"], strict=True)
    for axis, (begin, end) in enumerate(rows):
        array = segment(graph, array, axis, int(begin), int(end))
    return array


def _static_slice(graph: Graph, args: Sequence[Node], eqn: JaxprEqn) -> Node | None:
    """A slice that starts at indices which are constants; None if it does not."""
    array, *starts = args
    sizes, constants = eqn.params["slice_sizes"], [graph.scalar(start) for start in starts]
    if None in constants or len(constants) != len(array.shape):
        return None
    # Indices beyond an end are moved to it.
    rows = zip(constants, array.shape, sizes, strict=True)
    begins = [min(max(int(begin or 0), 0), axis - size) for begin, axis, size in rows]
    ends = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    return _slice_of(graph, array, {"start_indices": begins, "limit_indices": ends})


def _stack(graph: Graph, arrays: Sequence[Node], axis: int, shape: tuple[int, ...]) -> Node:
    """Arrays along a new axis."""
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    expanded = [graph.apply("reshape", (node,), (), one, node.dtype) for node in arrays]
    return graph.apply("concatenate", expanded, (("dimension", axis),), shape, arrays[0].dtype)


def _stack_rows(graph: Graph, rows: Sequence[Node]) -> Node:
    """Rows as one array, by one operation on whole arrays where each row has the same one."""
    first, shape = rows[0], (len(rows), *rows[0].shape)
    if all(row is first for row in rows):
        dims = (("broadcast_dimensions", tuple(range(1, len(shape)))),)
        return graph.apply("broadcast_in_dim", (first,), dims, shape, first.dtype)
    same_operation = is_elementwise(first.op) and all(
        (row.op, row.params, row.shape, row.dtype, len(row.args))
        == (first.op, first.params, first.shape, first.dtype, len(first.args))
        for row in rows
    )
    if same_operation:
        columns = list(zip(*map(_operand_order(rows), rows), strict=True))
        args = [
            column[0]
            if not column[0].shape and all(arg is column[0] for arg in column)
            else _stack_rows(graph, column)
            for column in columns
        ]
        if all(arg.shape in ((), shape) for arg in args):
            return graph.apply(first.op, args, first.params, shape, first.dtype)
    array = _rows_of(rows)
    if array is not None:
        return array
    return _stack(graph, rows, 0, shape)


def _operand_order(rows: Sequence[Node]) -> Callable[[Node], Sequence[Node]]:
    """The operands of a row, those common to all rows first."""
    if not is_commutative(rows[0].op):
        return lambda row: row.args
    common = set.intersection(*({arg.id for arg in row.args} for row in rows))
    return lambda row: sorted(row.args, key=lambda arg: arg.id not in common)


def _rows_of(rows: Sequence[Node]) -> Node | None:
    """The array of which these are all rows in order; None of other rows."""
    array = None
    for number, row in enumerate(rows):
        cut = row.args[0] if row.op == "reshape" else row
        if cut.op != "slice" or array not in (None, cut.args[0]):
            return None
        array = cut.args[0]
        if array.shape != (len(rows), *row.shape) or cut is not _cut(array, number, cut):
            return None
    return array


def _cut(array: Node, number: int, cut: Node) -> Node | None:
    """The slice, if it is that row of the array."""
    start = (number, *(0 for _ in array.shape[1:]))
    settings = cut.settings
    is_row = tuple(settings["start_indices"]) == start and cut.shape == (1, *array.shape[1:])
    return cut if is_row and settings.get("strides") is None else None


def _is_computed(node: Node) -> bool:
    """True if floating-point arithmetic stands behind a node."""
    return is_float(node.dtype) and node.op not in ("leaf", "const")
