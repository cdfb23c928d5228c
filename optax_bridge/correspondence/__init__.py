"""The correspondence: one entry for each legacy optimizer, one file for each entry.

Everything that knows about single optimizers reads it here: `from_legacy`, the suite, checkpoint conversion, the
codemod, the guide's tables, `optax-bridge recipe`. A file in this folder that defines `ENTRY` is in the table.
"""

import importlib
import pkgutil
from typing import Any

import legacy_optim
from optax_bridge.correspondence.entry import Case as Case
from optax_bridge.correspondence.entry import Claim as Claim
from optax_bridge.correspondence.entry import Entry as Entry
from optax_bridge.correspondence.entry import UnsupportedSetting as UnsupportedSetting
from optax_bridge.correspondence.entry import Verdict as Verdict
from optax_bridge.correspondence.recipe import Call


def _collected() -> dict[str, Entry]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    names = [name for name in names if not name.endswith("_test")]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    entries = [module.ENTRY for module in modules if hasattr(module, "ENTRY")]
    return {entry.name: entry for entry in entries}


ENTRIES: dict[str, Entry] = _collected()


def entry_of(definition: legacy_optim.OptimizerDef) -> Entry | None:
    """The entry of a definition's class; None for a class of one's own, subclasses included."""
    return next((e for e in ENTRIES.values() if e.legacy is type(definition)), None)


def recipe_of(definition: legacy_optim.OptimizerDef, exact: bool = True) -> tuple[Call, Claim]:
    """The recipe for a definition, and what it claims.

    Args:
      definition: a legacy definition; wrapped and grouped ones included.
      exact: this project's transformation in legacy arithmetic, or else public Optax.

    Returns:
      The recipe, ready for `recipe.build` and `recipe.render`, and its claim. For wrapped and grouped
      definitions with `exact=False` the parts are stock, and the claim is that of the weakest part.

    Raises:
      UnsupportedSetting: there is no such recipe.
    """
    entry = entry_of(definition)
    if entry is None:
        return Call("optax_bridge.wrap_definition", (definition,)), EXACT
    claims: list[Claim] = []

    def nested(value: Any) -> Any:
        if isinstance(value, legacy_optim.OptimizerDef):
            call, claim = recipe_of(value, exact)
            claims.append(claim)
            return call
        return tuple(map(nested, value)) if isinstance(value, tuple) else value

    settings = {name: nested(value) for name, value in entry.settings(definition).items()}
    if exact:
        return entry.exact_recipe(settings), EXACT
    if claims:
        return entry.exact_recipe(settings), max(claims, key=lambda claim: _WEAKNESS[claim.verdict])
    return entry.stock_recipe(settings)


EXACT = Claim(Verdict.IDENTICAL, why="the legacy operations in the legacy order")
_WEAKNESS = {Verdict.IDENTICAL: 0, Verdict.ROUNDING: 1, Verdict.DIFFERENT: 2}
