"""The table of all entries, and what is asked of it: entry, description and recipe."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import legacy_optim
from optax_bridge.checks import is_legacy
from optax_bridge.correspondence.entry import Entry


class _Table(Mapping[str, Entry]):
    """Name -> entry, of each module of a package that defines `ENTRY`.

    They are imported when the first is asked for: an optimizer's module itself needs this package.
    """

    def __init__(self, package: str):
        self._package = package

    @functools.cached_property
    def _entries(self) -> dict[str, Entry]:
        package = importlib.import_module(self._package)
        names = [module.name for module in pkgutil.iter_modules(package.__path__)]
        modules = [
            importlib.import_module(f"{self._package}.{name}")
            for name in names
            if not name.endswith("_test")
        ]
        entries = (module.ENTRY for module in modules if hasattr(module, "ENTRY"))
        return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


ENTRIES: Mapping[str, Entry] = _Table("optax_bridge.optimizers")


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
    return Described(entry, with_inner(entry.settings(definition), describe))


def with_inner(settings: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Settings with each optimizer in them changed."""

    def changed(value: Any) -> Any:
        if isinstance(value, Described) or is_legacy(value, "OptimizerDef"):
            return change(value)
        return tuple(map(changed, value)) if isinstance(value, tuple) else value

    return {name: changed(value) for name, value in settings.items()}
