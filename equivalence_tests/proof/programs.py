"""From a jaxpr to a graph: calls are followed, branches become selections, loops stay whole."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend import core

from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.graph import Graph, Node

# A function under `jax.jit` with this in front of its name is left unknown: of two calls it is
# known that equal arguments give equal results, and nothing else.
UNKNOWN = "unknown_"
_CALLS = {
    "pjit": "jaxpr",
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "call_jaxpr",
}
# What says how, not what: it is left out of a node.
_HINTS = {
    "sharding",
    "out_sharding",
    "weak_type",
    "debug_info",
    "unroll",
    "_split_transpose",
}


def called(eqn: Any) -> Any | None:
    """The jaxpr that an equation calls once with its operands; None if it is no call."""
    name = eqn.primitive.name
    if name not in _CALLS:
        return None
    if name in ("pjit", "jit") and str(eqn.params.get("name", "")).startswith(UNKNOWN):
        return None
    inner = eqn.params.get(_CALLS[name])
    if inner is None:  # another version's name for it
        inner = next((value for value in eqn.params.values() if is_jaxpr(value)), None)
    return inner


def is_jaxpr(value: Any) -> bool:
    """Whether a parameter of an equation is a program."""
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr, closed or not, and its constants."""
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, ())


def run(graph: Graph, jaxpr: Any, args: Sequence[Node]) -> list[Node]:
    """The results of a program as nodes.

    Args:
      graph: where nodes are made.
      jaxpr: the program, closed or without constants.
      args: its arguments.

    Raises:
      ProofError: it calls back into Python.
    """
    return _Run(graph, 0).program(jaxpr, args)


class _Run:
    def __init__(self, graph: Graph, depth: int):
        self.graph, self.depth = graph, depth

    def program(self, jaxpr: Any, args: Sequence[Node]) -> list[Node]:
        jaxpr, consts = opened(jaxpr)
        nodes: dict[Any, Node] = {}
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            nodes[var] = self.graph.const(const)
        nodes.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Node:
            if isinstance(atom, core.Literal):
                aval: Any = atom.aval
                value = self.graph.const(atom.val, aval.dtype)
                return self.graph.splat(value, aval.shape) if not value.shape else value
            return nodes[atom]

        for eqn in jaxpr.eqns:
            results = self.equation(eqn, [read(atom) for atom in eqn.invars])
            nodes.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn: Any, args: list[Node]) -> list[Node]:
        name = eqn.primitive.name
        if "callback" in name or eqn.effects:
            what = ", ".join(map(str, eqn.effects)) or "a call of Python"
            raise ProofError(
                f"`{name}` ({what}) is in the program: what Python does there cannot be seen. Take "
                "it out of the step"
            )
        if (inner := called(eqn)) is not None:
            return self.program(inner, args)
        if name == "cond":
            return self.branches(eqn, args)
        if name in ("optimization_barrier", "device_put"):
            return args
        name = "add" if name == "add_any" else name  # what differentiation writes
        params = self.params(eqn)
        if name == "bitcast_convert_type" and _computed(args[0]):
            # A NaN's sign and payload show here, which the graph does not follow.
            params = (params, object())
        outs = [var.aval for var in eqn.outvars]
        if len(outs) == 1:
            return [self.graph.apply(name, args, params, outs[0].shape, outs[0].dtype)]
        return [
            self.graph.apply(name, args, (("result", index), params), aval.shape, aval.dtype)
            for index, aval in enumerate(outs)
        ]

    def branches(self, eqn: Any, args: list[Node]) -> list[Node]:
        which, *operands = args
        cases = [self.program(branch, operands) for branch in eqn.params["branches"]]
        if which.dtype != np.bool_ and not _is_from_bool(which):
            least, most = (self.graph.const(n, which.dtype) for n in (0, len(cases) - 1))
            which = self.graph.apply("clamp", (least, which, most), (), (), which.dtype)
        return [
            self.graph.apply("select_n", (which, *column), (), var.aval.shape, var.aval.dtype)
            for var, *column in zip(eqn.outvars, *cases, strict=True)
        ]

    def params(self, eqn: Any) -> Hashable:
        shown = []
        for name, value in sorted(eqn.params.items()):
            if name not in _HINTS and value is not None:
                shown.append((name, self.hashable(value)))
        if str(eqn.params.get("name", "")).startswith(UNKNOWN):
            shown = [("name", eqn.params["name"])]
        return tuple(shown)

    def hashable(self, value: Any) -> Hashable:
        """A parameter as a value that is equal only where the parameter is."""
        if is_jaxpr(value):
            return self.abstracted(value)
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

    def abstracted(self, jaxpr: Any) -> Hashable:
        """A program within a parameter, by what it makes of any arguments."""
        inner, _ = opened(jaxpr)
        bound = [
            self.graph.leaf(f"bound {self.depth}.{index}", var.aval.shape, var.aval.dtype)
            for index, var in enumerate(inner.invars)
        ]
        results = _Run(self.graph, self.depth + 1).program(jaxpr, bound)
        shapes = tuple((node.shape, str(node.dtype)) for node in bound)
        return ("program", shapes, tuple(node.id for node in results))


def _is_from_bool(node: Node) -> bool:
    return node.op == "convert_element_type" and node.args[0].dtype == np.bool_


def _computed(node: Node) -> bool:
    """Whether floating-point arithmetic stands behind a node."""
    if not jnp.issubdtype(node.dtype, jnp.floating):
        return False
    return node.op not in ("leaf", "const")
