"""A case of the suite, and its result."""

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import jax

import legacy_optim
from equivalence_tests.compare.comparison import Comparison, compare
from equivalence_tests.compare.judgement import Judgement
from equivalence_tests.proof.claims import prove_task
from equivalence_tests.proof.table import Task
from equivalence_tests.sides.in_float64 import is_same_in_float64, wide
from equivalence_tests.sides.precision import float64
from equivalence_tests.sides.side import Side
from equivalence_tests.sides.trajectory import driver, trajectory
from optax_bridge.correspondence import Case as Setting
from optax_bridge.correspondence import (
    Claim,
    Entry,
    UnsupportedSetting,
    Verdict,
    all_entries,
    choose_recipe,
)
from optax_bridge.correspondence.choice import RecipeKind
from optax_bridge.correspondence.recipe import Call, render
from optax_bridge.metadata.trees import Params, PyTree

SYNTHETIC = "odd shapes"


class Case:
    """One recipe under one circumstance, of any part of the suite."""

    axes: ClassVar[tuple[tuple[str, ...], ...]]
    entry: str
    recipe: RecipeKind = "exact"
    problem: str = SYNTHETIC
    rate: str = "constant"

    @property
    def column(self) -> str:
        """The subject of the case, its column in the report's picture."""
        raise NotImplementedError

    @property
    def program(self) -> object:
        """Equal for cases that share compiled programs or a run of the legacy side."""
        return self


AnyCase = TypeVar("AnyCase", bound=Case)


def groups(cases: Iterable[AnyCase]) -> list[list[AnyCase]]:
    """The cases by the programs that they share; those of one group follow one another."""
    return [list(group) for _, group in itertools.groupby(cases, lambda case: case.program)]


@dataclass
class Result:
    """The outcome of one recipe in one check."""

    case: Case
    settings: str
    claim: Claim | None = None
    comparison: Comparison | None = None
    seconds: float = 0.0
    note: str = ""
    failed: bool = False
    source: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    trajectory: PyTree = None
    wide: Comparison | None = None
    about_wide: str = ""
    proved: str = ""
    proof_held: bool = True
    losses: tuple[Sequence[float], Sequence[float]] | None = None

    @property
    def judgement(self) -> Judgement | None:
        """The judgement under the claim; None if nothing was compared."""
        comparison, claim = self.comparison, self.claim
        if comparison is None or claim is None:
            return None
        return Judgement(
            comparison, comparison.verdict(claim), claim.ulp, self.wide, self.about_wide
        )

    @property
    def verdict(self) -> Verdict | None:
        """The verdict under the claim; None if nothing was compared."""
        return self.judgement and self.judgement.verdict

    @property
    def held(self) -> bool:
        """True if the claim held. Being identical where only rounding was promised is no breach."""
        if self.failed or not self.proof_held:
            return False
        if self.claim is None or self.comparison is None:
            return True
        if self.claim.verdict is Verdict.ROUNDING:
            return self.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)
        return self.verdict is self.claim.verdict


def measure(
    case: Case,
    settings: str,
    definition: legacy_optim.OptimizerDef,
    compare: Callable[[Result, Call], None],
) -> Result:
    """The result of comparing a definition with a case's recipe; an error is in it."""
    result = Result(case, settings)
    try:
        choice = choose_recipe(definition, case.recipe)
    except UnsupportedSetting as error:
        result.note = str(error)
        return result
    is_exact = case.recipe == "exact"
    result.claim = all_entries()[case.entry].exactness if is_exact else choice.claim
    with contextlib.suppress(ValueError):  # a traversal is a function, which has no source form
        result.source = render(choice.call)
    with record_run(result):
        compare(result, choice.call)
    return result


def call_text(entry: Entry, setting: Setting) -> str:
    """The legacy constructor call of one of an entry's cases."""
    return render(entry.call(setting, setting.learning_rate)).removeprefix("legacy_optim.")


def prove(result: Result, setting: int) -> None:
    """Adds the proof of a recipe to its result, for one of the entry's cases."""
    if result.claim is None:
        return
    row = prove_task(Task(result.case.entry, setting, result.case.recipe, "float32"), details=False)
    result.proved, result.proof_held = row.verdict or row.note, row.held


@contextlib.contextmanager
def record_run(result: Result) -> Generator[None]:
    """Context in which a case runs; records its time and its error in the result."""
    started = time.perf_counter()
    try:
        yield
    except Exception as error:
        result.failed, result.note = True, f"{type(error).__name__}: {error}"
    result.seconds = time.perf_counter() - started


def decide_in_float64(
    result: Result,
    sides: Iterable[Side],
    params: Params,
    inputs: PyTree,
    drive: str,
    poisoned: Mapping[str, int],
) -> None:
    """Compares the sides in float64 as well; without it the growth has to tell what it is."""
    first = jax.tree.map(lambda leaf: leaf[0], inputs)
    try:
        runs = list(sides)
        for side in runs:
            if not is_same_in_float64(side, params, first):
                result.about_wide = f"{side.name}'s program is another one in float64"
                return
        with float64():
            both = (trajectory(driver(side, drive), wide(params), wide(inputs)) for side in runs)
            result.wide = compare(*both, poisoned=poisoned)
    except Exception as error:
        result.about_wide = f"{type(error).__name__}: {error}"


def largest_ulp_by_claim(results: Iterable[Result]) -> dict[str, float]:
    """Returns the largest distance under each claim of rounding, in ULP, by the claim's key."""
    largest: dict[str, float] = {}
    for result in results:
        claim, comparison = result.claim, result.comparison
        if claim is None or comparison is None or claim.verdict is not Verdict.ROUNDING:
            continue
        largest[claim.key] = max(largest.get(claim.key, 0.0), float(f"{comparison.ulp:.2g}"))
    return dict(sorted(largest.items()))
