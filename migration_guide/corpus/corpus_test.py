"""Old programs give the same numbers four ways: on the genuine flax 0.5.3, through `run`, migrated,
and migrated to public Optax and Flax alone."""

import functools
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from migration_guide.codemod import driver
from migration_guide.codemod.results import Options, Report
from migration_guide.corpus.comparing import assert_close, numbers, outputs

HERE = Path(__file__).parent
PROGRAMS = sorted(p for p in (HERE / "programs").iterdir() if not p.name.startswith("__"))
RECORDED = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))

RECIPES = ("auto", "exact", "optax")
_STAYS = re.compile(r"\bstays on (optax_bridge|legacy_optim)\b")


class Migrated(NamedTuple):
    """The numbers that a migrated program prints, and what was said of the migration."""

    printed: str
    report: Report


def migrate_copies(
    programs: Iterable[Path], recipes: Sequence[str], folder: Path
) -> dict[Path, Report]:
    """Writes each program, migrated alone by each recipe, to `folder/RECIPE/NAME`."""
    reports: dict[Path, Report] = {}
    for recipe in recipes:
        (folder / recipe).mkdir()
        for program in programs:
            copy = folder / recipe / program.name
            shutil.copytree(program, copy) if program.is_dir() else shutil.copy(program, copy)
            reports[copy] = driver.migrate([copy], Options(recipe=recipe))
            driver.save(reports[copy].results)
    return reports


def first_alike(copies: Iterable[Path]) -> dict[Path, Path]:
    """Copy -> the first one with the same code, since a second run of it shows nothing new."""
    first: dict[bytes, Path] = {}
    return {copy: first.setdefault(_code(copy), copy) for copy in copies}


def _code(copy: Path) -> bytes:
    files = [copy] if copy.is_file() else sorted(copy.rglob("*.py"))
    return b"".join(file.name.encode() + file.read_bytes() for file in files)


@functools.cache
def _migrated() -> dict[str, dict[str, Migrated]]:
    """Recipe -> name -> each program, all of them run in one fresh process."""
    programs: dict[str, dict[str, Migrated]] = {recipe: {} for recipe in RECIPES}
    with tempfile.TemporaryDirectory() as folder:
        reports = migrate_copies(PROGRAMS, RECIPES, Path(folder))
        first = first_alike(reports)
        printed = outputs("plain", {copy: [str(copy)] for copy in set(first.values())})
    for copy, report in reports.items():
        programs[copy.parent.name][copy.stem] = Migrated(printed[first[copy]], report)
    return programs


def test_runs_as_it_is_and_migrated_exactly_with_the_same_bits(subtests: pytest.Subtests):
    as_they_are = outputs("shim", {program.stem: [str(program)] for program in PROGRAMS})
    for name, text in as_they_are.items():
        with subtests.test(name):
            assert_close(numbers(text), RECORDED[name])
            assert numbers(_migrated()["exact"][name].printed) == numbers(text)


@pytest.mark.parametrize("recipe", ["auto", "optax"])
def test_migrated_gives_the_recorded_numbers_and_says_what_it_left(
    recipe: str, subtests: pytest.Subtests
):
    for name, (printed, report) in _migrated()[recipe].items():
        with subtests.test(name):
            assert_close(numbers(printed), RECORDED[name])
            assert report.changed_files and not report.refusals
            assert recipe == "optax" or not report.by_hand
            for result in report.changed_files if recipe == "optax" else ():
                uses = "optax_bridge." in result.code or "legacy_optim." in result.code
                assert uses == any(_STAYS.search(m.text) for m in result.messages)


def test_every_program_is_recorded():
    assert sorted(RECORDED) == sorted(p.stem for p in PROGRAMS)
