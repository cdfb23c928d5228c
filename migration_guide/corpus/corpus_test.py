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
from migration_guide.codemod.writing.context import Options
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
def test_runs_as_it_is_and_migrated_exactly_with_the_same_bits(program: Path):
    printed = numbers(_as_they_are()[program.stem])
    assert_close(printed, RECORDED[program.stem])
    assert numbers(_migrated(Options(recipe="exact"))[program.stem]) == printed


@pytest.mark.sample(24)
@each_program
@pytest.mark.parametrize("recipe", ["stock", "standalone"])
def test_migrated_gives_the_recorded_numbers_and_says_what_it_left(program: Path, recipe: str):
    options = Options(recipe=recipe)
    assert_close(numbers(_migrated(options)[program.stem]), RECORDED[program.stem])
    report = driver.migrate([program], options)
    assert report.changed and not report.refused
    if recipe == "stock":
        assert not report.by_hand
        return
    for result in report.changed:
        uses = "optax_bridge." in result.code or "legacy_optim." in result.code
        assert uses == any(_STAYS.search(m.text) for m in result.messages)


def test_every_program_is_recorded():
    assert sorted(RECORDED) == sorted(p.stem for p in PROGRAMS)
