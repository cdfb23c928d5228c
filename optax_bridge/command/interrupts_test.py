"""Ctrl-C in `convert`: one line, whatever the program is doing just then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ADAM = Path(__file__).parents[1] / "checkpoints" / "testdata" / "adam.msgpack"
_PROGRAM = """
import os, signal, sys

when, *arguments = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
sent = []

def send():
    if not sent:
        sent.append(True)
        os.kill(os.getpid(), signal.SIGINT)

def hook(event, given):
    if when == "import" and event == "import" and given[0].startswith("jaxlib."):
        send()
    if when == "write" and event == "open" and ".part" in str(given[0]):
        send()

sys.addaudithook(hook)
sys.argv = ["optax-bridge", *arguments]
from optax_bridge.command import main
main()
"""


@pytest.mark.parametrize("when", ["import", "write"])
def test_interrupt_is_one_line_and_leaves_things_as_they_were(when: str, tmp_path: Path) -> None:
    arguments = ["convert", ADAM, tmp_path / "new", "--optimizer", "Adam(1e-2)"]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, when, *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert (
        done.stderr == f"interrupted: {tmp_path / 'new'} is as it was before; "
        "run it again to make it\n"
    )
    assert os.listdir(tmp_path) == []
