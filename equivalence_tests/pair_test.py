"""`optax-bridge check --pair`: names, files, exit codes."""

import json
import re
import sys
from pathlib import Path

import pytest

from equivalence_tests.pair import check_pair

MODULE = """
import numpy as np
import optax
import legacy_optim

PARAMS = {"w": np.linspace(-1, 1, 5, dtype=np.float32)}
adam = optax.adam(0.1)
other = optax.adam(0.1, eps=1e-2)
number = 3

def legacy():
    return legacy_optim.Adam(0.1)

def broken():
    raise RuntimeError("not today")

def stop(gradients, state, params=None):
    raise RuntimeError("not this step")

stopping = optax.GradientTransformation(lambda params: (), stop)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_pair.py").write_text(MODULE)
    (tmp_path / "my_import.py").write_text("raise ValueError('too early')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_pair", raising=False)


@pytest.mark.parametrize(("right", "code"), [("legacy", 0), ("adam", 0), ("other", 1)])
def test_the_exit_code_is_the_verdict(right: str, code: int, tmp_path: Path):
    done = check_pair(
        "my_pair:adam",
        f"my_pair:{right}",
        "my_pair:PARAMS",
        steps=5,
        json_file=tmp_path / "pair.json",
        report_folder=tmp_path / "report",
    )
    assert done == code
    content = json.loads((tmp_path / "pair.json").read_text())
    assert content["names"] == ["my_pair:adam", f"my_pair:{right}"]
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.parametrize(
    ("right", "message"),
    [
        ("adam", "adam: expected module:name"),
        ("nowhere:adam", "nowhere:adam: No module named"),
        ("my_pair:missing", "has no attribute 'missing'"),
        ("my_pair:number", "my_pair:number: expected a legacy definition"),
        ("my_import:adam", "my_import:adam: importing my_import raised ValueError: too early"),
        ("my_pair:broken", r"my_pair:broken\(\): raised RuntimeError: not today"),
    ],
)
def test_misuse_is_said(right: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert check_pair("my_pair:adam", right, "my_pair:PARAMS", steps=2) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error


def test_an_unwritable_report_folder_is_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "report"
    assert check_pair("my_pair:adam", "my_pair:adam", report_folder=folder) == 2
    assert "--report" in capsys.readouterr().err


def test_a_side_that_raises_is_in_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = check_pair(
        "my_pair:adam",
        "my_pair:stopping",
        "my_pair:PARAMS",
        steps=2,
        json_file=tmp_path / "pair.json",
        junit_file=tmp_path / "pair.xml",
        report_folder=tmp_path / "report",
    )
    assert code == 2
    assert "not this step" in capsys.readouterr().err
    content = json.loads((tmp_path / "pair.json").read_text())
    assert content["verdict"] == "error" and "not this step" in content["error"]
    assert 'errors="1"' in (tmp_path / "pair.xml").read_text()
    assert "not this step" in (tmp_path / "report" / "index.html").read_text()
