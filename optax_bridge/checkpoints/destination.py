# pyright: strict
"""A destination that appears whole or not at all."""

import atexit
import contextlib
import ctypes
import logging
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Generator
from pathlib import Path

from optax_bridge._unfinished import REPLACED, locked_folder, part_folder, removed_rests
from optax_bridge.checkpoints.errors import CheckpointError, brief
from optax_bridge.checkpoints.read import contents_of, format_of
from optax_bridge.checkpoints.trees import is_array, leaves

_SECONDS_TO_FINISH, _SECONDS_IN_THE_WAY = 10, 0.3  # how long threads may go on after a failure
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def written_whole(destination: Path, *, force: bool = False) -> Generator[Path, None, None]:
    """Gives a path next to the destination to write to, and moves it there at the end."""
    destination = Path(os.path.abspath(destination))  # `.` has no name
    remove_abandoned(destination.parent)
    _check(destination, force)
    # In a separate folder: Orbax puts temporary folders next to what it writes.
    missing = [path for path in destination.parents if not os.path.lexists(path)]
    folder = part_folder(destination.parent)
    part = folder / destination.name
    try:  # around the first and the last step as well: a signal may come at any of them
        destination.parent.mkdir(parents=True, exist_ok=True)
        with locked_folder(folder):
            yield part
            _sync(part)
            _check(destination, force)  # something else may be there by now
            if not force or not os.path.lexists(destination):
                _move_to_free(part, destination)
            elif part.is_file() and not destination.is_dir():
                os.replace(part, destination)
            else:
                _exchange(part, destination)
            for path in (destination, *missing):
                _sync_folder(path.parent)
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        _remove_for_good(folder)
        for path in missing:
            with contextlib.suppress(OSError):  # somebody else has put something there
                path.rmdir()
        # Threads that were in the middle of a large array are late.
        atexit.register(lambda: os.path.lexists(folder) and _remove_for_good(folder))
        raise


def _remove_for_good(folder: Path) -> None:
    """Removes a folder into which threads of tensorstore may still write after it failed."""
    until = time.monotonic() + _SECONDS_TO_FINISH
    while time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # they were faster
            folder.touch(exist_ok=False)
            time.sleep(_SECONDS_IN_THE_WAY)
            folder.unlink()
            return


def remove_abandoned(folder: Path) -> None:
    """Removes what runs that wrote into a folder left behind when they were killed; logs each."""
    for path, names in removed_rests(folder):
        what = f": {', '.join(names)}" if names else ", an empty folder"
        _log.warning("removed %s, the rest of a killed run%s", path, what)


def _check(destination: Path, force: bool) -> None:
    above = next(path for path in destination.parents if os.path.lexists(path))
    if not above.is_dir():
        kind = "a broken link" if above.is_symlink() and not above.exists() else "a file"
        raise CheckpointError(
            destination, "a folder to write into", f"{kind}, {above}", "Name another place.",
        )  # fmt: skip
    if not os.path.lexists(destination):
        return
    if not force:
        raise _exists(destination)
    check_replaceable(destination)


def _exists(destination: Path) -> CheckpointError:
    kind = "a folder" if destination.is_dir() else "a file"
    kind = "a link" if destination.is_symlink() else kind
    return CheckpointError(
        destination, "nothing at the destination", kind,
        "Name another one, or pass --force, which replaces a checkpoint.",
    )  # fmt: skip


def _move_to_free(part: Path, destination: Path) -> None:
    """Moves without replacing what may have appeared there in the meantime."""
    try:
        if part.is_dir():
            os.rename(part, destination)  # fails on a file and on a folder with something in it
        else:
            os.link(part, destination)  # fails on anything
    except OSError as error:
        if os.path.lexists(destination):
            raise _exists(destination) from None
        if part.is_dir():
            raise
        del error  # a file system without hard links
        os.rename(part, destination)


def _exchange(part: Path, destination: Path) -> None:
    """Swaps two paths in one step where the system can, in two elsewhere."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if hasattr(libc, "renameat2"):
            here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
            if libc.renameat2(here, os.fsencode(part), here, os.fsencode(destination), swap) == 0:
                return
    os.rename(destination, part.with_name(REPLACED))
    os.rename(part, destination)


def _sync(part: Path) -> None:
    for path in [part, *part.rglob("*")] if part.is_dir() else [part]:
        if path.is_dir():
            _sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_REMEDY = (
    "Only a checkpoint is replaced: name another destination, or take away what is there yourself."
)


def check_replaceable(destination: Path) -> None:
    """Checks that what is at a path is a checkpoint and nothing else, by its content."""
    mode = os.lstat(destination).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "a link" if stat.S_ISLNK(mode) else "a device, a pipe or a socket"
        raise _refusal(destination, kind)
    if stat.S_ISDIR(mode) and not any(destination.iterdir()):
        return
    located = format_of(destination)
    if located is None or located[1] != destination:
        is_folder = stat.S_ISDIR(mode)
        what = brief(sorted(os.listdir(destination))) if is_folder else "a file of another kind"
        raise _refusal(destination, what)
    format, _ = located
    try:
        tree = contents_of(format, destination).tree
    except CheckpointError as error:
        raise _refusal(destination, f"a damaged one ({error.place}: {error.found})") from None
    if not any(is_array(leaf) for _, leaf in leaves(tree)):
        raise _refusal(destination, f"a file of {format.name} without an array in it")
    if stat.S_ISDIR(mode):
        foreign = _foreign(destination, format.file_pattern)
        if foreign:
            raise _refusal(destination, f"one with other files in its folder: {brief(foreign)}")


def _foreign(folder: Path, file_pattern: str | None) -> list[str]:
    pattern = re.compile(file_pattern) if file_pattern is not None else None
    foreign: list[str] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_file = path.is_symlink() or not path.is_dir()
        if is_file and (pattern is None or not pattern.fullmatch(name)):
            foreign.append(name)
    return foreign


def _refusal(destination: Path, actual: str) -> CheckpointError:
    return CheckpointError(destination, "a checkpoint to replace", actual, _REMEDY)
