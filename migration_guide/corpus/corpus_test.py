"""Old programs give the same numbers four ways: on the genuine flax 0.5.3, through `run`, migrated,
and migrated to public Optax and Flax alone."""

import functools
import json
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from migration_guide.codemod.results import Report
from migration_guide.corpus.comparing import assert_close, numbers, outputs
from migration_guide.corpus.migrating import migrated_copies

HERE = Path(__file__).parent
PROGRAMS = sorted(p for p in (HERE / "programs").iterdir() if not p.name.startswith("__"))
RECORDED = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))

_STAYS = re.compile(r"\bstays on (optax_bridge|legacy_optim)\b")


class Migrated(NamedTuple):
    """The numbers that a migrated program prints, and what was said of the migration."""

    printed: str
    report: Report


@functools.cache
def _migrated() -> dict[tuple[str, str], Migrated]:
    """Recipe and name -> each program, all of them run in one fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        reports, first = migrated_copies(PROGRAMS, ("auto", "exact", "optax"), Path(folder))
        printed = outputs("plain", {copy: [str(copy)] for copy in set(first.values())})
    return {
        (copy.parent.name, copy.stem): Migrated(printed[first[copy]], report)
        for copy, report in reports.items()
    }


def test_runs_as_it_is_and_migrated_exactly_with_the_same_bits(subtests: pytest.Subtests):
    as_they_are = outputs("shim", {program.stem: [str(program)] for program in PROGRAMS})
    for name, text in as_they_are.items():
        with subtests.test(name):
            assert_close(numbers(text), RECORDED[name])
            assert numbers(_migrated()["exact", name].printed) == numbers(text)


@pytest.mark.parametrize("recipe", ["auto", "optax"])
def test_migrated_gives_the_recorded_numbers_and_says_what_it_left(
    recipe: str, subtests: pytest.Subtests
):
    for name, recorded in RECORDED.items():
        with subtests.test(name):
            printed, report = _migrated()[recipe, name]
            assert_close(numbers(printed), recorded)
            assert report.changed_files and not report.refusals
            assert recipe == "optax" or not report.by_hand
            for result in report.changed_files if recipe == "optax" else ():
                uses = "optax_bridge." in result.code or "legacy_optim." in result.code
                assert uses == any(_STAYS.search(m.text) for m in result.messages)


def test_what_is_not_close_is_told():
    assert_close(
        {"a": [1e6, 1.0], "b": [[1.0], [2.0, 3.0]]}, {"a": [1e6, 2.0], "b": [[1.0], [2, 3]]}
    )
    for actual, expected in [
        (1.0, 1.00001),
        ([1.0, 1e-5], [1.0, 0.0]),
        ([[1.0], [2.0, 3.0]], [[1.0], [2.0, 4.0]]),
        ([[1.0]], [[1.0], [2.0, 3.0]]),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0}),
        ({"a": [1.0]}, {"a": [1.0], "b": []}),
        (float("nan"), 1.0),
    ]:
        with pytest.raises(AssertionError):
            assert_close(actual, expected)
