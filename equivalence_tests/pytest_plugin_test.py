"""The plugin as a user's project sees it: pytest in a process of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import numpy as np
import optax
import legacy_optim
from equivalence_tests import Verdict

PARAMS = {"w": np.linspace(-1, 1, 5, dtype=np.float32)}

def test_same(assert_equivalent):
    pair = optax.adam(0.1), legacy_optim.Adam(0.1)
    report = assert_equivalent(*pair, PARAMS, steps=5, at_most=Verdict.ROUNDING)
    assert report.steps == 5
    for rate in (0.1, 0.2):  # several pairs in a test are as many rows
        assert_equivalent(optax.sgd(rate), optax.sgd(rate), PARAMS, steps=5)

def test_proved(assert_proved):
    assert_proved(optax.sgd(0.1), optax.sgd(0.1), PARAMS)

def test_strict(assert_equivalent):
    assert_equivalent(
        optax.adam(0.1), legacy_optim.Adam(0.1), PARAMS, steps=20, at_most="identical"
    )

def test_other(assert_equivalent):
    assert_equivalent(optax.sgd(0.1), optax.sgd(0.2), PARAMS, steps=5)

def test_not_comparable(assert_equivalent):
    assert_equivalent(optax.adam(0.1), optax.sgd(0.1), PARAMS, steps=0)
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "optimizers_test.py").write_text(TESTS)
    # Its own project, also where temporary folders are within this one.
    (folder / "pytest.ini").touch()
    root = str(Path(__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "equivalence_tests.pytest_plugin", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_fixture_passes_fails_and_reports(tmp_path: Path):
    done = run(tmp_path, "--equivalence-report", "report", "--junitxml", "junit.xml", "-n", "1")
    assert done.returncode == 1, done.stdout
    assert "2 passed" in done.stdout
    assert "PytestWarning" not in done.stdout
    assert "3 failed" in done.stdout
    assert "with step_size=-0.1 in right the verdict is identical" in done.stdout
    # The first line of a failure says it all, and there is nothing else of the package's own.
    line = r"different: params\['w'\] by .* of its scale \(.* ULP\), from step 1; expected rounding"
    assert re.search(rf"_+ test_other _+\n\[gw.*\n{line}", done.stdout), done.stdout
    assert "\nnot compared: steps is 0; expected at least 1\n" in done.stdout
    assert "equivalence_tests/" not in done.stdout.partition("warnings summary")[0]
    assert "expected identical at most" in done.stdout
    assert "nature: another algorithm" in done.stdout
    rows = json.loads((tmp_path / "report" / "report.json").read_text())
    verdicts = {row["test"].split("::")[1]: row["verdict"] for row in rows}
    assert verdicts == {
        "test_same": "rounding only",
        "test_same (2)": "identical",
        "test_same (3)": "identical",
        "test_strict": "rounding only",
        "test_other": "different",
        "test_not_comparable": "error",
    }
    page = (tmp_path / "report" / "index.html").read_text()
    assert "optimizers_test.py::test_other" in page
    assert "steps is 0; expected at least 1" in page
    assert 'tests="5"' in (xml := (tmp_path / "junit.xml").read_text())
    assert '<property name="proved" value="identical, for all' in xml


def test_without_workers_it_reports_as_well(tmp_path: Path):
    done = run(tmp_path, "-k", "same", "--equivalence-report", "report")
    assert done.returncode == 0, done.stdout
    rows = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [row["verdict"] for row in rows] == ["rounding only", "identical", "identical"]


def test_a_platform_that_is_not_there_is_skipped(tmp_path: Path):
    done = run(tmp_path, "--equivalence-platform", "tpu", "-rs")
    assert done.returncode == 0, done.stdout
    assert "4 skipped" in done.stdout
    assert "this machine has no such device" in done.stdout


def test_an_unwritable_report_folder_is_misuse_before_any_test_runs(tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = run(tmp_path, "--equivalence-report", "file/report")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--equivalence-report file/report: expected a folder" in done.stderr


def test_the_plugin_imports_jax_for_its_fixture_alone_and_a_failure_names_the_option(
    tmp_path: Path,
):
    (tmp_path / "a_plain_test.py").write_text(
        "import sys\ndef test_strict(): assert 'jax' not in sys.modules\n"
    )
    done = run(tmp_path, "-k", "strict", "--import-mode=importlib", "a_plain_test.py")
    assert done.returncode == 0, done.stdout
    done = run(tmp_path, "-k", "strict", "optimizers_test.py")
    assert "with --equivalence-report DIR its plot is on a page" in done.stdout
