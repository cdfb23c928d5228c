"""Old programs give the same numbers four ways: on the genuine flax 0.5.3, through `run`, migrated,
and migrated to public Optax and Flax alone."""

import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from migration_guide.codemod import driver
from migration_guide.codemod.results import Options, Report
from migration_guide.corpus.comparing import assert_close, numbers, printed_by

HERE = Path(__file__).parent
PROGRAMS = sorted(p for p in (HERE / "programs").iterdir() if not p.name.startswith("__"))
RECORDED = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))

_STAYS = re.compile(r"\bstays on (optax_bridge|legacy_optim)\b")


def _migrated(options: Options) -> tuple[dict[str, str], dict[str, Report]]:
    """What each program prints after it was migrated, and what was said of it."""
    reports: dict[str, Report] = {}
    with tempfile.TemporaryDirectory() as folder:
        copies = []
        for program in PROGRAMS:
            copy = Path(folder, program.name)
            shutil.copytree(program, copy) if program.is_dir() else shutil.copy(program, copy)
            # One by one: each is a program of its own.
            reports[program.stem] = driver.migrate([copy], options)
            driver.save(reports[program.stem].results)
            copies.append(copy)
        return _outputs("plain", copies), reports


def _outputs(mode: str, programs: list[Path]) -> dict[str, str]:
    """What each program prints, in one fresh process that knows nothing of this one."""
    outputs = printed_by("worker.py", mode, *map(str, programs))
    return {Path(path).stem: text for path, text in outputs.items()}


def test_runs_as_it_is_and_migrated_exactly_with_the_same_bits(subtests: pytest.Subtests):
    as_they_are, migrated = _outputs("shim", PROGRAMS), _migrated(Options(recipe="exact"))[0]
    for name, text in as_they_are.items():
        with subtests.test(name):
            assert_close(numbers(text), RECORDED[name])
            assert numbers(migrated[name]) == numbers(text)


@pytest.mark.parametrize("recipe", ["stock", "standalone"])
def test_migrated_gives_the_recorded_numbers_and_says_what_it_left(
    recipe: str, subtests: pytest.Subtests
):
    printed, reports = _migrated(Options(recipe=recipe))
    for name, text in printed.items():
        with subtests.test(name):
            assert_close(numbers(text), RECORDED[name])
            report = reports[name]
            assert report.changed_files and not report.refusals
            assert recipe == "standalone" or not report.by_hand
            for result in report.changed_files if recipe == "standalone" else ():
                uses = "optax_bridge." in result.code or "legacy_optim." in result.code
                assert uses == any(_STAYS.search(m.text) for m in result.messages)


def test_every_program_is_recorded():
    assert sorted(RECORDED) == sorted(p.stem for p in PROGRAMS)
