"""The table of all entries, and what is asked of it: entry, description and recipe."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import legacy_optim
from optax_bridge._definition import is_legacy
from optax_bridge.correspondence import entries
from optax_bridge.correspondence.entry import Claim, Entry, UnsupportedSetting, Verdict
from optax_bridge.correspondence.recipe import Call


def _collected() -> dict[str, Entry]:
    names = sorted(module.name for module in pkgutil.iter_modules(entries.__path__))
    modules = [importlib.import_module(f"{entries.__name__}.{name}") for name in names]
    return {module.ENTRY.name: module.ENTRY for module in modules}


ENTRIES: dict[str, Entry] = _collected()


def entry_of(definition: legacy_optim.OptimizerDef) -> Entry | None:
    """The entry of a definition's class; None for a class of one's own, subclasses included."""
    return next((e for e in ENTRIES.values() if e.legacy.cls is type(definition)), None)


def entries_by_class() -> dict[str, Entry]:
    """The entries by the names of their legacy classes."""
    return {entry.legacy.__name__: entry for entry in ENTRIES.values()}


def names_of_entries(asked: Iterable[str], others: Iterable[str] = ()) -> list[str]:
    """Names as the table has them: of entries, by theirs or by the class's, and of other things.

    Args:
      asked: what a user typed, in any case: `Adam`, `adam`, `GradientDescent`.
      others: further names that are known.

    Returns:
      The names; what is not known stays as it is.
    """
    known = {name.lower(): name for name in others}
    known |= {entry.legacy.__name__.lower(): name for name, entry in ENTRIES.items()}
    known |= {name.lower(): name for name in ENTRIES}
    return [known.get(name.lower(), name) for name in asked]


@dataclass(frozen=True)
class Described:
    """An optimizer by its entry and its settings.

    Attributes:
      entry: the entry.
      settings: legacy name -> value, for every hyper-parameter; a nested optimizer is `Described`
        as well, or the definition itself if its class has no entry.
    """

    entry: Entry
    settings: Mapping[str, Any]


def describe(definition: legacy_optim.OptimizerDef) -> Described | legacy_optim.OptimizerDef:
    """A definition as data; the definition itself if its class is one of the user's own."""
    entry = entry_of(definition)
    if entry is None:
        return definition
    return Described(entry, _with_inner(entry.settings(definition), describe))


def recipe_of(
    optimizer: Described | legacy_optim.OptimizerDef, exact: bool = True
) -> tuple[Call, Claim]:
    """The recipe for an optimizer, and what it claims.

    Args:
      optimizer: a legacy definition, or one that was described; wrapped and grouped ones included.
      exact: this project's transformation in legacy arithmetic, or else public Optax.

    Returns:
      The recipe, ready for `recipe.build` and `recipe.render`, and its claim. For wrapped and
      grouped optimizers with `exact=False` the parts are stock, and the claim is that of the
      weakest part.

    Raises:
      UnsupportedSetting: there is no such recipe.
    """
    described = optimizer if isinstance(optimizer, Described) else describe(optimizer)
    if not isinstance(described, Described):
        return Call("optax_bridge.wrap_definition", (described,)), EXACT
    claims: list[Claim] = []

    def inner(optimizer: Any) -> Call:
        call, claim = recipe_of(optimizer, exact)
        claims.append(claim)
        return call

    settings = _with_inner(described.settings, inner)
    if exact:
        return described.entry.exact_recipe(settings), EXACT
    if claims:
        around = replace(described.entry.around, key=f"{described.entry.name}/around")
        weakest = max([around, *claims], key=_weakness)
        return described.entry.exact_recipe(settings), weakest
    return described.entry.stock_recipe(settings)


def _with_inner(settings: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Settings with each optimizer in them changed."""

    def changed(value: Any) -> Any:
        if isinstance(value, Described) or is_legacy(value, "OptimizerDef"):
            return change(value)
        return tuple(map(changed, value)) if isinstance(value, tuple) else value

    return {name: changed(value) for name, value in settings.items()}


def default_recipe(optimizer: Described | legacy_optim.OptimizerDef) -> Call:
    """The recipe that `migrate` writes unless told otherwise: public Optax where it is the same.

    Args:
      optimizer: see `recipe_of`.

    Returns:
      The stock recipe where it is identical or differs by rounding alone, else the exact one; for
      wrapped and grouped optimizers each part for itself.
    """
    described = optimizer if isinstance(optimizer, Described) else describe(optimizer)
    if not isinstance(described, Described):
        return Call("optax_bridge.wrap_definition", (described,))
    within: list[Call] = []

    def inner(optimizer: Any) -> Call:
        within.append(default_recipe(optimizer))
        return within[-1]

    settings = _with_inner(described.settings, inner)
    if not within:
        with contextlib.suppress(UnsupportedSetting):
            recipe, claim = described.entry.stock_recipe(settings)
            if claim.verdict is not Verdict.DIFFERENT:
                return recipe
    return described.entry.exact_recipe(settings)


EXACT = Claim(Verdict.IDENTICAL, why="the legacy operations in the legacy order")


def _weakness(claim: Claim) -> tuple[int, float]:
    return list(Verdict).index(claim.verdict), claim.ulp or 0.0
