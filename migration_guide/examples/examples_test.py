"""Each after-program is what `migrate` makes of its before-program, and trains as that once did.

Here the first steps are taken, from scratch and from the checkpoint that the genuine flax 0.5.3
saved two steps before an evaluation; `nox -s examples` runs the programs to their ends.
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

each_example = pytest.mark.parametrize("name", pairs.NAMES)
# How old programs go on as they are, the corpus shows too; the steps of two compile for longest.
_NAMES = {
    "before": [name for name in pairs.NAMES if name not in ("imagenet", "wmt")],
    "after": [*pairs.NAMES],
}
_RUNS = [(name, program) for program, names in _NAMES.items() for name in names]


def _end(start: int) -> int:
    """The last step of a run that begins behind a step."""
    return start + 2 if start else 3


def _recorded(name: str, start: int) -> dict[str, Any]:
    """The genuine program's metrics in the steps after `start`."""
    return columns([
        {"step": step, metric: value}
        for metric, column in pairs.recorded(name).items()
        for step, value in zip(column["steps"], column["values"], strict=True)
        if start < step <= _end(start)
    ])  # fmt: skip


def _saved_at(name: str) -> int:
    (saved,) = (pairs.HERE / name / "saved").iterdir()
    return int(saved.name.rpartition("_")[2])


@functools.cache
def _printed(program: str) -> dict[tuple[str, int], str]:
    """(example, first step) -> what it printed, of all examples in one fresh process."""
    with tempfile.TemporaryDirectory() as root:
        jobs = {}
        for name in _NAMES[program]:
            for start in () if _missing(name) else _starts(program, name):
                workdir = Path(root, name, str(start))
                workdir.mkdir(parents=True)
                if start:
                    shutil.copytree(pairs.HERE / name / "saved", workdir, dirs_exist_ok=True)
                path = str(pairs.HERE / name / f"{program}.py")
                flags = ["--workdir", str(workdir), "--num_steps", str(_end(start))]
                jobs[name, start] = [path, *flags]
        return outputs("shim" if program == "before" else "plain", jobs)


def _starts(program: str, name: str) -> list[int]:
    """The first steps of runs; how an old program starts as it is, the corpus shows."""
    return [0, _saved_at(name)] if program == "after" else [_saved_at(name)]


def _missing(name: str) -> str:
    """A package that an example needs and that is not installed here, or ""."""
    needs = pairs.EXAMPLES[name].needs
    return next((package for package in needs if importlib.util.find_spec(package) is None), "")


def _metrics(program: str, name: str, start: int) -> dict[str, Any]:
    if missing := _missing(name):
        pytest.skip(f"{missing} is not installed: pip install 'optax-bridge[examples]'")
    return columns(lines(_printed(program)[name, start]))


@each_example
def test_after_is_migrated(name: str):
    after = (pairs.HERE / name / "after.py").read_text(encoding="utf-8")
    assert after == pairs.migrated(name), "python -m migration_guide.examples.pairs writes it"


@pytest.mark.parametrize(("name", "program"), _RUNS)
def test_it_gives_the_recorded_metrics(name: str, program: str):
    for start in _starts(program, name):
        recorded = _recorded(name, start)
        assert bool(start) == (pairs.EXAMPLES[name].final in recorded)
        assert_close(_metrics(program, name, start), recorded)


@pytest.mark.parametrize("name", _NAMES["before"])
def test_after_gives_the_same_bits_as_before_where_its_recipe_does(name: str):
    start = _saved_at(name)
    same = _metrics("after", name, start) == _metrics("before", name, start)
    assert same or pairs.EXAMPLES[name].rounding


def test_every_folder_is_an_example():
    assert sorted(pairs.NAMES) == sorted(p.parent.name for p in pairs.HERE.glob("*/before.py"))
