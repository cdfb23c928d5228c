"""Every command, public name and rule has a row in docs/promises.md; every row's test exists."""

import ast
import fnmatch
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
COMMANDS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "entry-points"
]["optax_bridge.commands"]

Row = dict[str, list[str]]


def _rows() -> list[Row]:
    """The table's rows: the names and the tests of each, and the promise under "promise"."""
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    rows: list[Row] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| ") or cells[0] in ("promise", "") or len(cells) != 4:
            continue
        names, tests = (re.findall(r"`([^`]+)`", cell) for cell in cells[2:])
        rows.append({"promise": [cells[0]], "user": [cells[1]], "names": names, "tests": tests})
    return rows


ROWS = _rows()
# A row for all names holds for each; it says nothing of what one of them is for.
PATTERNS = [name for row in ROWS for name in row["names"] if name not in ("*", "optax_bridge*")]
PATTERNS = [pattern for pattern in PATTERNS if pattern != "optax-bridge *"]


def _public_names() -> list[str]:
    stubs = sorted(ROOT.glob("*/__init__.pyi")) + sorted(ROOT.glob("*/*/__init__.pyi"))
    names: list[str] = []
    for stub in stubs:
        package = ".".join(stub.parent.relative_to(ROOT).parts)
        for node in ast.parse(stub.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                names += [f"{package}.{alias.asname or alias.name}" for alias in node.names]
    return names


def _rules() -> list[str]:
    files = sorted((ROOT / "migration_guide" / "codemod" / "rules").glob("[!_]*.py"))
    return [f"rule {file.stem}" for file in files if not file.stem.endswith("_test")]


def _public_modules() -> list[str]:
    """The modules with a page of their own in the reference."""
    pages = sorted((ROOT / "migration_guide" / "source" / "reference").glob("*.*.md"))
    return [page.stem for page in pages if page.stem != "optax_bridge.spmd"]


NAMES = [*(f"optax-bridge {command}" for command in COMMANDS), *_public_names(), *_rules()]


@pytest.mark.parametrize("name", sorted({*NAMES, *_public_modules()}))
def test_name_has_a_row(name: str) -> None:
    names = (name, f"{name}.*")  # of a module a row has what is in it
    assert any(fnmatch.fnmatchcase(each, pattern) for each in names for pattern in PATTERNS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["promise"][0][:40])
def test_row_has_a_user_a_name_that_exists_and_tests_that_exist(row: Row) -> None:
    assert row["user"][0]
    assert row["names"] and row["tests"]
    for pattern in row["names"]:
        module = pattern.removesuffix(".*").replace(".", "/")
        exists = (ROOT / f"{module}.py").is_file() or (ROOT / module).is_dir()
        assert exists or fnmatch.filter(NAMES, pattern), pattern
    for test in row["tests"]:
        path = ROOT / test
        assert path.name.endswith("_test.py") and path.is_file(), test


def test_no_name_is_promised_by_two_rows_with_the_same_test() -> None:
    pairs = [(name, test) for row in ROWS for name in row["names"] for test in row["tests"]]
    assert sorted({pair for pair in pairs if pairs.count(pair) > 1}) == []
