# pyright: strict
"""Files and folders that appear whole or not at all; imports nothing slow."""

import contextlib
import logging
import os
import re
import shutil
import socket
import uuid
from collections.abc import Generator
from pathlib import Path

_PART = re.compile(r"\.optax-bridge-(?P<host>.*)-(?P<pid>[0-9]+)-[0-9a-f]{8}\.part")
REPLACED = ".replaced"  # the old file or folder, between the two renames
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def atomic_write(path: Path) -> Generator[Path, None, None]:
    """Yields a temporary path next to the destination, and renames it at the end."""
    path = Path(os.path.abspath(path))  # `.` has no name
    missing_parents = [parent for parent in path.parents if not os.path.lexists(parent)]
    tmp_dir = part_folder(path.parent)
    tmp_path = tmp_dir / path.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tmp_dir.mkdir(mode=0o700)
        yield tmp_path
        _sync(tmp_path)
        _rename(tmp_path, path)
        _remove(tmp_dir)
    except BaseException:  # an interrupt of the removal, too: it is finished
        _remove(tmp_dir)
        for parent in missing_parents:
            with contextlib.suppress(OSError):  # another process has put something into it
                parent.rmdir()
        raise
    for written in (path, *missing_parents):
        _sync_folder(written.parent)


def part_folder(folder: Path) -> Path:
    """The path of a new folder to write in, which names this host and process."""
    process = f"{_host()}-{os.getpid()}"
    return folder / f".optax-bridge-{process}-{uuid.uuid4().hex[:8]}.part"


def remove_abandoned(folder: Path) -> None:
    """Removes files that killed processes of this host left in a folder, and logs it."""
    for part in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _PART.fullmatch(part.name)
        if match is None or part.is_symlink() or not part.is_dir():
            continue
        with contextlib.suppress(OSError):
            names = sorted(os.listdir(part))
            if _holds_only_copy(part):
                text = "a killed process had moved it here to replace it: move it back"
                _log.warning("%s: %s", part / REPLACED, text)
            elif match["host"] == _host() and not _is_alive(int(match["pid"])):
                shutil.rmtree(part)
                content = ", ".join(names) if names else "an empty folder"
                _log.warning("removed %s, left by a killed process: %s", part, content)


def _rename(tmp_path: Path, path: Path) -> None:
    if not os.path.lexists(path) or not (path.is_dir() or tmp_path.is_dir()):
        os.replace(tmp_path, path)
        return
    replaced = tmp_path.with_name(REPLACED)
    try:
        os.rename(path, replaced)
        os.rename(tmp_path, path)
    except BaseException:
        if os.path.lexists(replaced) and not os.path.lexists(path):
            os.rename(replaced, path)
        raise


def _remove(part: Path) -> None:
    if not _holds_only_copy(part):
        shutil.rmtree(part, ignore_errors=True)


def _holds_only_copy(part: Path) -> bool:
    """True if a process ended between the two renames, and nothing is at the path again."""
    names = set(os.listdir(part)) if part.is_dir() else set[str]()
    new_names = names - {REPLACED}
    return names > new_names and any(not os.path.lexists(part.parent / name) for name in new_names)


def _host() -> str:
    return re.sub(r"[^\w.-]", "_", socket.gethostname())[:64]


def _is_alive(pid: int) -> bool:
    if os.name == "nt":  # where os.kill ends a process with any signal
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _sync(path: Path) -> None:
    for written in [path, *path.rglob("*")] if path.is_dir() else [path]:
        if written.is_dir():
            _sync_folder(written)
        else:
            with written.open("rb") as file:
                os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
