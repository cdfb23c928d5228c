"""`run` and JAX: what the program sets before it counts, and that time's defaults are back."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from legacy_optim import settings

ROOT = Path(__file__).resolve().parents[1]


def _run(
    folder: Path, text: str, *options: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "legacy_optim", *options, "program.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("path", [None, "mine", f"mine{os.pathsep}yours"])
def test_what_is_set_for_a_run_is_taken_off_again(
    path: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    plain = dict(os.environ)
    own = settings.environment("7", "uses", quiet=True, todays_defaults=True, advice="a:b")
    assert own["PYTHONPATH"].split(os.pathsep)[1:] == (path.split(os.pathsep) if path else [])
    assert {own[name] for name in own.keys() - plain.keys()} >= {"7", "uses", "1", "a:b"}
    assert settings.without_settings(own) == settings.without_settings(plain) == plain
    fewer = settings.environment("7", "", quiet=False, todays_defaults=False, advice="")
    assert fewer.keys() - plain.keys() - {"PYTHONPATH"} == {settings.PROCESS, settings.PYTHON}


FIRST_LINES = """\
import os
import legacy_optim  # needs no JAX either
os.environ["JAX_ENABLE_X64"] = "1"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
os.environ["JAX_DEFAULT_PRNG_IMPL"] = "rbg"
os.environ["JAX_THREEFRY_PARTITIONABLE"] = "1"
from flax import optim
import jax, jax.numpy as jnp
optimizer = optim.Adam(0.1).create(jnp.zeros(1))
print(optimizer.target.dtype, jax.device_count(), jax.random.PRNGKey(0).shape)
print(jax.config.jax_threefry_partitionable)
"""


def test_the_programs_first_lines_run_before_jax(tmp_path: Path):
    done = _run(tmp_path, FIRST_LINES, environment={"XLA_FLAGS": ""})
    assert done.stdout.splitlines() == ["float64 3 (4,)", "True"]
    assert "jax_threefry_partitionable" not in done.stderr


RANDOM = """\
import jax
{more}
print(jax.random.normal(jax.random.PRNGKey(7), (4,)).tolist())
"""
# What jax 0.4.13 prints; jax 0.2 and 0.3 have the same generator and the same default.
THEN = [-0.7554664611816406, -0.7377376556396484, -0.1165473535656929, -0.6856648325920105]
TODAY = [0.4512351453304291, 1.9534509181976318, -0.5162394642829895, -0.14094029366970062]


@pytest.mark.parametrize(
    ("more", "options", "environment", "expected"),
    [
        ("", (), {}, THEN),
        ("", ("--todays-defaults",), {}, TODAY),
        ("", (), {"JAX_THREEFRY_PARTITIONABLE": "true"}, TODAY),
        ("jax.config.update('jax_threefry_partitionable', True)", (), {}, TODAY),
    ],
    ids=["then", "option", "environment", "program"],
)
def test_defaults_are_those_of_that_time(
    tmp_path: Path,
    more: str,
    options: tuple[str, ...],
    environment: Mapping[str, str],
    expected: list[float],
):
    done = _run(tmp_path, RANDOM.format(more=more), *options, environment=environment)
    assert [float(x) for x in done.stdout.strip("[]\n").split(",")] == pytest.approx(
        expected, rel=1e-6
    )
    assert ("jax_threefry_partitionable=False" in done.stderr) == (expected is THEN)


PROCESSES = """\
import multiprocessing, os, subprocess, sys
from concurrent import futures
from flax import optim, struct

@struct.dataclass
class Result:
    value: float

def work(x):
    return Result(optim.Momentum(0.1).create(float(x)).target)

if __name__ == "__main__":
    os.fork() or sys.exit()  # its end is not the end of the program
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        print(list(pool.map(work, [1, 2])))
    code = "from flax import optim; print(optim.LAMB.__name__)"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_processes_that_a_program_starts_know_the_old_names(tmp_path: Path):
    done = _run(tmp_path, PROCESSES, environment={"TMPDIR": str(tmp_path)})
    assert not [*tmp_path.glob("*.uses")]
    # In either order: what the program itself prints may wait in its buffer.
    assert sorted(done.stdout.splitlines()) == ["LAMB", "[Result(value=1.0), Result(value=2.0)]"]
    assert done.stderr.count("optax-bridge: ") == 2  # the names and the defaults, said once
    assert "flax.optim.Momentum  program.py:10" in done.stderr  # used in the pool only
    assert "flax.optim.LAMB" in done.stderr


def test_a_finder_that_comes_first_later_does_not_go_around_the_answers(tmp_path: Path):
    program = """\
import sys
from importlib.machinery import PathFinder

class Finder:  # as pytest's, which takes test_*.py
    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, path) if name == "jax.test_util" else None

sys.meta_path.insert(0, Finder())
import jax
from jax import test_util
test_util.check_eq({"a": 1.0}, {"a": 1.0})
print("same")
"""
    assert _run(tmp_path, program, "--quiet").stdout == "same\n"
