"""The command as a user runs it: output, files and exit codes, in a process where that matters."""

import dataclasses
import json
import os
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import legacy_optim
from equivalence_tests.cli.check import check, run_suite
from equivalence_tests.report.outputs import Outputs
from equivalence_tests.suite import case
from equivalence_tests.suite import checks as suite
from equivalence_tests.suite.jobs import select_cases
from equivalence_tests.suite.matrix.cases import matrix
from optax_bridge.correspondence import ORIGINS
from optax_bridge.correspondence.claim import identical


def process(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "optax_bridge", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


Command = Callable[..., Any]


def test_check_prints_a_table_writes_json_and_exits_zero(tmp_path: Path):
    file = tmp_path / "result.json"
    written = ("--json", str(file), "--junit", str(tmp_path / "junit.xml"))
    run = process("check", "--only", "sgd", "--steps", "20", *written)
    assert run.returncode == 0, run.stderr
    content = json.loads(file.read_text())
    lines = run.stdout.splitlines()
    number = sum(row["recipe"] == "exact" for row in content["results"])
    others = len(content["results"]) - number
    assert lines[-1] == (
        f"exact: {number} of {number} identical; public Optax alone: {others} of {others} "
        "identical; every claim held"
    )
    dtypes = next(line for line in lines if line.startswith("parameters of odd shapes: "))
    assert "float32: 3x2x4" in dtypes and "bfloat16: 3, 4x3 (optax: float32 alone)" in dtypes
    # A line for each case, before the table, and nothing is padded.
    ids = {line.partition(": identical at every step (")[0] for line in lines if " s)" in line}
    assert ids == {row["id"] for row in content["results"]}
    assert lines[len(ids)].startswith("flax.optim against Optax")
    assert all(line == line.rstrip() for line in lines)
    # JAX 0.9 logs what it thinks of the processor whenever it takes a program from its cache.
    lines = [line for line in run.stderr.splitlines() if "cpu_aot_loader.cc" not in line]
    assert lines == [f"written: {file}, {tmp_path / 'junit.xml'}"]
    assert content["ran"]
    assert "--xla_gpu_deterministic_ops=true" in content["flags"]["XLA_FLAGS"].split()
    assert {row["verdict"] for row in content["results"]} == {"identical"}
    assert set(content["versions"]) >= {"jax", "jaxlib", "optax", "flax", "optax-bridge"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["junit.xml", "result.json"]
    (tests,) = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert tests.attrib["tests"] == str(len(content["results"])) == str(len(tests))
    assert (tests.attrib["failures"], tests.attrib["errors"]) == ("0", "0")
    assert {test.attrib["name"] for test in tests} == {row["id"] for row in content["results"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "adamm"], "adamm"),
        (["--steps", "0"], "at least 1"),
        (["--json", "nowhere/result.json"], "does not exist"),
        (["--json", "."], "expected a file to write, found a folder"),
        (["--junit", "nowhere/result.xml"], "--junit nowhere/result.xml: the folder"),
        (["--platform", "quantum"], "quantum"),
        (["--report", "/proc/report"], "--report /proc/report: expected a folder"),
        (["--record", "nowhere/run.zip"], "does not exist"),
        (["--record", "/proc/run.zip"], "--record /proc/run.zip: expected a folder that can be"),
        (["--against", "nowhere.zip"], "a file written by"),
        (["--full", "--only", "float33"], "float33"),
        (["--full", "--only", "thousand", "--only", "vmap"], "thousand, vmap: no case matches"),
    ],
)
def test_misuse_exits_two_and_says_why(arguments: list[str], message: str, command: Command):
    done = command("check", *arguments)
    assert done.code == 2
    assert message in done.err


def test_a_platform_that_is_not_there_is_not_run(tmp_path: Path, command: Command):
    file = tmp_path / "result.json"
    done = command("check", "--platform", "tpu", "--only", "sgd", "--json", str(file))
    assert done.code == 3  # a script would take 0 for all held
    assert "not run" in done.out
    assert json.loads(file.read_text())["ran"] is False


def test_list_names_the_checks_and_runs_none(command: Command):
    done = command("check", "--list", "--only", "Momentum")
    assert done.code == 0
    assert done.out.splitlines() == [
        str(check) for check in suite.checks() if check.entry == "momentum"
    ]
    done = command("check", "--list", "--only", "nothing of that name")
    assert done.code == 2
    assert done.err.startswith("--only: ") and "nothing of that name" in done.err


def test_the_full_list_has_the_matrix_and_takes_any_axis(command: Command):
    done = command("check", "--list", "--full", "--only", "BFloat16")
    assert done.code == 0, done.err
    ids = done.out.splitlines()
    assert len(ids) > 100
    assert all("bfloat16" in name for name in ids)


def test_the_matrix_runs_on_as_many_devices_as_asked_and_is_reported(tmp_path: Path):
    chosen = ("--full", "--only", "sgd", "--only", "data-parallel", "--devices", "2")
    run = process("check", *chosen, "--report", "report", "--json", "report/a.json", cwd=tmp_path)
    assert run.returncode == 0, run.stdout
    content = json.loads((tmp_path / "report" / "a.json").read_text())
    assert content["devices"] == 2
    assert len(content["results"]) == 3
    page = (tmp_path / "report" / "index.html").read_text()
    assert run.stdout.splitlines()[-1] in page
    assert "check --full --only sgd" in page and " UTC</dd>" in page and "<dt>exact</dt>" in page
    assert page.count("<details id=") == 3


def test_version_names_what_decides_bits(command: Command):
    names = [line.split()[0] for line in command("--version").out.splitlines()]
    assert names == ["optax-bridge", "jax", "jaxlib", "flax", "optax", "numpy", "python"]


def test_a_claim_that_does_not_hold_is_reported_and_costs_the_exit_code(
    monkeypatch, capsys, tmp_path: Path
):
    """A false claim: that Optax's Adagrad is the legacy one."""
    monkeypatch.setattr(case, "choose_recipe", _claiming(identical()))
    assert run_suite(["adagrad"], Outputs(junit=tmp_path / "junit.xml"), steps=20) == 1
    printed = capsys.readouterr().out
    assert "NO" in printed
    assert "claimed: identical" in printed
    assert "did NOT hold" in printed
    assert "nature: another algorithm, decided in float64" in printed
    (tests,) = ElementTree.parse(tmp_path / "junit.xml").getroot()
    failures = [failure.attrib["message"] for failure in tests.iter("failure")]
    assert len(failures) == int(tests.attrib["failures"]) > 0
    assert all(text.startswith("claimed: identical; found: ") for text in failures)


def _claiming(claim):
    from optax_bridge.correspondence import choose_recipe

    return lambda *args: dataclasses.replace(choose_recipe(*args), claim=claim)


def test_an_error_on_a_side_is_a_result_and_stops_no_other(monkeypatch, capsys, tmp_path: Path):
    def raising(definition, recipe):
        if isinstance(definition, legacy_optim.GradientDescent):
            raise RuntimeError("out of luck")
        return whole(definition, recipe)

    whole = suite.sides.public_optax
    monkeypatch.setattr(suite.sides, "public_optax", raising)
    file = tmp_path / "junit.xml"
    assert run_suite(["sgd"], Outputs(junit=file), steps=2) == 1
    printed = capsys.readouterr().out
    assert "RuntimeError: out of luck" in printed
    assert "1 claims did NOT hold" in printed
    (tests,) = ElementTree.parse(file).getroot()
    (error,) = tests.iter("error")
    assert error.attrib["message"] == "RuntimeError: out of luck"
    assert tests.attrib["failures"] == "0"
    assert int(tests.attrib["tests"]) >= 4


def test_the_whole_matrix_is_run_if_nothing_less_is_asked_for():
    assert select_cases([], full=True) == [*suite.checks(), *matrix()]
    assert select_cases([], full=False) == [*suite.checks()]


def test_the_checks_against_pytorch_are_listed_by_its_optimizers(command: Command):
    done = command("check", "--list", "--from", "torch", "--only", "AdamW", "--only", "torch.sgd")
    assert done.code == 0
    listed = done.out.split()
    assert "torch.adamw-0-bfloat16-recorded-exact" in listed
    assert {line.split("-")[0] for line in listed} == {"torch.adamw", "torch.sgd"}
    assert command("check", "--from", "torch", "--only", "adamv").code == 2
    assert run_suite(["sgd"], Outputs(), origin="torch", full=True) == 2


def test_every_origin_can_be_checked():
    origin = typing.get_type_hints(check)["origin"]
    assert typing.get_args(origin) == tuple(table.name for table in ORIGINS)


@pytest.mark.parametrize(
    ("only", "full", "number"),
    [
        (("cnn",), False, 2),
        (("sgd", "cnn"), False, 6),
        (("adam", "thousand"), True, 1),
        (("adam", "thousand", "vmap"), True, 0),
    ],
)
def test_every_name_narrows_the_choice(only: Any, full: bool, number: int):
    assert len(select_cases(only, full)) == number
