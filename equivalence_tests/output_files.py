"""Writes files whole or not at all."""

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from optax_bridge._atomic import atomic_write


def write_text(file: Path, text: str) -> None:
    """Writes a text file in one piece."""
    write_bytes_with(file, lambda stream: stream.write(text.encode()))


def write_bytes_with(file: Path, write: Callable[[BinaryIO], object]) -> None:
    """Lets `write` fill a file that takes its place only when it is complete."""
    # What is in /dev is not replaced even where standard output goes to a file.
    is_own = (file.is_file() or not file.exists()) and Path("/dev") not in file.absolute().parents
    target = atomic_write(file.resolve()) if is_own else contextlib.nullcontext(file)
    try:
        with target as path, path.open("wb") as stream:
            write(stream)
    except OSError as error:
        error.filename = str(file)
        raise


def why_no_file(file: Path) -> str | None:
    """Returns the reason why a file cannot be written; None if it can."""
    if file.exists() and not (file.is_file() or file.is_dir()):
        return None  # /dev/stdout, say
    folder = file.resolve().parent
    if not folder.is_dir():
        return f"{file}: the folder {folder} does not exist"
    if file.is_dir():
        return f"{file}: expected a file to write, found a folder"
    if why := _why_closed(folder):
        return f"{file}: expected a folder that can be written to, found {folder}: {why}"
    return None


def why_not_writable(folder: Path) -> str | None:
    """Returns the reason why a report cannot be written into a folder; None if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file" if isinstance(error, FileExistsError) else error.strerror
        return f"{folder}: expected a folder, or a place to make it, found {reason}"
    if why := _why_closed(folder):
        return f"{folder}: expected a folder that can be written to, found {why}"
    return None


def _why_closed(folder: Path) -> str | None:
    """Returns the reason why no file can be made in a folder; only trying tells."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror
