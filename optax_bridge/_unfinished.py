# pyright: strict
"""Folders for what is being written and not whole yet, and the removal of what killed runs left."""

import contextlib
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

fcntl: Any = None
with contextlib.suppress(ImportError):  # not on Windows, where nothing is cleaned up then
    import fcntl

_SECONDS_BETWEEN_TRIES = 0.01
_PART = re.compile(r"\.optax-bridge-[0-9a-f]{8}\.part")
REPLACED = ".replaced"  # where a system that cannot swap two paths has the old one for a moment
_log = logging.getLogger(__name__)
_descriptors: set[int] = set()  # of the folders that this process has open to lock them


def part_folder(folder: Path) -> Path:
    """The path of a new folder to write in, which is known before the folder exists."""
    return folder / f".optax-bridge-{uuid.uuid4().hex[:8]}.part"


@contextlib.contextmanager
def locked_folder(folder: Path) -> Generator[None, None, None]:
    """Makes a folder and locks it as long as this process lives."""
    while True:
        folder.mkdir(exist_ok=True)
        with contextlib.ExitStack() as stack:
            try:
                is_locked = stack.enter_context(lock_folder(folder))
            except FileNotFoundError:
                continue
            if is_locked is None or (is_locked and folder.is_dir()):
                yield
                return
        time.sleep(_SECONDS_BETWEEN_TRIES)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Generator[bool | None, None, None]:
    """Locks a folder; returns True if it did, False if a process has it, None without locks."""
    if fcntl is None:
        yield None
        return
    descriptor = os.open(folder, os.O_RDONLY)
    _descriptors.add(descriptor)
    try:
        is_locked: bool | None = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_locked = False
        except OSError:  # the file system knows no locks
            is_locked = None
        yield is_locked
    finally:
        if descriptor in _descriptors:  # not in a forked process
            _descriptors.remove(descriptor)
            os.close(descriptor)


def _close_locked_folders() -> None:
    while _descriptors:
        os.close(_descriptors.pop())


if hasattr(os, "register_at_fork"):  # a worker may outlive the process that forked it
    os.register_at_fork(after_in_child=_close_locked_folders)


def removed_rests(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Removes what runs that wrote into a folder left behind when they were killed."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if not _PART.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        with contextlib.suppress(OSError), lock_folder(path) as is_locked:
            names = sorted(entry.name for entry in path.iterdir())
            if REPLACED in names and not any(os.path.lexists(folder / name) for name in names):
                _log.warning("%s: a killed run left what it was to replace here", path / REPLACED)
            elif is_locked:
                shutil.rmtree(path, ignore_errors=True)
                yield path, names
