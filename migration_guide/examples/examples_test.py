"""Each after-program is what `migrate` makes of its before-program, and trains as that once did.

Here the first steps are taken, from scratch and from the checkpoint that the genuine flax 0.5.3
saved half-way; `nox -s examples` runs the programs to their ends.
"""

import functools
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from migration_guide.corpus.comparing import assert_close, columns, lines, outputs
from migration_guide.examples import pairs

NUM_STEPS = 3
AFTER = [(name, step) for name in pairs.NAMES for step in ("after", *pairs.further_steps(name))]

each_example = pytest.mark.parametrize("name", pairs.NAMES)
each_after = pytest.mark.parametrize(("name", "step"), AFTER, ids=["-".join(a) for a in AFTER])


def _recorded(name: str, program: str, start: int) -> dict[str, Any]:
    """The genuine program's metrics in the steps after `start`."""
    found = {}
    for metric, column in pairs.recorded(name, program, half_way=start > 0).items():
        rows = zip(column["steps"], column["values"], strict=True)
        chosen = [row for row in rows if start < row[0] <= start + NUM_STEPS]
        if chosen:
            steps, values = zip(*chosen, strict=True)
            found[metric] = {"steps": list(steps), "values": list(values)}
    return found


def _saved_at(name: str) -> int:
    (saved,) = (pairs.HERE / name / "saved").iterdir()
    return int(saved.name.rpartition("_")[2])


@functools.cache
def _printed(mode: str) -> dict[tuple[str, str, int], str]:
    """(example, program, first step) -> what it printed, of all of them in one fresh process."""
    programs = AFTER if mode == "plain" else [(name, "before") for name in pairs.NAMES]
    programs = [(name, step) for name, step in programs if not _missing(name)]
    with tempfile.TemporaryDirectory() as root:
        jobs = {}
        for name, step in programs:
            for start in (0, _saved_at(name)):
                workdir = Path(root, name, step, str(start))
                workdir.mkdir(parents=True)
                if start:
                    shutil.copytree(pairs.HERE / name / "saved", workdir, dirs_exist_ok=True)
                path = str(pairs.HERE / name / f"{step}.py")
                flags = ["--workdir", str(workdir), "--num_steps", str(start + NUM_STEPS)]
                jobs[name, step, start] = [path, *flags]
        return outputs(mode, jobs)


def _missing(name: str) -> str:
    """A package that an example needs and that is not installed here, or ""."""
    needs = pairs.EXAMPLES[name].needs
    return next((package for package in needs if importlib.util.find_spec(package) is None), "")


def _metrics(mode: str, name: str, step: str, start: int) -> dict[str, Any]:
    if missing := _missing(name):
        pytest.skip(f"{missing} is not installed: pip install 'optax-bridge[examples]'")
    return columns(lines(_printed(mode)[name, step, start]))


@each_example
def test_after_is_migrated_and_what_is_by_hand(name: str):
    written = {p.stem: p.read_text(encoding="utf-8") for p in (pairs.HERE / name).glob("*.py")}
    del written["before"]
    assert written == pairs.programs(name), "python -m migration_guide.examples.pairs writes them"


@each_example
@pytest.mark.parametrize("half_way", [False, True], ids=["from scratch", "from half-way"])
def test_before_runs_as_it_is(name: str, half_way: bool):
    start = _saved_at(name) if half_way else 0
    assert_close(_metrics("shim", name, "before", start), _recorded(name, "before", start))


@each_after
@pytest.mark.parametrize("half_way", [False, True], ids=["from scratch", "from half-way"])
def test_after_gives_the_recorded_metrics(name: str, step: str, half_way: bool):
    start = _saved_at(name) if half_way else 0
    assert_close(_metrics("plain", name, step, start), _recorded(name, step, start))


@each_example
def test_after_gives_the_same_bits_as_before_where_its_recipe_does(name: str):
    for start in (0, _saved_at(name)):
        same = _metrics("plain", name, "after", start) == _metrics("shim", name, "before", start)
        assert same or pairs.EXAMPLES[name].rounding


def test_every_folder_is_an_example():
    assert sorted(pairs.NAMES) == sorted(p.parent.name for p in pairs.HERE.glob("*/before.py"))
