"""Every command, public name and rule has a row in the table of promises, and every row a test."""

import importlib
import re
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType

import pytest

from migration_guide.cells import SOURCE
from migration_guide.codemod.registry import RULES

ROOT = Path(__file__).parent
LEDGER = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
# The last section holds for every name, so it says nothing of one.
SECTIONS = LEDGER.partition("## For all commands")[0]


def rows(text: str) -> list[list[str]]:
    lines = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [cells for line in lines if (cells := line.split(" | "))[0] != "promise"]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def public_names(module: ModuleType) -> Iterable[str]:
    """The names that a module lists, or defines, or imports from below itself."""
    values = {name: getattr(module, name) for name in getattr(module, "__all__", vars(module))}
    for name, value in values.items():
        home = f"{getattr(value, '__module__', '')}."
        if hasattr(module, "__all__"):
            is_public = not isinstance(value, ModuleType)
        else:
            is_public = home.startswith(f"{module.__name__}.") and not name.startswith("_")
        if is_public:
            yield name


PATTERNS = [pattern for row in rows(SECTIONS) for pattern in quoted(row[2])]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS = [f"optax-bridge {name}" for name in PROJECT["entry-points"]["optax_bridge.commands"]]
PAGES = (SOURCE / "reference").glob("*.md")
MODULES = [importlib.import_module(page.stem) for page in PAGES if page.stem != "command"]
PUBLIC = [f"{module.__name__}.{name}" for module in MODULES for name in public_names(module)]


@pytest.mark.parametrize("kind", ["command", "public name", "rule"])
def test_everything_that_is_promised_has_a_row(kind: str) -> None:
    rules = [f"rule {rule.name}" for rule in RULES]
    names = {"command": COMMANDS, "public name": PUBLIC, "rule": rules}[kind]
    assert [n for n in names if not any(fnmatchcase(n, p) for p in PATTERNS)] == []


def test_every_row_is_of_something_that_is_there(subtests: pytest.Subtests) -> None:
    names = [*COMMANDS, *PUBLIC, *(f"rule {rule.name}" for rule in RULES)]
    for pattern in PATTERNS:
        with subtests.test(pattern):
            assert any(fnmatchcase(name, pattern) for name in names)


def test_every_row_has_a_user_and_a_test(subtests: pytest.Subtests) -> None:
    for promise, user, names, tests in rows(LEDGER):
        with subtests.test(promise):
            assert user and quoted(names) and quoted(tests)
            for test in quoted(tests):
                file, _, function = test.partition("::")
                path = ROOT / file
                assert any(path.glob("*_test.py")) if path.is_dir() else path.is_file()
                assert not function or f"def {function}(" in path.read_text(encoding="utf-8")
