"""The destination appears whole or not at all, whatever happens on the way."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from optax_bridge._atomic import REPLACED, part_folder, remove_abandoned
from optax_bridge.checkpoints import CheckpointError, convert_file, read_checkpoint
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.write import written_whole
from optax_bridge.metadata.paths import leaves
from optax_bridge.recorded_test import refused

TESTDATA = Path(__file__).parent / "testdata"
ADAM_FILE = TESTDATA / "adam.msgpack"


def adam():
    return parse_definition("Adam(1e-2)")


@pytest.mark.parametrize(
    ("kind", "msgpack"), [("file", False), ("folder", True), ("folder", False), ("empty", False)]
)
def test_force_replaces_a_checkpoint(kind: str, msgpack: bool, tmp_path: Path) -> None:
    destination, formats = tmp_path / "new", ("orbax", "msgpack")
    if kind == "empty":
        destination.mkdir()
    else:
        source = TESTDATA / "adagrad.msgpack"
        convert_file(source, destination, file_format=formats[kind == "file"])
    convert_file(ADAM_FILE, destination, adam(), file_format=formats[msgpack], force=True)
    assert "mu" in read_checkpoint(destination).tree["opt_state"]["0"]
    assert os.listdir(tmp_path) == ["new"]


def _beside_a_checkpoint(name: str) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        convert_file(ADAM_FILE, path, adam())
        (path / name).write_text("mine")

    return write


def _files(**contents: bytes) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        path.mkdir()
        for name, data in contents.items():
            (path / name).write_bytes(data)

    return write


def _npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, w=np.ones(3))


OTHERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("mine"),
    "empty_file": Path.touch,
    "picture": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 100),
    "archive": lambda path: zipfile.ZipFile(path, "w").writestr("notes.txt", "mine"),
    "settings": lambda path: path.write_bytes(msgpack.packb({"learning_rate": 0.1}) or b""),
    "npz": _npz,
    "damaged": lambda path: path.write_bytes(ADAM_FILE.read_bytes()[:-9]),
    "own_folder": _files(notes=b"mine"),
    "folder_of_checkpoints": _files(checkpoint_1=ADAM_FILE.read_bytes()),
    # One of Orbax's begins like it.
    "file_in_a_checkpoint": _beside_a_checkpoint("checkpoint_notes.txt"),
    "file_in_a_folder_of_a_checkpoint": _beside_a_checkpoint("d/notes"),
    "link": lambda path: path.symlink_to(TESTDATA / "adagrad.msgpack"),
    "dangling_link": lambda path: path.symlink_to("nowhere"),
    "link_in_a_circle": lambda path: path.symlink_to("new"),
    "pipe": os.mkfifo,
    "device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3)),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_force_leaves_alone_what_is_no_checkpoint(kind: str, tmp_path: Path) -> None:
    try:
        OTHERS[kind](tmp_path / "new")
    except PermissionError:
        pytest.skip("only root makes devices")
    before = _listing(tmp_path)
    every: list[dict[str, Any]] = [{"force": True}, {"file_format": "msgpack"}, {}]
    for options in every:
        with refused(CheckpointError, r"a checkpoint to replace|--force"):
            convert_file(ADAM_FILE, tmp_path / "new", adam(), **options)
    assert _listing(tmp_path) == before


def _listing(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = os.lstat(path).st_mode
        content = path.read_bytes() if stat.S_ISREG(mode) else b""
        found[str(path)] = (mode, os.readlink(path) if path.is_symlink() else content)
    return found


@pytest.mark.parametrize("force", [True, False])
def test_what_appears_meanwhile_stays(force: bool, tmp_path: Path) -> None:
    destination = tmp_path / "new"
    if force:
        destination.write_bytes(ADAM_FILE.read_bytes())
    said = "a checkpoint to replace" if force else "--force"
    with (
        refused(CheckpointError, said),
        written_whole(destination, force=force) as part,
    ):
        part.write_text("ours")
        destination.write_text("theirs")
    assert destination.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["new"]


def test_a_file_is_no_folder_to_write_into(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name, kind in (("file", "a file"), ("link", "a broken link")):
        with refused(CheckpointError, f"to write into, found {kind}, .*{name}"):
            convert_file(ADAM_FILE, tmp_path / name / "new", adam())


# Converts again and again, each time in a forked process that kills itself at another call of the
# system. Forked before JAX starts any thread, so it is cheap.
_PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import numpy, orbax.checkpoint, tensorstore, typer
from optax_bridge.checkpoints import convert_file
from optax_bridge.checkpoints.formats import orbax
from optax_bridge.checkpoints.definitions import parse_definition

source, folder = sys.argv[1:]
seen = 0

def run(name, point):
    destination = Path(folder, name, "new")
    destination.parent.mkdir()
    destination.write_bytes(Path(source).read_bytes())
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    def hook(event, arguments):
        global seen
        if event.startswith(("open", "os.", "shutil.")):
            seen += 1
            if point == seen:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    definition = parse_definition("Adam(1e-2)")
    convert_file(Path(source), destination, definition, force=True)
    Path(folder, "calls").write_text(str(seen))
    os._exit(0)

assert run("all", 0) == 0
calls = int(Path(folder, "calls").read_text())
# Every so many, and each around the last, when the destination appears.
points = sorted({*range(1, calls, max(1, calls // 6)), *range(calls - 9, calls)})
print(json.dumps([run(f"new{number}", point) for number, point in enumerate(points)]))
"""


def test_kill_at_any_point_leaves_the_old_one_or_the_whole_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, ADAM_FILE, tmp_path],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    codes = json.loads(done.stdout.splitlines()[-1])
    assert set(codes) <= {-signal.SIGKILL, 0}
    whole = dict(leaves(read_checkpoint(tmp_path / "all" / "new").tree))
    outcomes = set()
    for number in range(len(codes)):
        folder = tmp_path / f"new{number}"
        path = folder / "new"
        moved = list(folder.glob(f".*.part/{REPLACED}"))
        caplog.clear()
        remove_abandoned(folder)
        if not path.exists() and moved:
            assert str(moved[0]) in caplog.text
            path = moved[0]
        if path.is_file() and path.read_bytes() == ADAM_FILE.read_bytes():
            outcomes.add("old")
        else:
            tree = dict(leaves(read_checkpoint(path).tree))
            assert list(tree) == list(whole)
            assert all(np.array_equal(tree[path], leaf) for path, leaf in whole.items())
            outcomes.add("whole")
            assert not list(folder.glob(".*.part"))
    assert outcomes == {"old", "whole"}


def dead_part(folder: Path, host: str = "") -> Path:
    """A folder as a process leaves it that was killed."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    name = part_folder(folder).name.replace(f"-{os.getpid()}-", f"-{process.pid}-")
    part = folder / (name.replace("optax-bridge-", f"optax-bridge-{host}") if host else name)
    part.mkdir()
    return part


@pytest.mark.parametrize("outcome", ["written", "exists", "no source"])
def test_rest_of_a_killed_run_is_removed_and_named_by_the_next(
    outcome: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part, of_another_host = dead_part(tmp_path), dead_part(tmp_path, host="other")
    (part / "new").write_text("half")
    (tmp_path / ".optax-bridge-notes.part").mkdir()
    if outcome == "exists":
        (tmp_path / "other").write_text("mine")
    source = tmp_path / "nothing" if outcome == "no source" else ADAM_FILE
    with pytest.raises(CheckpointError) if outcome != "written" else contextlib.nullcontext():
        convert_file(source, tmp_path / "other", adam())
    assert not part.exists() and of_another_host.exists()
    assert (tmp_path / ".optax-bridge-notes.part").exists()
    assert str(part) in caplog.text and str(of_another_host) not in caplog.text


def test_the_only_copy_is_never_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    part = dead_part(tmp_path)
    for name in ("new", REPLACED):
        (part / name).write_text(name)
    with written_whole(tmp_path / "other") as path:
        path.write_text("whole")
    assert (part / REPLACED).exists() and str(part / REPLACED) in caplog.text
    (tmp_path / "new").write_text("there again")
    with written_whole(tmp_path / "third") as path:
        path.write_text("whole")
    assert not part.exists()


@pytest.mark.parametrize("is_writing", [True, False], ids=["while_it_writes", "second_rename"])
def test_an_interrupt_leaves_the_old_folder_and_nothing_else(
    is_writing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_file(ADAM_FILE, tmp_path / "new", adam())
    rename = os.rename

    def fails(src: Path, dst: Path) -> None:
        if dst == tmp_path / "new" and src.name != REPLACED:
            raise KeyboardInterrupt
        rename(src, dst)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(KeyboardInterrupt), written_whole(tmp_path / "new", force=True) as path:
        path.mkdir()
        if is_writing:
            raise KeyboardInterrupt
    assert "mu" in read_checkpoint(tmp_path / "new").tree["opt_state"]["0"]
    assert os.listdir(tmp_path) == ["new"]


def test_part_of_a_living_run_stays(tmp_path: Path) -> None:
    with written_whole(tmp_path / "new") as first:
        first.write_text("first")
        with written_whole(tmp_path / "new") as second:
            second.write_text("second")
        assert first.read_text() == "first"
        (tmp_path / "new").unlink()
    assert (tmp_path / "new").read_text() == "first"
    assert os.listdir(tmp_path) == ["new"]
