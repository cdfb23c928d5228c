"""Parts of the tests of corpus and examples: scripts in a process of their own, and closeness."""

import json
import os
import subprocess
import sys
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

HERE = Path(__file__).parent
Key = TypeVar("Key", bound=Hashable)

# Across three years of JAX the same source drifts by up to 7e-7 of a tensor's largest value in 30
# steps; public Optax adds a rounding per step. An error in an algorithm shows at 1e-4 and above.
OF_SCALE = 2e-6


def printed_by(script: str, *args: str) -> Any:
    """The JSON that a script of this folder prints in a fresh process, with two CPU devices."""
    environment = dict(os.environ, PYTHONPATH=str(HERE.parents[1]))
    # Of two settings of a flag XLA takes the last.
    environment["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    )
    command = [sys.executable, str(HERE / script), *args]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def outputs(mode: str, jobs: Mapping[Key, Sequence[str]]) -> dict[Key, str]:
    """Runs programs one after another in a fresh process, and returns what each printed."""
    printed = printed_by("worker.py", mode, json.dumps([*jobs.values()]))
    return dict(zip(jobs, printed, strict=True))


def numbers(text: str) -> Any:
    """Returns what a program printed; its text as an AssertionError where that is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        raise AssertionError(text) from None


def lines(text: str) -> list[dict[str, float]]:
    """Returns what a program printed, a JSON object on each line; else its text."""
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        raise AssertionError(text) from None


def columns(rows: list[dict[str, float]]) -> dict[str, dict[str, list[float]]]:
    """Metric -> its steps and its values, in nine digits, which tell any two float32 apart."""
    by_metric: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for name in row.keys() - {"step"}:
            column = by_metric.setdefault(name, {"steps": [], "values": []})
            column["steps"].append(row["step"])
            column["values"].append(float(f"{row[name]:.9g}"))
    return by_metric


def assert_close(actual: Any, expected: Any, path: str = "") -> None:
    """Same structure; numbers within OF_SCALE of the largest in their array."""
    if isinstance(expected, dict):
        assert sorted(actual) == sorted(expected), path
        for key in expected:
            assert_close(actual[key], expected[key], f"{path}[{key!r}]")
    elif isinstance(expected, list) and not _is_array(expected):
        assert len(actual) == len(expected), path
        for index, (a, b) in enumerate(zip(actual, expected, strict=True)):
            assert_close(a, b, f"{path}[{index}]")
    else:
        scale = float(np.max(np.abs(expected))) if np.size(expected) else 0.0
        np.testing.assert_allclose(actual, expected, rtol=0, atol=OF_SCALE * scale, err_msg=path)


def _is_array(value: list[Any]) -> bool:
    """True if nested lists are one rectangular array of numbers."""
    try:
        return np.asarray(value, dtype=np.float64).dtype != object
    except (TypeError, ValueError):
        return False
