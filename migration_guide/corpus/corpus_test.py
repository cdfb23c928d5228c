"""Old programs give the same numbers four ways: on the genuine flax 0.5.3, through `run`, migrated,
and migrated to public Optax and Flax alone."""

import functools
import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from migration_guide.codemod import driver
from migration_guide.codemod.context import Options
from migration_guide.corpus.comparing import assert_close, numbers, printed_by

HERE = Path(__file__).parent
PROGRAMS = sorted(p for p in (HERE / "programs").iterdir() if not p.name.startswith("__"))
RECORDED = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))

_STAYS = re.compile(r"\bstays on (optax_bridge|legacy_optim)\b")

each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)


@functools.cache
def _as_they_are() -> dict[str, str]:
    return _outputs("shim", PROGRAMS)


@functools.cache
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


@each_program
def test_runs_as_it_is(program: Path):
    assert_close(numbers(_as_they_are()[program.stem]), RECORDED[program.stem])


@pytest.mark.sample(24)
@each_program
def test_migrated_gives_the_recorded_numbers(program: Path):
    assert_close(numbers(_migrated(Options())[program.stem]), RECORDED[program.stem])


@each_program
def test_migrated_exactly_gives_the_same_bits_as_run(program: Path):
    assert numbers(_migrated(Options(recipe="exact"))[program.stem]) == numbers(
        _as_they_are()[program.stem]
    )


@each_program
def test_standalone_gives_the_recorded_numbers(program: Path):
    printed = _migrated(Options(recipe="standalone"))[program.stem]
    assert_close(numbers(printed), RECORDED[program.stem])


@each_program
def test_what_stays_on_this_package_says_why(program: Path):
    report = driver.migrate([program], Options(recipe="standalone"))
    for result in report.changed:
        uses = "optax_bridge." in result.new or "legacy_optim." in result.new
        assert uses == any(_STAYS.search(m.text) for m in result.messages)


@each_program
def test_nothing_is_left_to_do_by_hand(program: Path):
    report = driver.migrate([program], Options())
    assert report.changed
    said = [(m.line, m.text) for r in report.results for m in r.messages if m.by_hand]
    assert said == []
    assert [r.refused for r in report.results if r.refused] == []


def test_every_program_is_recorded():
    assert sorted(RECORDED) == sorted(p.stem for p in PROGRAMS)
