"""Old programs give the same numbers four ways: on the genuine flax 0.5.3, through `run`, migrated,
and migrated to public Optax and Flax alone."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from migration_guide.codemod import driver
from migration_guide.codemod.context import Options

HERE = Path(__file__).parent
PROGRAMS = sorted(p for p in (HERE / "programs").iterdir() if not p.name.startswith("__"))
RECORDED = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))

# Across three years of JAX the same source drifts by up to 7e-7 of a tensor's largest value in 30
# steps; a stock recipe adds a rounding per step. An error in an algorithm shows at 1e-4 and above.
OF_SCALE = 2e-6

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
    environment = dict(os.environ)
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    environment["PYTHONPATH"] = str(HERE.parents[1])
    command = [sys.executable, str(HERE / "worker.py"), mode, *map(str, programs)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout)
    return {Path(path).stem: text for path, text in outputs.items()}


def _numbers(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise AssertionError(text) from None


def _assert_close(found: Any, expected: Any, place: str = "") -> None:
    """Same structure; numbers within OF_SCALE of the largest in their array."""
    if isinstance(expected, dict):
        assert sorted(found) == sorted(expected), place
        for key in expected:
            _assert_close(found[key], expected[key], f"{place}[{key!r}]")
    elif isinstance(expected, list) and not _is_array(expected):
        assert len(found) == len(expected), place
        for index, (a, b) in enumerate(zip(found, expected, strict=True)):
            _assert_close(a, b, f"{place}[{index}]")
    else:
        scale = float(np.max(np.abs(expected))) if np.size(expected) else 0.0
        np.testing.assert_allclose(found, expected, rtol=0, atol=OF_SCALE * scale, err_msg=place)


def _is_array(value: list[Any]) -> bool:
    """Whether nested lists are one array, whose largest magnitude is the scale."""
    try:
        return np.asarray(value, dtype=np.float64).dtype != object
    except (TypeError, ValueError):
        return False


@each_program
def test_runs_as_it_is(program: Path):
    _assert_close(_numbers(_as_they_are()[program.stem]), RECORDED[program.stem])


@each_program
def test_migrated_gives_the_recorded_numbers(program: Path):
    _assert_close(_numbers(_migrated(Options())[program.stem]), RECORDED[program.stem])


@each_program
def test_migrated_exactly_gives_the_same_bits_as_run(program: Path):
    assert _numbers(_migrated(Options(exact=True))[program.stem]) == _numbers(
        _as_they_are()[program.stem]
    )


@each_program
def test_standalone_gives_the_recorded_numbers(program: Path):
    printed = _migrated(Options(standalone=True))[program.stem]
    _assert_close(_numbers(printed), RECORDED[program.stem])


@each_program
def test_what_stays_on_this_package_says_why(program: Path):
    report = driver.migrate([program], Options(standalone=True))
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
