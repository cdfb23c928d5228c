"""Recording on one platform, comparing on another: files, exit codes and what is said."""

import contextlib
import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equivalence_tests.cli.check import run_suite
from equivalence_tests.compare.trees import leaf_name
from equivalence_tests.recordings.format import read_packed
from equivalence_tests.recordings.stages import Outcome
from equivalence_tests.report.outputs import Outputs
from equivalence_tests.report.recording import NOT_RUN, against, save
from equivalence_tests.sides.inputs import digits
from equivalence_tests.suite import checks as suite
from equivalence_tests.suite.case import Result
from optax_bridge.correspondence import Verdict

ENVIRONMENT = {"platform": "cpu", "device": "cpu"}


def result(change: float = 0.0, name: str = "sgd") -> suite.Result:
    values = {"w": np.ones((3, 2), np.float32), "h": jnp.full((3, 1), 1 + change, jnp.bfloat16)}
    return Result(suite.Check(name, 0), "", trajectory={"params": values})


@pytest.mark.parametrize(
    ("change", "verdict"),
    [(0.0, Verdict.IDENTICAL), (1 / 64, Verdict.ROUNDING), (1000.0, Verdict.DIFFERENT)],
)
def test_verdict_against_a_recording(change: float, verdict: Verdict, tmp_path: Path):
    save(tmp_path / "run", [result()], ENVIRONMENT)
    (outcome,) = against([result(change)], read_packed(tmp_path / "run"))
    assert outcome.outcome.value == verdict.value


def test_a_parameter_without_a_gradient_is_left_out_of_a_closed_loop(tmp_path: Path):
    """What it holds is rounding at full step size, and another platform's is another."""
    (name,) = digits.without_gradient("transformer")
    assert name.endswith("['key']['bias']")
    assert not digits.without_gradient("cnn")
    params = digits.task("transformer").params
    found = Result(suite.Check("adam", 0, "transformer"), "")

    def shifted(which: str, by: float) -> suite.Result:
        values = jax.tree_util.tree_map_with_path(
            lambda path, leaf: np.asarray(leaf)[None] + by * (which in leaf_name(path, "params")),
            params,
        )
        return dataclasses.replace(found, trajectory={"params": values})

    save(tmp_path / "run", [shifted("", 0.0)], ENVIRONMENT)
    (outcome,) = against([shifted("['key']['bias']", 1.0)], read_packed(tmp_path / "run"))
    assert outcome.outcome is Outcome.IDENTICAL
    assert name in outcome.text
    (outcome,) = against([shifted("['key']['kernel']", 1.0)], read_packed(tmp_path / "run"))
    assert outcome.outcome is Outcome.DIFFERENT


def test_runs_that_only_one_has_are_named(tmp_path: Path):
    save(tmp_path / "run", [result()], ENVIRONMENT)
    notes = {o.name: o.text for o in against([result(name="adam")], read_packed(tmp_path / "run"))}
    assert sorted(notes.values()) == ["not in the recording", NOT_RUN]


def test_the_command_records_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, output = tmp_path / "run.zip", tmp_path / "out.json"
    assert run_suite(["sgd"], Outputs(record=file), steps=10) == 0
    assert run_suite(["sgd"], Outputs(json=output), steps=10, against=file) == 0
    assert "against the recording from cpu" in capsys.readouterr().out
    assert run_suite(["sgd"], Outputs(json=Path("/dev/full")), steps=10) == 2
    rows = json.loads(output.read_text())["against"]
    assert {row["verdict"] for row in rows} == {"identical"}


def test_a_run_that_differs_from_the_recorded_one_costs_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    still = {"params": {"w": np.zeros((2, 1), np.float32)}}
    runs = [Result(one, "", trajectory=still) for one in suite.checks() if one.entry == "sgd"]
    save(tmp_path / "run", runs, ENVIRONMENT)
    assert run_suite(["sgd"], Outputs(), steps=2, against=tmp_path / "run") == 1
    assert "every claim held" in capsys.readouterr().out


def test_a_damaged_recording_says_so(tmp_path: Path):
    file = tmp_path / "run.zip"
    save(file, [result()], ENVIRONMENT)
    whole = file.read_bytes()
    for place in range(0, len(whole), 3):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with contextlib.suppress(ValueError):  # whatever else comes fails the test
            read_packed(file)
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="a file written by"):
        read_packed(file)


def test_other_steps_are_misuse_and_other_leaves_are_different(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "run.zip"
    short = Result(suite.Check("adam", 0), "", trajectory={"params": {"w": np.ones((2, 1))}})
    save(file, [result(), short], ENVIRONMENT)
    assert run_suite(["sgd"], Outputs(), steps=2, against=file) == 2
    assert "it has 3 steps, not 2" in capsys.readouterr().err
    other = result()
    other.trajectory = {"params": {"w": other.trajectory["params"]["w"]}}
    outcome = against([other], read_packed(file))[0]
    assert outcome.outcome is Outcome.DIFFERENT
    assert "params['h']" in outcome.text
