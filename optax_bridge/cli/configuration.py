# pyright: strict
"""`[tool.optax-bridge]` of a pyproject.toml: defaults for the options of commands.

[tool.optax-bridge]
paths = ["src", "notebooks"]  # migrate: the folders that are read where no path is given
skip = ["gone_names"]         # migrate: rules not to apply
recipe = "exact"              # migrate and convert: auto, exact or optax
"""

import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from optax_bridge._text import did_you_mean, nearest

RECIPES = ("auto", "exact", "optax")
LIST = "`optax-bridge migrate --list` prints all"
_TABLE = "optax-bridge"
_KEYS = ("paths", "skip", "recipe")


class ConfigurationError(ValueError):
    """A setting, or a name on the command line, that is not valid; lists the valid ones."""


@dataclass(frozen=True)
class Configuration:
    """The settings of a project."""

    paths: tuple[Path, ...] = ()
    skip: tuple[str, ...] = ()
    recipe: str = "auto"


def read_configuration(folder: Path, rules: Collection[str] | None = None) -> Configuration:
    """Returns the settings of the nearest pyproject.toml that has some, in a folder or above it."""
    for home in (folder, *folder.parents):
        file = home / "pyproject.toml"
        try:
            text = file.read_text(encoding="utf-8") if file.is_file() else ""
            table = tomllib.loads(text).get("tool", {}).get(_TABLE) if _TABLE in text else None
        except (OSError, ValueError, RecursionError, AttributeError) as error:
            raise ConfigurationError(f"{file}: cannot be read: {error}") from None
        if table is not None:
            return _configuration(file, table, rules)
    return Configuration()


def _configuration(file: Path, table: Any, rules: Collection[str] | None) -> Configuration:
    where = f"{file}, [tool.{_TABLE}]"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where}: expected a table, found {table!r}")
    settings = cast(dict[str, Any], table)
    check_names(settings, _KEYS, f"{where}: no setting", f"there are {', '.join(_KEYS)}")
    for key in ("paths", "skip"):
        value: Any = settings.get(key, [])
        if not isinstance(value, list) or not all(isinstance(x, str) for x in cast(Any, value)):
            raise ConfigurationError(f"{where}: {key} must be a list of strings; found {value!r}")
    paths, skip = settings.get("paths", []), settings.get("skip", [])
    recipe = settings.get("recipe", "auto")
    if rules is not None:
        check_names(skip, rules, f"{where}: skip names no rule")
    if recipe not in RECIPES:
        raise ConfigurationError(
            f"{where}: recipe is one of {', '.join(RECIPES)}; found {recipe!r}"
            f"{did_you_mean(str(recipe), RECIPES)}"
        )
    return Configuration(tuple(file.parent / path for path in paths), tuple(skip), recipe)


def check_names(
    names: Iterable[str], valid: Collection[str], message: str, remedy: str = LIST
) -> None:
    """Checks that all names are known."""
    for name in names:
        if name not in valid:
            similar = nearest(name, valid)
            hint = f"is {similar!r} meant? ({remedy})" if similar else remedy
            raise ConfigurationError(f"{message} {name!r}; {hint}")
