"""What asks no optimizer does not wait for JAX: helps and the version."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import contextlib, io, sys
from optax_bridge.cli.app import app

for arguments in (["--help"], ["--version"], ["check", "--help"], ["recipe", "--help"]):
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        app(arguments)
    slow = [name for name in ("jax", "flax", "optax", "torch") if name in sys.modules]
    print(arguments[-1], slow, len(printed.getvalue()) > 40)
"""


def test_help_and_version_do_not_import_jax():
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [line.rsplit(" [", 1)[1] for line in done.stdout.splitlines()]
    assert answers == ["] True"] * 4, done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is full")
@pytest.mark.parametrize("arguments", [["recipe", "Adam(0.1)"], ["--version"]], ids=" ".join)
def test_output_on_a_full_disk_is_one_line(arguments: list[str]):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "optax_bridge", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    said = "the output could not be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)
