"""`check_equivalence`: are two optimizers the same? For anyone's pair, at the desk and in CI."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from equivalence_tests import problems
from equivalence_tests.adapt import (
    EquivalenceError,
    SideLike,
    Stepper,
    adapted,
    legacy_state,
    on_host,
)
from equivalence_tests.comparison import NOTICEABLE, Comparison, compare
from equivalence_tests.pair_report import Report
from equivalence_tests.precision import float64, pinned
from equivalence_tests.trees import first_mismatch, signature

# Gradients of shape (steps, ...) at each leaf; or the name of a stream; or a function of the step
# (from 0) and the parameters, which each side then calls with its own parameters: a closed loop.
Gradients = Any


def check_equivalence(
    left: SideLike,
    right: SideLike,
    params: Any,
    *,
    gradients: Gradients = "normal",
    steps: int | None = None,
    bound: float = NOTICEABLE,
    decide: bool = True,
    names: tuple[str, str] = ("left", "right"),
) -> Report:
    """Runs two optimizers beside one another and says whether they are the same.

    Each side may be a legacy definition or optimizer, an `optax.GradientTransformation`, a
    `TrainState` (its optimizer state is kept, its parameters are replaced), or a pair of functions
    `init(params) -> state` and `step(grads, state, params) -> (params, state)`, which run as they
    are, so PyTorch's fit as well. Parameters are compared after every step; so is the state where
    both sides can show it in one layout.

        report = check_equivalence(optax.adam(1e-3), legacy_optim.Adam(1e-3), params)
        assert report.verdict is not Verdict.DIFFERENT, report

    Args:
      left: one side.
      right: the other.
      params: initial parameters, any pytree of floating-point arrays.
      gradients: a tree like `params` with a leading axis of steps; or `"normal"`, `"hostile"` or
        `"poisoned"` (see `problems.gradients`); or `function(step, params) -> gradients`, with
        which each side follows its own gradients.
      steps: number of steps; by default as many as `gradients` has, else 100.
      bound: the distance that still counts as rounding, in ULP at the tensor's scale, for 100
        steps.
      decide: whether both sides run in float64 as well where they are not identical. Rounding
        shrinks with the precision, another algorithm does not.
      names: what messages and the report call the sides.

    Returns:
      The report: print it, or ask its `verdict`.

    Raises:
      EquivalenceError: something does not fit; the message names side, step and leaf.
    """
    params = _checked_params(params)
    steps = _steps(gradients, steps)
    stream = _stream(gradients, params, steps)
    sides = (_named(left, names[0]), _named(right, names[1]))
    with pinned() as what:
        comparison, state = _compared(sides, names, params, stream, steps)
        wide, why = None, ""
        if decide and not comparison.identical:
            wide, why = _in_float64(sides, names, params, gradients, steps)
    return Report(
        names=names,
        sources=(sides[0].source, sides[1].source),
        kinds=(sides[0].kind, sides[1].kind),
        steps=steps,
        bound=bound,
        comparison=comparison,
        state_compared=state,
        wide=wide,
        why_not_wide=why,
        closed_loop=callable(gradients),
        pinned=what,
    )


def _named(side: SideLike, name: str) -> Stepper:
    try:
        return adapted(side)
    except EquivalenceError as error:
        raise EquivalenceError(f"{name} side: {error}") from None


def _checked_params(params: Any) -> Any:
    host = on_host(params)
    found = signature(host, "params")
    if not found:
        raise EquivalenceError("params: found no leaf; expected a tree of floating-point arrays")
    for path, (_, dtype) in found.items():
        if not jax.numpy.issubdtype(dtype, jax.numpy.floating):
            raise EquivalenceError(
                f"{path}: expected a floating-point dtype, found {dtype}; leave out what is not "
                "optimized"
            )
    return host


def _steps(gradients: Gradients, steps: int | None) -> int:
    if steps is not None and steps < 1:
        raise EquivalenceError(f"steps is {steps}; expected at least 1")
    if callable(gradients) or isinstance(gradients, str):
        return 100 if steps is None else steps
    lengths = {
        jax.tree_util.keystr(path): np.shape(leaf)[0] if np.ndim(leaf) else 0
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradients)
    }
    shortest = min(lengths.values(), default=0)
    path = next((path for path, length in lengths.items() if length == shortest), "")
    if shortest < (steps or 1):
        raise EquivalenceError(
            f"gradients{path}: has {shortest} steps along its first axis, expected {steps or 1} or "
            "more"
        )
    return shortest if steps is None else steps


def _stream(gradients: Gradients, params: Any, steps: int) -> Callable[[int, Any], Any]:
    """The gradients as a function of step and parameters."""
    if callable(gradients):
        return gradients
    if isinstance(gradients, str):
        if gradients not in problems.STREAMS:
            raise EquivalenceError(
                f"gradients={gradients!r}: expected one of {', '.join(problems.STREAMS)}, a tree, "
                "or a function of step and parameters"
            )
        gradients = problems.gradients(params, steps, gradients)
    tree = on_host(gradients)
    wanted = {
        path.replace("params", "gradients", 1): kind
        for path, kind in signature(params, "params").items()
    }
    one = jax.tree.map(lambda leaf: leaf[0], tree)
    if wrong := first_mismatch(wanted, signature(one, "gradients")):
        raise EquivalenceError(f"{wrong}; gradients must be like params, one for each step")
    return lambda step, _: jax.tree.map(lambda leaf: leaf[step], tree)


def _compared(
    sides: tuple[Stepper, Stepper], names: tuple[str, str], params: Any, stream: Any, steps: int
) -> tuple[Comparison, bool]:
    """The comparison, and whether it covers the state."""
    definition = sides[0].definition or sides[1].definition
    runs = [
        _trajectory(side, name, params, stream, steps, definition)
        for side, name in zip(sides, names, strict=True)
    ]
    signatures = [signature(run["state"], "state") for run in runs]
    comparable = (
        bool(signatures[0])
        and signatures[0] == signatures[1]
        and all(dtype != "object" for _, dtype in signatures[0].values())
    )
    if not comparable:
        runs = [{"params": run["params"]} for run in runs]
    try:
        return compare(*runs), comparable
    except ValueError as error:
        raise EquivalenceError(f"{names[0]} and {names[1]} side: {error}") from None


def _trajectory(
    side: Stepper, name: str, params: Any, stream: Any, steps: int, definition: Any
) -> dict[str, Any]:
    """Parameters and state after each step, stacked."""

    def show(held: Any) -> dict[str, Any]:
        shown, state = side.show(held)
        if definition is not None and side.definition is None and side.compiled:
            state = legacy_state(definition, shown, state)
        return {"params": shown, "state": state}

    def body(held: Any, grads: Any) -> tuple[Any, Any]:
        held = side.step(held, grads)
        return held, show(held)

    take = jax.jit(body) if side.compiled else body
    inputs = jax.tree.map(jax.numpy.asarray, params) if side.compiled else params
    held = _guarded(lambda: side.start(inputs), f"{name} side ({side.kind}), before step 1")
    expected, before, seen = signature(params, "params"), None, []
    current = params
    for step in range(steps):
        where = f"{name} side ({side.kind}), step {step + 1}"
        grads = _guarded(functools.partial(stream, step, current), f"{where}, its gradients")
        if wrong := first_mismatch(expected, signature(grads, "params")):
            raise EquivalenceError(f"{where}: gradients are not like params: {wrong}")
        held, view = _guarded(functools.partial(take, held, grads), where)
        view = on_host(view)
        if wrong := first_mismatch(expected, signature(view["params"], "params")):
            raise EquivalenceError(f"{where}: it changed its parameters' structure: {wrong}")
        state = signature(view["state"], "state")
        if wrong := before is not None and first_mismatch(before, state):
            raise EquivalenceError(f"{where}: it changed its state's structure: {wrong}")
        before, current = state, view["params"]
        seen.append(view)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *seen)
    return {"params": stacked["params"], "state": stacked["state"]}


def _guarded(call: Callable[[], Any], where: str) -> Any:
    try:
        return call()
    except EquivalenceError:
        raise
    except Exception as error:
        raise EquivalenceError(f"{where}: raised {type(error).__name__}: {error}") from error


def _in_float64(
    sides: tuple[Stepper, Stepper],
    names: tuple[str, str],
    params: Any,
    gradients: Gradients,
    steps: int,
) -> tuple[Comparison | None, str]:
    """The same runs in float64; None and the reason if a side cannot."""
    with float64():
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        if not callable(gradients):
            narrow = _stream(gradients, params, steps)
            rows = [on_host(narrow(step, params)) for step in range(steps)]
            gradients = jax.tree.map(lambda *leaves: np.stack(leaves).astype(np.float64), *rows)
        try:
            return _compared(sides, names, wide, _stream(gradients, wide, steps), steps)[0], ""
        except EquivalenceError as error:
            return None, str(error)
