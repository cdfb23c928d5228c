"""The table of all entries, with look-ups by class, by name and by settings."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import legacy_optim
from optax_bridge.checks import is_legacy
from optax_bridge.correspondence.claim import HALF_PRECISION
from optax_bridge.correspondence.entry import Entry
from optax_bridge.correspondence.recipe import Node


@dataclass(frozen=True, eq=False)
class Table(Mapping[str, Entry]):
    """An origin: name -> entry, of each module of a package that defines `ENTRY` or `ENTRIES`.

    They are imported when the first is asked for: an optimizer's module itself needs this package.

    Attributes:
      name: its name in commands: `torch`.
      origin: the module of its optimizers: `torch.optim`.
      title: the library, for messages: `PyTorch`.
      package: of this project, with its definitions and transformations.
      homes: a pattern of the prefixes that its optimizers' names have.
      proved: the dtypes in which `optax-bridge prove` decides its claims.
    """

    name: str
    origin: str
    title: str
    package: str
    homes: str
    proved: Sequence[str] = ("float32", *HALF_PRECISION)

    def is_home(self, module: str) -> bool:
        """True if the prefix of an optimizer's name means this origin."""
        return re.fullmatch(self.homes, module) is not None

    @property
    def example(self) -> str:
        """A constructor call, for messages."""
        entry = next(e for n, e in entries_by_class(self).items() if n.lower() == "adam")
        prefix = "" if self is ENTRIES else f"{self.origin}."
        return f"{prefix}{entry.legacy.__name__}({entry.rate}=1e-3)"

    @property
    def without_entry(self) -> Mapping[str, str]:
        """Its optimizers and schedules that have no entry -> the remedy."""
        package = importlib.import_module(f"{self.package}.optimizers")
        return getattr(package, "WITHOUT_ENTRY", {})

    @functools.cached_property
    def _entries(self) -> dict[str, Entry]:
        package = importlib.import_module(f"{self.package}.optimizers")
        names = [module.name for module in pkgutil.iter_modules(package.__path__)]
        modules = [
            importlib.import_module(f"{package.__name__}.{name}")
            for name in names
            if not name.endswith("_test")
        ]
        entries: list[Entry] = []
        for module in modules:
            entries += getattr(module, "ENTRIES", ())  # a family
            entries += [module.ENTRY] if hasattr(module, "ENTRY") else []
        return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


ENTRIES = Table(
    "flax", "flax.optim", "flax.optim", "optax_bridge", r"(flax\.)?(legacy_)?optim(\..*)?"
)
TORCH = Table(
    "torch",
    "torch.optim",
    "PyTorch",
    "optax_bridge.torch",
    r"(torch\.)?optim(\.\w+)?|torch|lr_scheduler|optax_bridge\.torch",
    proved=("float32",),
)

# Whose optimizers are known. Where a name fits several, the first that has it so spelt is meant.
ORIGINS = (ENTRIES, TORCH)


def origin_of(entry: Entry) -> Table:
    """The origin that an entry is of."""
    return next(table for table in ORIGINS if entry.name in table)


def all_entries() -> dict[str, Entry]:
    """The entries of every origin, by name."""
    return {name: entry for table in ORIGINS for name, entry in table.items()}


def entry_of(definition: legacy_optim.OptimizerDef) -> Entry | None:
    """The entry of a definition's class; None for a class of the program's, subclasses included."""
    module = type(definition).__module__  # tells the table, so that no other is imported
    others = (table for table in ORIGINS[1:] if module.startswith(f"{table.package}."))
    table = next(others, ENTRIES)
    return next((e for e in table.values() if e.legacy.cls is type(definition)), None)


def entries_by_class(table: Table = ENTRIES) -> dict[str, Entry]:
    """The entries of an origin by the names of their classes."""
    return {entry.legacy.__name__: entry for entry in table.values()}


def names_of_entries(names: Iterable[str], others: Iterable[str] = ()) -> list[str]:
    """Returns names as the table spells them: of entries, or of their classes, and other names.

    Args:
      names: a user's, in any case: `Adam`, `adam`, `torch.AdamW`, `torch.optim.AdamW`.
      others: further names that are known.

    Returns:
      The names; unknown ones unchanged.
    """
    by_lower_case = {name.lower(): name for name in others}
    by_lower_case |= {entry.legacy.__name__.lower(): name for name, entry in ENTRIES.items()}
    for table in ORIGINS:
        by_lower_case |= {
            key.lower(): name
            for name, entry in table.items()
            for key in (name, f"{table.origin}.{entry.legacy.__name__}")
        }
    return [by_lower_case.get(name.lower(), name) for name in names]


@dataclass(frozen=True)
class Described:
    """An optimizer by its entry and its settings.

    Attributes:
      entry: the entry.
      settings: legacy name -> value, for every hyper-parameter; a nested optimizer is `Described`
        as well, or the definition itself if its class has no entry.
      extra_arguments: further arguments of its constructor, see `Entry`: name -> source.
    """

    entry: Entry
    settings: Mapping[str, Node]
    extra_arguments: Mapping[str, str] = field(default_factory=dict[str, str])

    def remarks(self) -> list[str]:
        """Remarks on the arguments that are no settings, where they are no defaults."""
        name = f"{self.entry.sources[0]}"
        return [
            f"{name}({argument}={source}): {self.entry.extra_arguments[argument]}"
            for argument, source in self.extra_arguments.items()
            if argument != "params" and source not in ("None", "False")
        ]


def describe(definition: legacy_optim.OptimizerDef) -> Described | legacy_optim.OptimizerDef:
    """A definition as data; the definition itself if its class is one of the user's own."""
    entry = entry_of(definition)
    if entry is None:
        return definition
    return Described(entry, with_inner(entry.settings(definition), describe))


def with_inner(settings: Mapping[str, Node], change: Callable[[Any], Node]) -> dict[str, Node]:
    """Settings with each optimizer in them changed."""

    def change_in(value: Node) -> Node:
        if isinstance(value, Described) or is_legacy(value, "OptimizerDef"):
            return change(value)
        return tuple(map(change_in, value)) if isinstance(value, tuple) else value

    return {name: change_in(value) for name, value in settings.items()}
