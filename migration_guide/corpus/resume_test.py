"""What old programs saved on the genuine flax 0.5.3 goes on with the numbers that it goes on with
there: through `run`, migrated, migrated exactly, and by `TrainState.from_legacy_checkpoint`."""

import functools
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from migration_guide.codemod.results import Report
from migration_guide.corpus.comparing import assert_close, numbers, outputs, printed_by
from migration_guide.corpus.migrating import migrated_copies
from migration_guide.corpus.worker import NUM_STEPS

HERE = Path(__file__).parent
SAVED = HERE / "saved"
PROGRAMS = sorted(
    [path for path in (HERE / "programs").iterdir() if Path(SAVED, path.stem).is_dir()]
    + list((HERE / "resumed").glob("*.py")),
    key=lambda path: path.stem,
)
RECORDED = json.loads((HERE / "resumed.json").read_text(encoding="utf-8"))


@functools.cache
def _migrated() -> dict[tuple[str, str], tuple[str, dict[str, bytes], Report]]:
    """Recipe and name -> each migrated program as it went on, and what migrate said of it."""
    with tempfile.TemporaryDirectory() as folder:
        reports, first = migrated_copies(PROGRAMS, ("exact", "auto"), Path(folder))
        resumed = _resumed("plain", set(first.values()))
    return {
        (copy.parent.name, copy.stem): (*resumed[first[copy]], report)
        for copy, report in reports.items()
    }


def _resumed(mode: str, programs: Iterable[Path]) -> dict[Path, tuple[str, dict[str, bytes]]]:
    """Lends each program its checkpoint; returns what it printed, and its files afterwards."""
    with tempfile.TemporaryDirectory() as root:
        folders = {path: Path(root, str(n), path.stem) for n, path in enumerate(programs)}
        for path, folder in folders.items():
            shutil.copytree(SAVED / path.stem, folder)
        jobs = {path: [str(path), str(folder), NUM_STEPS] for path, folder in folders.items()}
        printed = outputs(mode, jobs)
        return {path: (printed[path], _files(folders[path])) for path in folders}


def _files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_goes_on_as_it_is_and_migrated_exactly_with_the_same_bits(subtests: pytest.Subtests):
    for path, (printed, _) in _resumed("shim", PROGRAMS).items():
        with subtests.test(name := path.stem):
            assert_close(numbers(printed), RECORDED[name]["printed"])
            printed_exactly, _, _ = _migrated()["exact", name]
            assert numbers(printed_exactly) == numbers(printed)


def test_goes_on_migrated_with_nothing_left_by_hand(subtests: pytest.Subtests):
    for name, recorded in RECORDED.items():
        with subtests.test(name):
            printed, _, report = _migrated()["auto", name]
            assert_close(numbers(printed), recorded["printed"])
            assert report.changed_files and not report.refusals and not report.by_hand


def test_train_state_takes_the_steps_of_the_optimizer_which_are_recorded(
    subtests: pytest.Subtests, tmp_path: Path
):
    for program in PROGRAMS:
        shutil.copytree(SAVED / program.stem, tmp_path / program.stem)
    stepped = printed_by("next_steps.py", str(tmp_path), *map(str, PROGRAMS))
    for name, parts in stepped.items():
        with subtests.test(name):
            assert isinstance(parts, dict), parts
            steps = {part: sides["train_state"] for part, sides in parts.items()}
            assert_close(steps, RECORDED[name]["next_steps"])
            assert steps == {part: sides["optimizer"] for part, sides in parts.items()}


def test_old_files_stay_where_the_programs_left_them_and_new_ones_are_of_today(
    subtests: pytest.Subtests,
):
    for name, recorded in RECORDED.items():
        with subtests.test(name):
            ((path, data),) = _files(SAVED / name).items()
            new = dict(_migrated()["auto", name][1])
            stays = new.get(path) == data
            assert stays or not recorded["old_file_stays"]
            if stays:
                del new[path]
            of_today = [b"opt_state" in text or "opt_state" in file for file, text in new.items()]
            assert any(of_today) or not recorded["saves_again"]
