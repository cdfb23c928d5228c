"""The checks: claims of the correspondence on its own cases, and how they are run.

A check is one claim on one case: this recipe, under these settings, follows the legacy optimizer as
its entry says. Checks come from the table; no optimizer is named here.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flax.core import FrozenDict

import legacy_optim
from equivalence_tests.compare.comparison import Comparison, compare
from equivalence_tests.compare.extent import poisoned_from
from equivalence_tests.sides import side as sides
from equivalence_tests.sides.inputs import digits, problems
from equivalence_tests.sides.precision import pin_precision
from equivalence_tests.sides.side import Side
from equivalence_tests.sides.trajectory import driver, trajectory
from equivalence_tests.suite.case import (
    SYNTHETIC,
    Case,
    Result,
    call_text,
    decide_in_float64,
    measure,
    prove,
)
from optax_bridge.correspondence import ENTRIES, Verdict
from optax_bridge.correspondence.choice import RecipeKind
from optax_bridge.correspondence.recipe import Call, build
from optax_bridge.metadata.trees import Params, PyTree


@dataclass(frozen=True)
class Check(Case):
    """One claim on one of the entry's cases, by its index."""

    axes = (("entry", "problem"),)

    entry: str
    setting: int
    problem: str = SYNTHETIC
    rate: str = "constant"
    recipe: RecipeKind = "exact"

    def __str__(self) -> str:
        parts = (self.entry, str(self.setting), self.problem, self.rate, self.recipe)
        return "-".join(parts).replace(" ", "_")

    @property
    def column(self) -> str:
        """Its column in the report's picture."""
        return f"{self.recipe}, {self.rate if self.problem == SYNTHETIC else self.problem}"

    @property
    def program(self) -> "Check":
        """The check of the exact recipe, which has the same legacy run."""
        return replace(self, recipe="exact")


def checks() -> Iterator[Check]:
    """All checks: every case on odd shapes; rates per call and models on each first case."""
    for name, entry in ENTRIES.items():
        for index in range(len(entry.cases)):
            yield Check(name, index)
            yield Check(name, index, recipe="optax")
        yield Check(name, 0, rate="per call")  # Optax's aliases take no rate per call
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


def run(group: Sequence[Check], steps: int = 100) -> list[Result]:
    """Runs checks that share the legacy side, which runs once."""
    kind = _Synthetic if group[0].problem == SYNTHETIC else _Trained
    trial = kind(group[0], steps)
    return [_measure(trial, check) for check in group]


class _Synthetic:
    """Given gradients on leaves of every shape."""

    def __init__(self, check: Check, steps: int):
        self.entry, per_call = ENTRIES[check.entry], check.rate == "per call"
        self.setting = self.entry.cases[check.setting]
        peak = self.setting.learning_rate
        self.definition = self.entry.definition(self.setting, None if per_call else peak)
        rates = problems.schedule(peak, steps) if per_call else None
        # A float32 rate given per call turns bfloat16 parameters into float32 ones, in flax.optim
        # as well.
        dtypes = ("float32",) if per_call else ("float32", "bfloat16")
        compact = per_call or check.setting > 0  # the first of each entry sees every shape
        self.params, grads = problems.problem(steps, dtypes, compact=compact)
        self.inputs = (grads,) if rates is None else (grads, rates)
        self.poisoned = poisoned_from(grads, problems.STREAMS)
        self.extra: dict[str, object] = {}
        self.losses: tuple[list[float], list[float]] | None = None

    @functools.cached_property
    def reference(self) -> PyTree:
        return _run_compiled(sides.legacy(self.definition), self.params, self.inputs)

    def compare_with(self, recipe: str, call: Call) -> tuple[Comparison, PyTree]:
        side = self._side(recipe, call)
        if recipe == "exact":
            other = _run_compiled(side, self.params, self.inputs)
            return compare(self.reference, other, poisoned=self.poisoned), other
        other = _run_compiled(side, *map(_float32_leaves, (self.params, self.inputs)))
        return compare(_float32_leaves(self.reference), other, poisoned=self.poisoned), other

    def decide(self, result: Result, call: Call) -> None:
        """Runs both sides of a result in float64."""
        recipe = result.case.recipe
        params, inputs = map(_float32_leaves, (self.params, self.inputs))
        both = (sides.legacy(self.definition), self._side(recipe, call))
        decide_in_float64(result, both, params, inputs, "jit", self.poisoned)

    def _side(self, recipe: str, call: Call) -> Side:
        return (
            sides.exact(self.definition)
            if recipe == "exact"
            else sides.public_optax(self.definition, call)
        )


class _Trained:
    """A model on real data, each side with the gradients of its own parameters."""

    def __init__(self, check: Check, steps: int):
        self.entry = ENTRIES[check.entry]
        self.setting = self.entry.cases[check.setting]
        self.definition = self.entry.definition(self.setting, self.setting.learning_rate)
        self.job, self.data = digits.task(check.problem), digits.batches(steps)
        self.extra: dict[str, object] = {}
        self.losses: tuple[list[float], list[float]] | None = None

    def compare_with(self, recipe: str, call: Call) -> tuple[Comparison, PyTree]:
        del recipe
        both = (
            digits.old_side(self.job, self.definition),
            digits.new_side(self.job, build(call)),
        )
        with pin_precision() as what:
            old, new = (
                trajectory(driver(side, "eager"), self.job.params, (self.data,)) for side in both
            )
        self.losses = old["loss"].tolist(), new["loss"].tolist()
        self.extra = {"loss": [self.losses[0][0], self.losses[0][-1]], "pinned": what}
        return compare(old, new), new


def _measure(trial: _Synthetic | _Trained, check: Check) -> Result:
    """Runs one check; an error on a side is in its result and stops nothing else."""

    def compare(result: Result, call: Call) -> None:
        result.comparison, result.trajectory = trial.compare_with(check.recipe, call)
        # Rounding within the claimed bound is as claimed, and in float64 too in the matrix, whose
        # trees are small; here it would double the time.
        broken = result.verdict is Verdict.DIFFERENT or not result.held
        if isinstance(trial, _Synthetic) and broken:
            trial.decide(result, call)

    settings = call_text(trial.entry, trial.setting)
    result = measure(check, settings, trial.definition, compare)
    result.extra, result.losses = trial.extra, trial.losses
    if check.problem == SYNTHETIC and check.rate == "constant":
        prove(result, check.setting)
    return result


def _run_compiled(side: Side, params: Params, inputs: PyTree) -> PyTree:
    """Step by step: to compile a scan would take half as long again."""
    return trajectory(driver(side, "jit"), params, inputs)


def _float32_leaves(view: PyTree) -> PyTree:
    """A tree without other dtypes' leaves: claims of public Optax are for float32."""
    if isinstance(view, tuple):
        return tuple(map(_float32_leaves, view))
    if not isinstance(view, dict | FrozenDict | legacy_optim.OptimizerState):
        return view
    if isinstance(view, legacy_optim.OptimizerState):
        return legacy_optim.OptimizerState(view.step, _float32_leaves(view.param_states))
    return {name: _float32_leaves(value) for name, value in view.items() if name != "bfloat16"}
