"""`check_equivalence`: runs any two optimizers side by side and compares them.

A side from another version of Optax, installed with `pip install --target older optax==0.2.5
--no-deps`: import it with the present one put aside.

    def of_older():
        present = {name: sys.modules.pop(name) for name in [*sys.modules]
                   if name.split(".")[0] == "optax"}
        sys.path.insert(0, "older")
        try:
            return importlib.import_module("optax")
        finally:
            sys.path.remove("older")
            sys.modules.update(present)

    check_equivalence(of_older().adam(1e-3), optax.adam(1e-3), params)
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np

from equivalence_tests.compare.comparison import NOTICEABLE, Verdict
from equivalence_tests.compare.trees import signature
from equivalence_tests.pair.report import Report
from equivalence_tests.pair.runs import Setup, compare_in_float64, compare_sides
from equivalence_tests.sides.adapt import EquivalenceError, SideLike, as_side, on_host
from equivalence_tests.sides.inputs import gradients as given_gradients
from equivalence_tests.sides.inputs import problems
from equivalence_tests.sides.inputs.gradients import Gradients
from equivalence_tests.sides.precision import float64, pin_precision
from equivalence_tests.sides.side import Side, in_legacy_layout
from optax_bridge.metadata.trees import Params


def check_equivalence(
    left: SideLike,
    right: SideLike,
    params: Params,
    *,
    gradients: Gradients = "all",
    steps: int | None = None,
    bound: float = NOTICEABLE,
    decide: bool = True,
    names: tuple[str, str] = ("left", "right"),
) -> Report:
    """Runs two optimizers side by side and says whether they are the same.

    Each side may be a legacy definition or optimizer, an `optax.GradientTransformation` (or
    another object with its `init` and `update`, as a second version of Optax makes), a
    `TrainState` (its optimizer state is kept, its parameters are replaced), or a pair of functions
    `init(params) -> state` and `step(grads, state, params) -> (params, state)`, which run as they
    are. One of PyTorch is `torch_side(torch.optim.AdamW, lr=...)`. Parameters are compared after
    every step; so is the state where both sides can show it in one layout.

        >>> params = {"w": jnp.ones(3)}
        >>> report = check_equivalence(optax.sgd(0.1), legacy_optim.GradientDescent(0.1), params)
        >>> report.verdict.value
        'identical'

    Args:
      left: one side.
      right: the other.
      params: initial parameters, any pytree of floating-point arrays; float64 ones run in float64,
        even if it is off in JAX.
      gradients: a tree like `params` with a leading axis of steps; or an iterable of trees, one for
        each step; or one of `problems.NAMES`; or `function(step, params) ->
        gradients`, with which each side follows its own gradients.
      steps: number of steps; by default as many as `gradients` has, else 160.
      bound: the distance that still counts as rounding, in ULP at the tensor's scale, for 100
        steps. More than 1/16 of the scale never counts as rounding only: 8 ULP in bfloat16.
      decide: True to run sides that are not identical in float64 too, where rounding shrinks.
      names: the sides' names in messages and in the report.

    Returns:
      The report: print it, or ask its `verdict`.

    Raises:
      EquivalenceError: something does not fit; the message names side, step and leaf.
    """
    if not isinstance(bound, int | float) or not bound >= 0:  # NaN is not either
        raise EquivalenceError(f"bound is {bound!r}; expected a distance in ULP, 0 or more")
    if isinstance(names, str) or len(names) != 2:
        raise EquivalenceError(f"names is {names!r}; expected two, one for each side")
    params = _checked_params(params)
    stream, steps = given_gradients.resolve(gradients, params, steps)
    sides = _same_layout(_adapt(left, names[0]), _adapt(right, names[1]))
    setup = Setup(sides, names, stream, steps, callable(gradients))
    double = any(leaf.dtype == np.float64 for leaf in jax.tree.leaves(params))
    # Hostile gradients overflow, in a side that computes with NumPy as well.
    quiet, dtypes = np.errstate(all="ignore"), float64() if double else contextlib.nullcontext()
    with pin_precision() as what, dtypes, quiet:
        report = _report(setup, params, bound, decide)
        tried = problems.description(gradients, steps) if isinstance(gradients, str) else ""
        for other in _with_poison_in_other_orders(setup, params, gradients):
            if report.verdict is Verdict.DIFFERENT:
                break
            again = _report(other, params, bound, decide)
            if again.verdict is Verdict.DIFFERENT:
                report, tried = again, problems.description("poisoned", other.steps)
    return replace(report, pinned=what, tried=tried)


def _with_poison_in_other_orders(
    setup: Setup, params: Params, gradients: Gradients
) -> Iterator[Setup]:
    """Short runs for few small leaves, of which one run has no room for every order."""
    if gradients not in ("all", "poisoned") or setup.steps < problems.LATE:
        return
    for first in problems.other_orders(params):
        tree = problems.gradients(params, problems.LATE, "poisoned", first_order=first)
        stream, steps = given_gradients.resolve(tree, params, None)
        yield replace(setup, stream=stream, steps=steps)


# Steps that are below the spacing of the parameters show nothing of what they are: where less than
# this part of them is seen, smaller parameters are tried as well.
_SEEN, _SMALLER = 0.2, 2.0**-8


def _report(setup: Setup, params: Params, bound: float, decide: bool) -> Report:
    """Returns the report of the runs, and of those in float64 where these decide."""
    poisoned = setup.steps_with_poison(params)
    narrow, started = compare_sides(setup, params, poisoned), ""
    at_rest = narrow.at_rest
    if narrow.moved < _SEEN and narrow.both.within(bound) is not Verdict.DIFFERENT:
        smaller = jax.tree.map(lambda leaf: leaf * leaf.dtype.type(_SMALLER), params)
        again = compare_sides(setup, smaller, poisoned)
        at_rest &= again.at_rest
        started = f"parameters / {1 / _SMALLER:.0f}, as those given hardly move"
        if not again.both.identical:
            narrow, params = again, smaller
    # States that are linearly related are no difference of the trainings.
    related = any(not relation.is_equal(path) for path, relation in narrow.relations.items())
    wide, why = None, ""
    if decide and not (narrow.parameters if related else narrow.both).identical:
        wide, why = compare_in_float64(setup, params, poisoned)
    return Report(
        names=setup.names,
        sources=(setup.sides[0].source, setup.sides[1].source),
        kinds=(setup.sides[0].name, setup.sides[1].name),
        steps=setup.steps,
        bound=bound,
        comparison=narrow.both,
        state_compared=narrow.state_compared,
        wide=wide and (wide.parameters if related else wide.both),
        about_wide=why,
        closed_loop=setup.closed_loop,
        started=started,
        at_rest=tuple(path for path in signature(params, "params") if path in at_rest),
        finite=narrow.finite if narrow.finite < min([setup.steps, *poisoned.values()]) else None,
        parameters=narrow.parameters,
        parameters_wide=wide and wide.parameters,
        relations=narrow.relations if related else {},
        signature=signature(params, "params"),
    )


def _adapt(side: SideLike, name: str) -> Side:
    try:
        return as_side(side)
    except EquivalenceError as error:
        raise EquivalenceError(f"{name} side: {error}") from None


def _same_layout(left: Side, right: Side) -> list[Side]:
    """The sides, with their states in the layout of the legacy one, where one is."""
    definition = left.definition or right.definition
    return [
        side
        if definition is None or side.definition is not None or not side.compiled
        else in_legacy_layout(side, definition)
        for side in (left, right)
    ]


def _checked_params(params: Params) -> Params:
    # A Python float has JAX's default dtype, as it would have in training.
    host = on_host(
        jax.tree.map(lambda x: jax.numpy.asarray(x) if isinstance(x, float) else x, params)
    )
    shapes = signature(host, "params")
    if not shapes:
        raise EquivalenceError("params: found no leaf; expected a tree of floating-point arrays")
    for path, (_, dtype) in shapes.items():
        if not jax.numpy.issubdtype(dtype, jax.numpy.floating):
            raise EquivalenceError(
                f"{path}: expected a floating-point dtype, found {dtype}; leave out what is not "
                "optimized"
            )
    if not any(np.size(leaf) for leaf in jax.tree.leaves(host)):
        raise EquivalenceError(
            f"params: found no element in {', '.join(shapes)}; expected some, as of none nothing "
            "can be compared"
        )
    return host
