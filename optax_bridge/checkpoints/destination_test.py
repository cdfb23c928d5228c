"""The destination appears whole or not at all, whatever happens on the way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from optax_bridge.checkpoints import CheckpointError, convert_file, read_checkpoint
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.destination import written_whole

ADAM_FILE = Path(__file__).parent / "testdata" / "adam.msgpack"


def adam():
    return parse_definition("Adam(1e-2)")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_existing_destination_stays(kind: str, tmp_path: Path) -> None:
    destination = tmp_path / "new"
    if kind == "file":
        destination.write_text("mine")
    else:
        destination.mkdir()
        (destination / "mine").write_text("mine")
    for msgpack in (True, False):
        with pytest.raises(CheckpointError, match="--force"):
            convert_file(ADAM_FILE, destination, adam(), msgpack=msgpack)
    kept = destination if kind == "file" else destination / "mine"
    assert kept.read_text() == "mine"
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.parametrize("msgpack", [True, False], ids=["msgpack", "orbax"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_force_replaces(kind: str, msgpack: bool, tmp_path: Path) -> None:
    destination = tmp_path / "new"
    if kind == "file":
        destination.write_text("mine")
    else:
        destination.mkdir()
        (destination / "mine").write_text("mine")
    convert_file(ADAM_FILE, destination, adam(), msgpack=msgpack, force=True)
    assert "opt_state" in read_checkpoint(destination).tree
    assert os.listdir(tmp_path) == ["new"]


def test_destination_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    destination = tmp_path / "new"
    with pytest.raises(CheckpointError, match="--force"), written_whole(destination) as part:
        part.write_text("ours")
        destination.write_text("theirs")
    assert destination.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["new"]


def test_error_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), written_whole(tmp_path / "new") as part:
        part.mkdir()
        raise RuntimeError("on the way")
    assert os.listdir(tmp_path) == []


def test_source_is_only_read(tmp_path: Path) -> None:
    source = tmp_path / "old"
    source.write_bytes(ADAM_FILE.read_bytes())
    source.chmod(0o444)
    before = source.stat().st_mtime_ns
    convert_file(source, tmp_path / "new", adam())
    assert source.read_bytes() == ADAM_FILE.read_bytes()
    assert source.stat().st_mtime_ns == before


# Says when it starts, so that the kills fall into the work and not into the imports.
_PROGRAM = """
import sys
from pathlib import Path
from optax_bridge.checkpoints import convert_file
from optax_bridge.checkpoints.definitions import parse_definition
definition = parse_definition("Adam(1e-2)")
for round in range(2):  # the first warms up what is imported late
    target = Path(sys.argv[2]) if round else Path(sys.argv[2] + ".warm")
    if round:
        print("ready", flush=True)
        sys.stdin.readline()
    convert_file(Path(sys.argv[1]), target, definition, msgpack=sys.argv[3] == "msgpack",
                 force=len(sys.argv) > 4)
"""


@pytest.mark.parametrize("existing", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("kind", ["msgpack", "orbax"])
def test_kill_at_any_point_leaves_all_or_nothing(kind: str, existing: bool, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    convert_file(ADAM_FILE, whole, adam(), msgpack=kind == "msgpack")
    expected = read_checkpoint(whole).tree
    # In thousandths of a second after the work starts; the whole takes some 5 and some 150.
    delays = [0, 1, 2, 3, 5, 8] if kind == "msgpack" else [0, 10, 25, 50, 80, 120]
    outcomes = set()
    for delay in delays:
        destination = tmp_path / f"new{delay}"
        if existing:
            destination.write_bytes(b"before")
        arguments = [str(ADAM_FILE), str(destination), kind, *(["force"] if existing else [])]
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _PROGRAM, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.stdin.write(b"\n")
        process.stdin.flush()
        time.sleep(delay / 1000)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if destination.is_file() and destination.read_bytes() == b"before":
            outcomes.add("before")
            assert existing
        elif destination.exists():
            outcomes.add("whole")
            found = read_checkpoint(destination).tree
            np.testing.assert_array_equal(
                found["opt_state"]["mu"]["dense"]["kernel"],
                expected["opt_state"]["mu"]["dense"]["kernel"],
            )
        else:
            outcomes.add("nothing")
            assert not existing
    assert outcomes & {"nothing", "before"}
