"""Ctrl-C: one line, whatever the program is doing just then."""

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
    if event == "import" and given[0].startswith(when):
        send()
    if when == "write" and event == "open" and ".part" in str(given[0]):
        send()

sys.addaudithook(hook)
sys.argv = ["optax-bridge", *arguments]
from optax_bridge.cli.start import main
main()
"""


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def interrupted(when: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command, interrupted when it imports a module, or writes."""
    return run(_PROGRAM, when, *arguments)


def test_interrupt_ends_at_once_whatever_threads_still_do() -> None:
    program = """
import atexit, os, signal, sys
atexit.register(os._exit, 139)  # for a thread of XLA that crashes where Python is taken apart
from optax_bridge.cli import app as cli, start

def work(name):
    print("so far")
    raise KeyboardInterrupt

cli._load = work
sys.argv = ["optax-bridge", "check"]
start.main()
"""
    done = run(program)
    assert (done.returncode, done.stdout, done.stderr) == (130, "so far\n", "interrupted\n")


def test_who_ignores_interrupts_goes_on_to_do_so() -> None:
    program = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what runs in the background
from optax_bridge.cli.start import main
sys.argv = ["optax-bridge", "--help"]
try: main()
except SystemExit: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
"""
    assert run(program).stdout.endswith("\nTrue\n")


@pytest.mark.parametrize("when", ["jaxlib.", "write"], ids=["import", "write"])
def test_interrupt_is_one_line_and_leaves_things_as_they_were(when: str, tmp_path: Path) -> None:
    done = interrupted(when, "convert", ADAM, tmp_path / "new", "--optimizer", "Adam(1e-2)")
    assert done.returncode == 130, done.stderr
    assert done.stderr == "interrupted\n"
    assert os.listdir(tmp_path) == []
