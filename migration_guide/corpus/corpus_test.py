"""Old programs give the same numbers four ways: on the genuine flax 0.5.3, through `run`, migrated,
and migrated to public Optax and Flax alone."""

import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from migration_guide.codemod import driver
from migration_guide.codemod.results import Options
from migration_guide.corpus.comparing import assert_close, numbers, printed_by

HERE = Path(__file__).parent
PROGRAMS = sorted(p for p in (HERE / "programs").iterdir() if not p.name.startswith("__"))
RECORDED = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))

_STAYS = re.compile(r"\bstays on (optax_bridge|legacy_optim)\b")


def _migrated(options: Options) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        copies = []
        for program in PROGRAMS:
            copy = Path(folder, program.name)
            shutil.copytree(program, copy) if program.is_dir() else shutil.copy(program, copy)
            # One by one: each is a program of its own.
            driver.save(driver.migrate([copy], options).results)
            copies.append(copy)
        return _outputs("plain", copies)


def _outputs(mode: str, programs: list[Path]) -> dict[str, str]:
    """What each program prints, in one fresh process that knows nothing of this one."""
    outputs = printed_by("worker.py", mode, *map(str, programs))
    return {Path(path).stem: text for path, text in outputs.items()}


def test_runs_as_it_is_and_migrated_exactly_with_the_same_bits(subtests: pytest.Subtests):
    as_they_are, migrated = _outputs("shim", PROGRAMS), _migrated(Options(recipe="exact"))
    for name, text in as_they_are.items():
        with subtests.test(name):
            assert_close(numbers(text), RECORDED[name])
            assert numbers(migrated[name]) == numbers(text)


@pytest.mark.parametrize("recipe", ["stock", "standalone"])
def test_migrated_gives_the_recorded_numbers(recipe: str, subtests: pytest.Subtests):
    for name, text in _migrated(Options(recipe=recipe)).items():
        with subtests.test(name):
            assert_close(numbers(text), RECORDED[name])


def test_migrated_says_what_it_left(subtests: pytest.Subtests):
    for program in PROGRAMS:
        with subtests.test(program.stem):
            assert not driver.migrate([program], Options()).by_hand
            report = driver.migrate([program], Options(recipe="standalone"))
            assert report.changed_files and not report.refusals
            for result in report.changed_files:
                uses = "optax_bridge." in result.code or "legacy_optim." in result.code
                assert uses == any(_STAYS.search(m.text) for m in result.messages)


def test_every_program_is_recorded():
    assert sorted(RECORDED) == sorted(p.stem for p in PROGRAMS)
