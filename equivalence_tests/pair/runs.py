"""Two sides stepped side by side: in their own dtypes, and in float64."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from jax.extend import core

from equivalence_tests.compare.comparison import Comparison, compare
from equivalence_tests.compare.relation import Relation, relations
from equivalence_tests.compare.trees import first_mismatch, is_numeric, signature
from equivalence_tests.sides.adapt import EquivalenceError, on_host
from equivalence_tests.sides.in_float64 import is_same_in_float64, wide
from equivalence_tests.sides.inputs.gradients import Stream
from equivalence_tests.sides.precision import float64
from equivalence_tests.sides.same_program import NOT_PURE, is_same_program
from equivalence_tests.sides.side import Side
from equivalence_tests.sides.trajectory import driver, trajectory
from optax_bridge.cli.errors import error_text
from optax_bridge.metadata.trees import Params, PyTree, Updates

Value = TypeVar("Value")
Signature = Mapping[str, tuple[tuple[int, ...], str | None]]  # shapes and dtypes by path


def _part_moved(leaf: np.ndarray) -> float:
    """The part of a parameter's steps that changed it; 1 of one that is empty."""
    rows = leaf.reshape(len(leaf), -1)
    return float((rows[1:] != rows[:-1]).any(axis=1).mean()) if rows.size and len(rows) > 1 else 1.0


def _at_rest(params: Params, runs: Sequence[Params]) -> frozenset[str]:
    """The paths of parameters that no step of any run moves, those without elements aside."""
    leaves, after = jax.tree.leaves(params), [jax.tree.leaves(run) for run in runs]
    return frozenset(
        path
        for path, leaf, *rows in zip(signature(params, "params"), leaves, *after, strict=True)
        if np.size(leaf) and all((np.asarray(leaf) == each).all() for each in rows)
    )


class Outcome(NamedTuple):
    """The outcome of comparing two runs."""

    both: Comparison
    parameters: Comparison
    state_compared: bool
    relations: Mapping[str, Relation]
    moved: float
    at_rest: frozenset[str]
    finite: int


@dataclass(frozen=True)
class Setup:
    """Two sides and their inputs."""

    sides: Sequence[Side]
    names: tuple[str, str]
    stream: Stream
    steps: int
    closed_loop: bool

    def steps_with_poison(self, params: Params) -> dict[str, int]:
        """Returns the first step at which given gradients are not finite, for `compare`."""
        for step in () if self.closed_loop else range(self.steps):
            leaves = jax.tree.leaves(self.stream(step, params))
            if any(not np.isfinite(leaf).all() for leaf in leaves):
                return {"": step}
        return {}


def compare_sides(setup: Setup, params: Params, poisoned: Mapping[str, int]) -> Outcome:
    """Runs both sides from the same parameters and compares them."""
    names = setup.names
    runs = []
    for side, name in zip(setup.sides, names, strict=True):
        checked = _Checked(side, name, params)
        rows = functools.partial(checked.gradients, setup.stream)
        runs.append(trajectory(driver(checked.side(), "eager"), params, rows, setup.steps))
    signatures = [signature(run["state"], "state") for run in runs]
    comparable = (
        bool(signatures[0])
        and signatures[0] == signatures[1]
        and all(is_numeric(dtype) for _, dtype in signatures[0].values())
    )
    try:
        parameters = compare(*({"params": run["params"]} for run in runs), poisoned=poisoned)
    except ValueError as error:
        raise EquivalenceError(f"{names[0]} and {names[1]} side: {error}") from None
    moved = min(map(_part_moved, jax.tree.leaves(runs[0]["params"])))
    at_rest = _at_rest(params, [run["params"] for run in runs])
    finite = _finite([run["params"] for run in runs])
    if not comparable:
        return Outcome(parameters, parameters, False, {}, moved, at_rest, finite)
    # Only what comes before a number that is not finite can be related.
    until = _finite(runs)
    related = relations(*(jax.tree.map(lambda leaf: leaf[:until], run["state"]) for run in runs))
    return Outcome(
        compare(*runs, poisoned=poisoned), parameters, True, related or {}, moved, at_rest, finite
    )


class _Checked:
    """A user's side: errors and changes of structure are reported with side, step and leaf."""

    def __init__(self, side: Side, name: str, params: Params):
        self.inner, self.params = side, params
        self.name = f"{name} side ({side.name})"
        self.expected = signature(params, "params")
        self.before: Signature | None = None  # the structure of the state after the last step

        def body(state: PyTree, *inputs: PyTree) -> tuple[PyTree, PyTree]:
            state = side.step(state, *inputs)
            return state, side.view(state)

        self.plain = body
        self.body = jax.jit(body) if side.compiled else body

    def side(self) -> Side:
        """The side with the checks; its state is the number of steps, the state and its view."""
        return Side(self.name, self.init, self.step, lambda state: state[2], compiled=False)

    def init(self, params: Params) -> PyTree:
        def start() -> PyTree:
            if self.inner.compiled:
                return self.inner.init(jax.tree.map(jax.numpy.asarray, params))
            return self.inner.init(on_host(params))  # a copy: it may work in place

        state = _guard(start, f"{self.name}, before step 1")
        # A function may fill its state at its first step, as torch's optimizers do.
        if self.inner.compiled:
            first = on_host(jax.jit(self.inner.view)(state)["state"])
            first = signature(first, "state")
            self.before = {path: (shape, None) for path, (shape, _) in first.items()}
        return 0, state, None

    def gradients(self, stream: Stream, step: int, view: PyTree) -> tuple[PyTree]:
        where = f"{self.name}, step {step + 1}"
        current = self.params if view is None else view["params"]
        grads = _guard(lambda: on_host(stream(step, current)), f"{where}, its gradients")
        if wrong := first_mismatch(self.expected, signature(grads, "params")):
            raise EquivalenceError(f"{where}: gradients are not like params: {wrong}")
        return (grads,)

    def step(self, state: PyTree, grads: Updates) -> PyTree:
        count, inner, _ = state
        where = f"{self.name}, step {count + 1}"
        if count == 0 and self.inner.compiled:
            self._refuse_another_program(where, inner, grads)
        inner, view = _guard(functools.partial(self.body, inner, grads), where)
        view = on_host(view)
        if wrong := first_mismatch(self.expected, signature(view["params"], "params")):
            raise EquivalenceError(f"{where}: it changed its parameters' structure: {wrong}")
        after = signature(view["state"], "state")
        if wrong := self.before is not None and first_mismatch(self.before, after):
            raise EquivalenceError(f"{where}: it changed its state's structure: {wrong}")
        self.before = after
        return count + 1, inner, view

    def _refuse_another_program(self, where: str, state: PyTree, grads: Updates) -> None:
        """Traces the step twice, the first time as it then runs, from JAX's cache."""

        def trace(body: Callable[..., PyTree]) -> core.ClosedJaxpr:
            return _guard(lambda: jax.jit(body).trace(state, grads).jaxpr, where)

        if not is_same_program(trace(self.plain), trace(lambda *args: self.plain(*args))):
            raise EquivalenceError(
                f"{where}: {NOT_PURE}, or hand in a pair of functions init(params) and "
                "step(grads, state, params), which run as they are"
            )


def _guard(call: Callable[[], Value], where: str) -> Value:
    try:
        return call()
    except EquivalenceError:
        raise
    except Exception as error:
        raise EquivalenceError(f"{where}: {error_text(error)}") from error


def compare_in_float64(
    setup: Setup, params: Params, poisoned: Mapping[str, int]
) -> tuple[Outcome | None, str]:
    """Returns the same runs in float64, and a remark; None and the reason if a side cannot."""

    def wide_stream(step: int, current: Params) -> Updates:
        rows = setup.stream(step, current)
        return rows if setup.closed_loop else wide(rows)

    remarks = []
    for side, name in zip(setup.sides, setup.names, strict=True):
        if not side.compiled:
            remarks.append(
                f"whether the {name} side, a plain function, does something else in "
                f"{_dtypes(params)} than in float64 is not known"
            )
            continue
        if not is_same_in_float64(side, params, (on_host(setup.stream(0, params)),)):
            return None, f"the {name} side's program is another one in float64"
    with float64():
        try:
            wide_setup = replace(setup, stream=wide_stream)
            return compare_sides(wide_setup, wide(params), poisoned), "; ".join(remarks)
        except EquivalenceError as error:
            return None, str(error)


def _dtypes(params: Params) -> str:
    return ", ".join(sorted({str(leaf.dtype) for leaf in jax.tree.leaves(params)}))


def _finite(runs: PyTree) -> int:
    """The number of steps before the first at which some number is not finite."""
    floats = [
        leaf
        for leaf in jax.tree.leaves(runs)
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
    ]
    return min(
        int(np.argmin(np.append(np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1), False)))
        for leaf in floats
    )
