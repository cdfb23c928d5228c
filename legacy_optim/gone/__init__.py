"""Names that JAX, Flax, Optax, Chex, Orbax and NumPy had in `flax.optim`'s time, and lost since.

The inventory, `names.json`, is made from the releases by `nox -s gone_names`; what to do about a
name is written by hand, in `remedies`. Importing this imports neither JAX nor NumPy.

    >>> find("jax.api.jit").new
    'jax.jit'
    >>> find("jax.jit") is None
    True
    >>> find_keyword("jax.numpy.clip", "a_max").new
    'max'
"""

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from legacy_optim.gone import remedies


class Gone(NamedTuple):
    """A name that is gone."""

    name: str
    package: str
    last: str
    since: str
    new: str | None
    remedy: str

    @property
    def message(self) -> str:
        """A sentence with all of it."""
        return (
            f"{self.name} is gone: {self.package} {self.last} had it, {self.since} does not. "
            f"What to do: {self.remedy}"
        )


def find(dotted: str) -> Gone | None:
    """The entry of a name, or of the module or class that went with it."""
    if dotted == "flax.optim" or dotted.startswith("flax.optim."):
        return None
    positions = _positions()
    name = dotted
    while name and name not in positions:
        name = name.rpartition(".")[0]
    if not name:
        return None
    package, at = positions[name]
    new = remedies.RENAMED.get(dotted) or _inventory()["moved"].get(dotted)
    remedy = f"use {new}" if new else remedies.text(dotted)
    if dotted in remedies.ALIKE_BY_POSITION:
        remedy = remedies.ALIKE_BY_POSITION[dotted][1]
    return _gone(dotted, package, at, new, remedy)


def find_keyword(function: str, keyword: str) -> Gone | None:
    """The entry of a keyword argument that a function, a method or a class no longer takes."""
    at = _inventory()["keywords"].get(function, {}).get(keyword)
    if at is None:
        return None
    new = remedies.KEYWORDS.get(function, {}).get(keyword)
    is_name = new is not None and new.isidentifier()
    remedy = f"it is {new}= now" if is_name else new
    shown = f"{function}({keyword}=)"
    return _gone(shown, remedies.package(function), at, new if is_name else None, remedy)


def find_keyword_by_ending(function: str, keyword: str) -> list[Gone]:
    """As `find_keyword`, for a function of which only the end of the name is known."""
    entries = []
    for name, keywords in _inventory()["keywords"].items():
        if keyword in keywords and f".{name}".endswith(f".{function}"):
            entry = find_keyword(name, keyword)
            assert entry is not None
            entries.append(entry)
    return entries


def find_module(dotted: str) -> Gone | None:
    """As `find`, for `import jax.config`: a name that is still there, but no module any more."""
    at = _inventory()["objects"].get(dotted)
    if at is None:
        return find(dotted)
    parent, _, name = dotted.rpartition(".")
    remedy = f"from {parent} import {name}"
    return _gone(f"the module {dotted}", remedies.package(dotted), at, None, remedy)


def find_attribute(cls: str, attribute: str) -> list[Gone]:
    """As `find`, for an attribute of a class of which only the class's own name is known."""
    owners = [o for o, a in _inventory()["attributes"].items() if attribute in a]
    entries = [find(f"{o}.{attribute}") for o in owners if o.rpartition(".")[2] == cls]
    return [entry for entry in entries if entry is not None]


@functools.cache
def owners() -> frozenset[str]:
    """The modules that lost something while they were there."""
    functions = _inventory()["keywords"]
    return frozenset({*_inventory()["names"], *(name.rpartition(".")[0] for name in functions)})


def names_with_an_equal(module: str) -> list[str]:
    """The names of a module, those of classes in it left out, that are something else today."""
    names = (*_inventory()["moved"], *remedies.RENAMED)
    return sorted({name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == module})


def answered_modules(package: str) -> list[str]:
    """A package's modules that are gone while some of their names are known to be elsewhere."""
    gone = {*_inventory()["modules"], *_inventory()["objects"]}
    elsewhere = {name.rpartition(".")[0] for name in (*_inventory()["moved"], *remedies.RENAMED)}
    answered = {*elsewhere, *remedies.ANSWERED} & gone
    return sorted(name for name in answered if name.startswith(f"{package}."))


def renamed_keywords(module: str) -> dict[str, dict[str, str]]:
    """A module's functions with keywords that have another name today: old -> new."""
    functions = {}
    for function, keywords in remedies.KEYWORDS.items():
        owner, _, name = function.rpartition(".")
        renamed = {old: new for old, new in keywords.items() if new.isidentifier()}
        if owner == module and renamed:
            functions[name] = renamed
    return functions


def by_position(function: str) -> tuple[str, ...]:
    """The first parameters of a function that could be given by keyword, and cannot today."""
    return remedies.BY_POSITION.get(function, ())


def alike_by_position(function: str) -> int | None:
    """The number of arguments that a function's new name takes by position as before; None: all."""
    return remedies.ALIKE_BY_POSITION.get(function, (None, ""))[0]


def functions_by_position(module: str) -> dict[str, tuple[str, ...]]:
    """A module's functions of which `by_position` knows parameters."""
    parts = {function.rpartition("."): names for function, names in remedies.BY_POSITION.items()}
    return {name: names for (owner, _, name), names in parts.items() if owner == module}


def names() -> list[str]:
    """Every name that `find` knows by itself, sorted; not what is below one."""
    return sorted(name for name in _positions() if find(name) is not None)


def _gone(name: str, package: str, at: int, new: str | None, remedy: str | None) -> Gone:
    read = _inventory()["read"][package]
    last = read[at][0]
    since = read[at + 1][0] if at + 1 < len(read) else _inventory()["today"][package]
    if remedy is None:
        remedy = (
            "give the argument by position, or leave it out"
            if name.endswith("=)")
            else f"no public name replaces it: do without, or run this with {package}=={last}"
        )
    return Gone(name, package, last, since, new, remedy)


@functools.cache
def _inventory() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("names.json").read_text(encoding="utf-8"))


@functools.cache
def _positions() -> dict[str, tuple[str, int]]:
    """Name -> its package, and the position of the last release that had it."""
    inventory = _inventory()
    positions = {name: (remedies.package(name), at) for name, at in inventory["modules"].items()}
    for kind in ("names", "attributes"):
        for owner, members in inventory[kind].items():
            package = remedies.package(owner)
            positions.update({f"{owner}.{name}": (package, at) for name, at in members.items()})
    return positions
