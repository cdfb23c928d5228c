"""The destination appears whole or not at all, whatever happens on the way."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from optax_bridge._unfinished import lock_folder
from optax_bridge.checkpoints import CheckpointError, convert_file, destination, read_checkpoint
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.destination import written_whole
from optax_bridge.checkpoints.trees import leaves

TESTDATA = Path(__file__).parent / "testdata"
ADAM_FILE = TESTDATA / "adam.msgpack"


def adam():
    return parse_definition("Adam(1e-2)")


@pytest.mark.parametrize(
    ("kind", "msgpack"), [("file", False), ("folder", True), ("folder", False), ("empty", False)]
)
def test_force_replaces_a_checkpoint(kind: str, msgpack: bool, tmp_path: Path) -> None:
    destination = tmp_path / "new"
    if kind == "empty":
        destination.mkdir()
    else:
        convert_file(
            destination=destination,
            source=TESTDATA / "adagrad.msgpack",
            file_format="msgpack" if kind == "file" else "orbax",
        )
    convert_file(
        ADAM_FILE, destination, adam(), file_format="msgpack" if msgpack else "orbax", force=True
    )
    assert "mu" in read_checkpoint(destination).tree["opt_state"]["0"]
    assert os.listdir(tmp_path) == ["new"]


def _text(path: Path) -> None:
    path.write_text("mine")


def _own_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes").write_text("mine")


def _file_in_a_checkpoint(path: Path) -> None:
    convert_file(ADAM_FILE, path, adam())
    (path / "notes").write_text("mine")


def _file_in_a_folder_of_a_checkpoint(path: Path) -> None:
    convert_file(ADAM_FILE, path, adam())
    (path / "d" / "notes").write_text("mine")


def _several(path: Path) -> None:
    path.mkdir()
    (path / "checkpoint_1").write_bytes(ADAM_FILE.read_bytes())


def _damaged(path: Path) -> None:
    path.write_bytes(ADAM_FILE.read_bytes()[:-9])


def _settings(path: Path) -> None:
    path.write_bytes(msgpack.packb({"learning_rate": 0.1}) or b"")


def _link(path: Path) -> None:
    path.with_name("linked").write_bytes(ADAM_FILE.read_bytes())
    path.symlink_to("linked")


OTHERS: dict[str, Callable[[Path], object]] = {
    "text": _text,
    "empty_file": Path.touch,
    "picture": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 100),
    "archive": lambda path: zipfile.ZipFile(path, "w").writestr("notes.txt", "mine"),
    "settings": _settings,
    "damaged": _damaged,
    "own_folder": _own_folder,
    "file_in_a_checkpoint": _file_in_a_checkpoint,
    "file_in_a_folder_of_a_checkpoint": _file_in_a_folder_of_a_checkpoint,
    "folder_of_checkpoints": _several,
    "link": _link,
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
        with pytest.raises(CheckpointError, match=r"a checkpoint to replace|--force"):
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
        pytest.raises(CheckpointError, match=said),
        written_whole(destination, force=force) as part,
    ):
        part.write_text("ours")
        destination.write_text("theirs")
    assert destination.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["new"]


def _no_links(*_: Any) -> None:
    raise PermissionError("a file system without hard links")


def test_file_is_moved_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", _no_links)
    with written_whole(tmp_path / "new") as part:
        part.write_text("ours")
    assert (tmp_path / "new").read_text() == "ours"

    def appears(_: Any, path: Path) -> None:
        path.write_text("theirs")
        _no_links()

    monkeypatch.setattr(os, "link", appears)
    with pytest.raises(CheckpointError, match="--force"), written_whole(tmp_path / "x") as part:
        part.write_text("ours")
    assert (tmp_path / "x").read_text() == "theirs"
    assert sorted(os.listdir(tmp_path)) == ["new", "x"]


def test_two_paths_are_exchanged_where_the_system_has_no_way_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_file(TESTDATA / "adagrad.msgpack", tmp_path / "new", file_format="msgpack")
    monkeypatch.setattr(destination.ctypes, "CDLL", lambda *args, **kwargs: object())
    convert_file(ADAM_FILE, tmp_path / "new", adam(), file_format="msgpack", force=True)
    assert "mu" in read_checkpoint(tmp_path / "new").tree["opt_state"]["0"]
    assert os.listdir(tmp_path) == ["new"]


def test_error_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), written_whole(tmp_path / "new") as part:
        part.mkdir()
        raise RuntimeError("on the way")
    assert os.listdir(tmp_path) == []


def test_what_threads_still_write_after_an_error_is_not_left(tmp_path: Path) -> None:
    def write_on(part: Path) -> None:  # until something is in the way
        with contextlib.suppress(NotADirectoryError, FileExistsError):
            while True:
                with contextlib.suppress(FileNotFoundError):
                    part.mkdir(parents=True, exist_ok=True)

    threads: list[threading.Thread] = []
    with pytest.raises(RuntimeError), written_whole(tmp_path / "new") as part:
        threads.append(threading.Thread(target=write_on, args=[part], daemon=True))
        threads[0].start()
        raise RuntimeError("on the way")
    threads[0].join(20)
    assert os.listdir(tmp_path) == []


def test_source_is_only_read(tmp_path: Path) -> None:
    source = tmp_path / "old"
    source.write_bytes(ADAM_FILE.read_bytes())
    source.chmod(0o444)
    before = source.stat().st_mtime_ns
    convert_file(source, tmp_path / "new", adam())
    assert source.read_bytes() == ADAM_FILE.read_bytes()
    assert source.stat().st_mtime_ns == before


# Converts again and again in a process of its own each time, which ends in the middle: at one call
# of the system after the other, or after a time. Forked before JAX starts any thread, so it is
# cheap.
_PROGRAM = """
import json, os, signal, sys, threading, time
from pathlib import Path
import numpy, orbax.checkpoint, tensorstore, typer
from optax_bridge.checkpoints import convert_file
from optax_bridge.cli.convert import convert
from optax_bridge.checkpoints.formats.orbax import write as orbax_write
from optax_bridge.checkpoints.definitions import parse_definition

source, folder, kind, existing, how = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
EVENTS = ("open", "os.", "shutil.", "ctypes.call_function")

seen = 0

def count(event, arguments):
    global seen
    seen += event.startswith(EVENTS)

def kill_at(point):
    def hook(event, arguments):
        if seen == point:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

def end(point, seconds):
    if how == "calls":
        kill_at(point)
    elif how == "time":
        signal.setitimer(signal.ITIMER_REAL, seconds)  # SIGALRM ends the process at once
    else:
        number = getattr(signal, how)
        threading.Timer(seconds, os.kill, (os.getpid(), number)).start()

def run(name, point, seconds):
    destination = Path(folder, name, "new")  # each beside its own rest
    destination.parent.mkdir()
    if existing:
        destination.write_bytes(Path(source).read_bytes())
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = 99
    try:
        sys.addaudithook(count)
        if seconds is not None:
            end(point, seconds)
        options = dict(file_format=kind, force=bool(existing))
        if how.startswith("SIG"):
            try:
                convert(Path(source), destination, ["Adam(1e-2)"], **options)
            except typer.Exit as error:
                code = min(error.exit_code, 1)
        else:
            convert_file(Path(source), destination, parse_definition("Adam(1e-2)"), **options)
            code = 0
        if seconds is None:
            Path(folder, "calls").write_text(str(seen))
    except (KeyboardInterrupt, SystemExit):
        code = 1
    finally:
        os._exit(code)

started = time.perf_counter()
codes = [run("all", 0, None)]
whole = time.perf_counter() - started
calls = int(Path(folder, "calls").read_text())
if how == "calls":  # every so many, and each around the last, when the destination appears; threads
    # of Orbax make a few more calls in one run than in another
    points = sorted({*range(0, calls, max(1, calls // 6)), *range(calls - 5, calls + 4)})
else:
    points = range(6 if how == "time" else 4)
for number, point in enumerate(points):
    codes.append(run(f"new{number}", point, 1e-3 + 1.2 * whole * point / (len(points) - 1)))
print(json.dumps(codes))
"""


def ended(folder: Path, kind: str, existing: str, how: str) -> tuple[list[str], list[int]]:
    """What was found at each destination, and how each process ended."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(ADAM_FILE), str(folder), kind,
         existing, how],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    codes = json.loads(done.stdout.splitlines()[-1])
    assert codes[0] == 0
    whole = dict(leaves(read_checkpoint(folder / "all" / "new").tree))
    before = ADAM_FILE.read_bytes()
    found = []
    for number in range(len(codes) - 1):
        destination = folder / f"new{number}" / "new"
        if destination.is_file() and destination.read_bytes() == before:
            found.append("before")
        elif not destination.exists():
            found.append("nothing")
        else:
            tree = dict(leaves(read_checkpoint(destination).tree))
            assert list(tree) == list(whole)
            assert all(np.array_equal(tree[path], leaf) for path, leaf in whole.items())
            found.append("whole")
    return found, codes[1:]


@pytest.mark.parametrize(
    ("kind", "existing", "how"), [("msgpack", "", "calls"), ("orbax", "existing", "time")]
)
def test_kill_at_any_point_leaves_all_or_nothing(
    kind: str, existing: str, how: str, tmp_path: Path
) -> None:
    found, codes = ended(tmp_path, kind, existing, how)
    possible = {"before" if existing else "nothing", "whole"}
    # How far a process comes in a given time is up to the machine; in a number of calls it is not.
    assert set(found) == possible if how == "calls" else set(found) <= possible
    assert len(found) >= 6
    assert set(codes) <= {-signal.SIGKILL if how == "calls" else -signal.SIGALRM, 0}
    # The next run that writes into the same folder removes what a killed one has left.
    assert list(tmp_path.glob("*/.*.part")) or how == "time"
    for number in range(len(found)):
        with written_whole(tmp_path / f"new{number}" / "another") as part:
            part.write_text("whole")
    assert not list(tmp_path.glob("*/.*.part"))


@pytest.mark.parametrize(
    ("outcome", "names"),
    [("written", ()), ("written", ("new",)), ("exists", ("new",)), ("no source", ("new",))],
)
def test_rest_of_a_killed_run_is_removed_and_named_by_the_next(
    outcome: str, names: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rest = tmp_path / ".optax-bridge-0123abcd.part"
    rest.mkdir()
    for name in names:
        (rest / name).write_text("half")
    (tmp_path / ".optax-bridge-notes.part").mkdir()
    if outcome == "exists":
        (tmp_path / "other").write_text("mine")
    source = tmp_path / "nothing" if outcome == "no source" else ADAM_FILE
    with pytest.raises(CheckpointError) if outcome != "written" else contextlib.nullcontext():
        convert_file(source, tmp_path / "other", adam())
    assert not rest.exists() and (tmp_path / ".optax-bridge-notes.part").exists()
    assert str(rest) in caplog.text


def test_those_who_clean_up_take_nothing_from_those_who_begin(tmp_path: Path) -> None:
    """Between making the folder and locking it, it looks abandoned."""
    done = threading.Event()

    def clean() -> None:
        while not done.is_set():
            destination.remove_abandoned(tmp_path)

    threads = [threading.Thread(target=clean) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(100):
            with written_whole(tmp_path / str(number)) as part:
                part.write_text("whole")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert sorted(os.listdir(tmp_path)) == sorted(map(str, range(100)))


def test_what_a_killed_run_was_to_replace_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a system cannot swap two paths, the only old one may stand among the rests."""
    rest = tmp_path / ".optax-bridge-0123abcd.part"
    rest.mkdir()
    for name in ("new", ".replaced"):
        (rest / name).write_text(name)
    with written_whole(tmp_path / "other") as part:
        part.write_text("whole")
    assert (rest / ".replaced").exists() and str(rest) in caplog.text
    (tmp_path / "new").write_text("there again")
    with written_whole(tmp_path / "third") as part:
        part.write_text("whole")
    assert not rest.exists()


@pytest.mark.parametrize(("kind", "how"), [("orbax", "SIGTERM"), ("msgpack", "SIGINT")])
def test_signal_leaves_all_or_nothing_and_no_rest(kind: str, how: str, tmp_path: Path) -> None:
    found, codes = ended(tmp_path, kind, "", how)
    assert set(found) <= {"nothing", "whole"} and "nothing" in found
    assert set(codes) <= {0, 1, 130, -getattr(signal, how)}, codes
    assert not list(tmp_path.glob("*/.*.part"))


def test_part_of_a_living_run_stays(tmp_path: Path) -> None:
    with written_whole(tmp_path / "new") as first:
        first.write_text("first")
        with written_whole(tmp_path / "new") as second:
            second.write_text("second")
        assert first.read_text() == "first"
        (tmp_path / "new").unlink()
    assert (tmp_path / "new").read_text() == "first"
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    started, tell = os.pipe()
    with lock_folder(tmp_path) as is_locked:
        child = os.fork()
        if not child:
            os.write(tell, b".")
            signal.pause()
        os.read(started, 1)
        with lock_folder(tmp_path) as second:
            assert (is_locked, second) == (True, False)
    try:
        with lock_folder(tmp_path) as afterwards:
            assert afterwards
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(started)
        os.close(tell)
