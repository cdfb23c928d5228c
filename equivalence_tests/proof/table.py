"""The claims of the correspondence: every case, exact and optax, in every dtype."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import legacy_optim
from equivalence_tests.proof.reading.sides import MakeSide
from equivalence_tests.proof.reading.symbols import unwrap
from equivalence_tests.proof.result import IDENTICAL, REALS
from equivalence_tests.sides.adapt import SideLike
from optax_bridge._text import did_you_mean
from optax_bridge.correspondence import (
    ENTRIES,
    ORIGINS,
    Case,
    Choice,
    Claim,
    Described,
    Entry,
    Table,
    UnsupportedSetting,
    Verdict,
    all_entries,
    choose_recipe,
    describe,
    names_of_entries,
)
from optax_bridge.correspondence.claim import PROVED_SHAPES
from optax_bridge.correspondence.recipe import Source, build
from optax_bridge.correspondence.table import with_inner
from optax_bridge.metadata.trees import Params

HyperParams = Mapping[str, Any]
DTYPES = ("float32", "bfloat16", "float16")
RECIPES = ("exact", "optax")


@dataclass(frozen=True)
class Task:
    """One claim to prove."""

    entry: str
    case: int
    recipe: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.entry}-{self.case}-{self.recipe}-{self.dtype}"


def tasks(only: Sequence[str] = ()) -> list[Task]:
    """All claims."""
    origins = {table.name: table for table in ORIGINS}
    names = {*all_entries(), *RECIPES, *DTYPES, *origins}
    only = names_of_entries(only, names)
    unknown = [name for name in only if name not in names]
    if unknown:
        raise ValueError(
            f"no optimizer, recipe or dtype is called {', '.join(unknown)}"
            f"{did_you_mean(unknown[0], names) or '.'} There are {', '.join(sorted(names))}"
        )
    tables = [table for table in ORIGINS if table.name in only or not table.keys().isdisjoint(only)]
    return [
        task
        for table in tables or [ENTRIES]
        for task in _all_tasks(table)
        if _is_selected(task, table, only)
    ]


def _is_selected(task: Task, table: Table, only: Sequence[str]) -> bool:
    """True if a task of a table matches a name of each kind that occurs, of entries its own."""
    kinds = ((table, task.entry), (RECIPES, task.recipe), (DTYPES, task.dtype))
    return all(value in only or not any(name in group for name in only) for group, value in kinds)


def _all_tasks(table: Table) -> Iterator[Task]:
    for name, entry in table.items():
        for index, case in enumerate(entry.cases):
            for recipe in RECIPES:
                for dtype in DTYPES if _claim(entry, case, recipe) is not None else DTYPES[:1]:
                    yield Task(name, index, recipe, dtype)


def _claim(entry: Entry, case: Case, recipe: str) -> Claim | None:
    definition = entry.definition(case, case.learning_rate)
    try:
        return _choice(definition, recipe).claim
    except UnsupportedSetting:
        return None


def _choice(optimizer: legacy_optim.OptimizerDef, recipe: str) -> Choice:
    return choose_recipe(optimizer, "exact" if recipe == "exact" else "optax")


@dataclass(frozen=True)
class Statement:
    """Two sides, as `prove_equivalence` takes them."""

    legacy: SideLike | MakeSide
    recipe: SideLike | MakeSide
    params: Params
    hyper_params: Mapping[str, float] | None


def statements(task: Task) -> tuple[Claim, list[Statement]]:
    """Returns the claim of a task, and the statements that prove it."""
    entry = all_entries()[task.entry]
    case = entry.cases[task.case]
    definition = entry.definition(case, case.learning_rate)
    choice = _choice(definition, task.recipe)
    dtype = jnp.dtype(task.dtype)
    shapes = {
        name: shape
        for name, shape in PROVED_SHAPES.items()
        if len(shape) == 2 or "vectors" not in entry.excluded
    }
    params = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}
    described, numbers = describe(definition), dict[str, float]()
    _with_numbers(described, numbers.setdefault)

    def legacy_side(hp: HyperParams) -> SideLike:
        return _definition(_with_numbers(described, lambda name, number: hp[name]))

    def recipe_side(hp: HyperParams) -> SideLike:
        def source(name: str, number: float) -> Source:
            return Source(name.rpartition(".")[2], unwrap(hp[name]))

        return build(_choice(_with_numbers(described, source), task.recipe).call)

    both = [Statement(legacy_side, recipe_side, params, numbers)]
    if choice.claim.verdict is Verdict.IDENTICAL:
        both.append(Statement(definition, build(choice.call), params, None))
    return choice.claim, both


def is_held(claim: Claim, verdict: str | None, dtype: str) -> bool:
    """True if what is proved is what is claimed of this dtype, or more."""
    wanted, evidence = claim.relation, claim.evidence.get(dtype)
    if wanted != IDENTICAL and evidence is not None and not evidence.over_reals:
        return verdict is not None  # nothing is claimed
    return verdict == wanted or (wanted == REALS and verdict == IDENTICAL)


def _with_numbers(described: Any, change: Callable[[str, float], object], prefix: str = "") -> Any:
    """An optimizer as data, with others for the numbers that may be symbols."""
    if not isinstance(described, Described):
        return described
    fixed = {unsupported.name for unsupported in described.entry.unsupported}

    def convert(name: str, value: object) -> Any:
        if isinstance(value, tuple):
            return tuple(convert(str(index), item) for index, item in enumerate(value))
        return _with_numbers(value, change, f"{prefix}{name}.")

    settings = {
        name: change(f"{prefix}{name}", value)
        if isinstance(value, float) and value != 0 and name not in fixed
        else convert(name, value)
        for name, value in described.settings.items()
    }
    return Described(described.entry, settings)


def _definition(described: Any) -> legacy_optim.OptimizerDef:
    """The legacy definition that is described, also with symbols for numbers."""
    if not isinstance(described, Described):
        return described
    settings: dict[str, Any] = with_inner(described.settings, _definition)
    args: tuple[Any, ...] = ()
    for hyper_param in described.entry.hyper_params:
        if hyper_param.variadic:
            args = settings.pop(hyper_param.legacy)
    return described.entry.legacy(*args, **settings)
