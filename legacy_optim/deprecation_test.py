"""What legacy_optim says about itself: once in a process, at the user's line. Real processes."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import legacy_optim as optim
from legacy_optim import deprecation

ROOT = Path(__file__).parents[1]

TRAINING = """
import jax.numpy as jnp
import legacy_optim as optim

def main():
    definition = optim.Adam(0.1)  # said here
    optimizer = definition.create(jnp.ones(2))
    optim.MultiOptimizer((optim.t_identity, optim.WeightNorm(optim.Momentum(0.1))))
    optim.ModelParamTraversal(lambda *_: True)
    for _ in range(3):
        optimizer = optimizer.apply_gradient(optimizer.target)
        {extra}
"""


def run(folder: Path, extra: str) -> subprocess.CompletedProcess[str]:
    """Runs the training as an imported module, where Python hides deprecations by default."""
    (folder / "training.py").write_text(TRAINING.format(extra=extra), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONWARNINGS"}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import training; training.main()"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


METHODS = {
    "compute_gradient": "optimizer.compute_gradient(lambda x: x.sum())",
    "optimize": "optimizer.optimize(lambda x: x.sum())",
    "replicate": "optimizer.replicate()",
}


def test_said_once_at_the_users_line_with_what_to_do(tmp_path: Path) -> None:
    """A program that makes four definitions, and calls every old method three times."""
    result = run(tmp_path, "\n        ".join(METHODS.values()))
    assert result.returncode == 0, result.stderr
    assert f"{tmp_path / 'training.py'}:6: DeprecationWarning: flax.optim was" in result.stderr
    assert "definition = optim.Adam(0.1)  # said here" in result.stderr
    assert "optax_bridge.from_legacy" in result.stderr
    assert result.stderr.count("DeprecationWarning: flax.optim was") == 1
    for number, name in enumerate(METHODS, 12):
        (line,) = [line for line in result.stderr.splitlines() if f"{name} is deprecated" in line]
        assert line.startswith(f"{tmp_path / 'training.py'}:{number}: DeprecationWarning: ")


def test_where_warnings_are_errors_every_definition_is_one_but_those_that_describe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deprecation, "_said", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with deprecation.describing():
            optim.Adam(0.1)
        for _ in range(2):
            with pytest.raises(DeprecationWarning, match="optax_bridge"):
                optim.Adam(0.1)
