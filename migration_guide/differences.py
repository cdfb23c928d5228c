"""The defaults that Optax has otherwise, read from the correspondence and from Optax itself."""

import inspect
from collections.abc import Iterable
from typing import Any

import optax

from migration_guide.tables import code, default, table
from optax_bridge.correspondence import ENTRIES, Call, Entry
from optax_bridge.correspondence.recipe import Setting


def differences_markdown() -> str:
    """A table: what `flax.optim` and Optax take where the program says nothing."""
    entries = sorted(ENTRIES.values(), key=lambda entry: entry.legacy.__name__.lower())
    rows = [row for entry in entries for row in dict.fromkeys(_rows(entry))]
    return table(("flax.optim", "argument", "default", "in Optax", "argument", "default"), rows)


def _rows(entry: Entry) -> Iterable[tuple[str, ...]]:
    for stock in entry.stock:
        for alias in _aliases(stock.recipe):
            parameters = inspect.signature(_resolved(alias.target)).parameters
            for name, value in alias.kwargs.items():
                is_ours = isinstance(value, Setting)
                ours = entry.defaults()[value.name] if is_ours else value
                theirs = parameters[name].default
                if _differ(ours, theirs):
                    yield (
                        entry.legacy.__name__,
                        code(value.name) if is_ours else "*none, it is always*",
                        default(ours),
                        code(alias.target),
                        code(name),
                        default(theirs),
                    )


def _aliases(recipe: Any) -> Iterable[Call]:
    """The calls within a recipe that name an optimizer of Optax, not a part of one."""
    if isinstance(recipe, Call):
        is_part = ".scale_by" in recipe.target or recipe.target.startswith("optax.add")
        if recipe.target.startswith("optax.") and recipe.kwargs and not is_part:
            yield recipe
        for value in (*recipe.args, *recipe.kwargs.values()):
            yield from _aliases(value)


def _resolved(target: str) -> Any:
    value: Any = optax
    for name in target.split(".")[1:]:
        value = getattr(value, name)
    return value


def _differ(ours: Any, theirs: Any) -> bool:
    """Whether they say different things; no rate in the constructor is a rate per call."""
    empty = (None, inspect.Parameter.empty)
    if ours in empty and theirs in empty:
        return False
    return bool(ours != theirs)
