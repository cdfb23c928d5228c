"""The suite: which checks there are, and how one is run.

A check is one claim of the correspondence on one case: this recipe, under these settings, follows
the legacy optimizer as its entry says. Checks come from the table; no optimizer is named here.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax.core import FrozenDict

import legacy_optim
from equivalence_tests import problems, sides, training
from equivalence_tests.comparison import Comparison, compare
from equivalence_tests.precision import float64, pinned
from optax_bridge.correspondence import (
    ENTRIES,
    Case,
    Claim,
    Entry,
    UnsupportedSetting,
    Verdict,
    recipe_of,
)
from optax_bridge.recipe import Call, filled, render

if TYPE_CHECKING:
    from equivalence_tests.matrix.cases import MatrixCase
    from equivalence_tests.sharded.training import ShardedCase

SYNTHETIC = "odd shapes"
RATES = ("constant", "per call")


@dataclass(frozen=True)
class Check:
    """One claim on one case.

    Attributes:
      entry: name of the correspondence entry.
      case: index into the entry's cases.
      problem: `SYNTHETIC`, or the name of one of `training.MODELS`.
      rate: `"constant"`, given to the constructor, or `"per call"`, a schedule given at each step.
    """

    entry: str
    case: int
    problem: str = SYNTHETIC
    rate: str = "constant"

    def __str__(self) -> str:
        return "-".join((self.entry, str(self.case), self.problem, self.rate)).replace(" ", "_")


@dataclass
class Result:
    """What one recipe gave in one check.

    Attributes:
      check: the check.
      recipe: `"exact"` or `"stock"`.
      settings: the legacy constructor's arguments, as text.
      claim: what the entry says; None if it says that there is no such recipe.
      comparison: the outcome; None if there was nothing to run.
      seconds: time taken by this side, compilation included.
      note: why nothing was run, or the error that stopped it.
      failed: whether it stopped with an error.
      source: the recipe as Optax code, where it has a source form.
      extra: further figures for the JSON row.
      trajectory: what the recipe's side held after every step, where it is to be recorded.
      wide: the comparison in float64, which decides whether a difference is rounding.
      why_not_wide: why there is none.
      proved: what is proved for all inputs, beside what was seen; empty if nothing was tried.
      proof_held: whether that is what is claimed.
    """

    check: "Check | MatrixCase | ShardedCase"
    recipe: str
    settings: str
    claim: Claim | None = None
    comparison: Comparison | None = None
    seconds: float = 0.0
    note: str = ""
    failed: bool = False
    source: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    trajectory: Any = None
    wide: Comparison | None = None
    why_not_wide: str = ""
    proved: str = ""
    proof_held: bool = True

    @property
    def id(self) -> str:
        """One for each result, the same on every machine."""
        if isinstance(self.check, Check):
            return f"{self.check}-{self.recipe}"
        return str(self.check)  # a case of the matrix says its recipe itself

    @property
    def verdict(self) -> Verdict | None:
        """The verdict under the claim; None if nothing was compared."""
        if self.comparison is None or self.claim is None:
            return None
        return self.comparison.verdict(self.claim)

    @property
    def held(self) -> bool:
        """Whether the claim held. Being identical where only rounding was promised is no breach."""
        if self.failed or not self.proof_held:
            return False
        if self.claim is None or self.comparison is None:
            return True
        if self.claim.verdict is Verdict.ROUNDING:
            return self.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)
        return self.verdict is self.claim.verdict


def checks(only: Sequence[str] = ()) -> list[Check]:
    """All checks: every case on odd shapes; rates per call and models on each first case.

    Args:
      only: names of entries or of problems; empty for all.

    Raises:
      ValueError: a name that is neither.
    """
    known = {*ENTRIES, SYNTHETIC, *training.MODELS}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise ValueError(
            f"no optimizer or problem is called {', '.join(unknown)}; there are "
            f"{', '.join(sorted(known))}"
        )
    return [
        check for check in _all_checks() if not only or check.entry in only or check.problem in only
    ]


def _all_checks() -> Iterator[Check]:
    for name, entry in ENTRIES.items():
        for index in range(len(entry.cases)):
            yield Check(name, index)
        yield Check(name, 0, rate="per call")
    for name in ENTRIES:
        yield Check(name, 0, "mlp")
    for name, model in TRAINED:
        yield Check(name, 0, model)


# The larger models train with what the Flax examples of their kind used (FLIP 1009).
TRAINED = (
    ("momentum", "cnn"),
    ("adam", "cnn"),
    ("adam", "transformer"),
    ("adafactor", "transformer"),
)


def run(check: Check, steps: int = 100, *, keep: bool = False) -> list[Result]:
    """Runs one check: the legacy side once, then the exact and the stock recipe against it.

    Args:
      check: one of `checks()`.
      steps: number of steps.
      keep: whether results hold the recipe's trajectory, for recording.

    Returns:
      One result for each recipe. An error on a side is in its result and does not stop the others.
    """
    entry = ENTRIES[check.entry]
    case = entry.cases[check.case]
    job = _synthetic if check.problem == SYNTHETIC else _trained
    results = job(check, entry, case, steps)
    if not keep:
        for result in results:
            result.trajectory = None
    return results


def _synthetic(check: Check, entry: Entry, case: Case, steps: int) -> list[Result]:
    per_call = check.rate == "per call"
    definition = entry.definition(case, None if per_call else case.learning_rate)
    rates = problems.schedule(case.learning_rate, steps) if per_call else None
    # A float32 rate given per call turns bfloat16 parameters into float32 ones, in flax.optim as
    # well.
    dtypes = ("float32",) if per_call else ("float32", "bfloat16")
    compact = per_call or check.case > 0  # the first case of each entry sees every shape
    params, grads = problems.problem(steps, dtypes, compact=compact)

    @functools.cache
    def reference() -> Any:
        return sides.trajectory(sides.legacy(definition), params, grads, rates)

    def exact(recipe: Call) -> tuple[Comparison, Any]:
        del recipe  # it is what from_legacy builds
        other = sides.trajectory(sides.exact(definition), params, grads, rates)
        return compare(reference(), other), other

    def stock(recipe: Call) -> tuple[Comparison, Any]:
        other = sides.trajectory(sides.stock(definition, recipe), params, grads)
        return compare(_float32_leaves(reference()), _float32_leaves(other)), other

    def in_float64(result: Result) -> Comparison:
        other = sides.exact(definition)
        if result.recipe == "stock":
            other = sides.stock(definition, recipe_of(definition, exact=False)[0])
        with float64():
            given = [
                jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), _float32_leaves(tree))
                for tree in (params, grads)
            ]
            both = (sides.legacy(definition), other)
            return compare(*(sides.trajectory(side, given[0], given[1], rates) for side in both))

    shown = settings_text(entry, case)
    results = [_measured(Result(check, "exact", shown), definition, exact)]
    if not per_call:  # Optax's aliases take no rate per call
        results.append(_measured(Result(check, "stock", shown), definition, stock))
    for result in results:
        # Rounding within the claimed bound is as claimed, and in float64 too in the matrix, whose
        # trees are small; here it would double the time.
        if result.verdict is Verdict.DIFFERENT or (result.comparison and not result.held):
            try:
                result.wide = in_float64(result)
            except Exception as error:  # then the growth has to tell what it is
                result.why_not_wide = f"{type(error).__name__}: {error}"
        if not per_call and result.claim is not None:
            from equivalence_tests.proof import table  # what proves is imported where it is used

            row = table.prove_task(table.Task(check.entry, check.case, result.recipe, "float32"))
            result.proved, result.proof_held = row.verdict or row.note, row.held
    return results


def _trained(check: Check, entry: Entry, case: Case, steps: int) -> list[Result]:
    definition = entry.definition(case, case.learning_rate)
    result = Result(check, "exact", settings_text(entry, case))

    def exact(recipe: Call) -> tuple[Comparison, Any]:
        del recipe  # it is what from_legacy builds
        job, data = training.task(check.problem), training.batches(steps)
        with pinned() as what:
            old = training.old_loop(job, definition, data)
            new = training.bridged_loop(job, definition, data)
        loss = [float(old["loss"][0]), float(old["loss"][-1])]
        result.extra = {"loss": loss, "pinned": what}
        return compare(old, new), new

    return [_measured(result, definition, exact)]


def _measured(
    result: Result, definition: Any, measure: Callable[[Call], tuple[Comparison, Any]]
) -> Result:
    """Fills in a result; an error on a side is reported in it and stops nothing else."""
    try:
        recipe, result.claim = recipe_of(definition, exact=result.recipe == "exact")
    except UnsupportedSetting as error:
        result.note = str(error)
        return result
    result.source = recipe_source(recipe)
    started = time.perf_counter()
    try:
        result.comparison, result.trajectory = measure(recipe)
    except Exception as error:
        result.failed, result.note = True, f"{type(error).__name__}: {error}"
    result.seconds = time.perf_counter() - started
    return result


def _float32_leaves(view: Any) -> Any:
    """A trajectory without other dtypes' leaves: stock claims are for float32."""
    if not isinstance(view, dict | FrozenDict | legacy_optim.OptimizerState):
        return view
    if isinstance(view, legacy_optim.OptimizerState):
        return legacy_optim.OptimizerState(view.step, _float32_leaves(view.param_states))
    return {name: _float32_leaves(value) for name, value in view.items() if name != "bfloat16"}


def settings_text(entry: Entry, case: Case) -> str:
    """A case as the legacy constructor call."""
    recipe = filled(dict(case.settings), {"learning_rate": case.learning_rate})
    args: tuple[Any, ...] = ()
    for hp in entry.hyper_params:
        if hp.variadic:
            args = recipe.pop(hp.legacy)
        elif hp.legacy == "learning_rate":
            recipe = {hp.legacy: case.learning_rate, **recipe}
    return render(Call(entry.legacy.__name__, args, recipe))


def recipe_source(recipe: Call) -> str:
    """A recipe as Optax code; empty where it has no source form."""
    try:
        return render(recipe)
    except ValueError:  # a traversal is a Python function, which has no source form
        return ""
