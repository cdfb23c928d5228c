"""Files that are either written whole or not at all."""

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def write_text(file: Path, text: str) -> None:
    """Writes a text file in one piece."""
    write_bytes_with(file, lambda stream: stream.write(text.encode()))


class Written:
    """Within it a command writes its files; at its end standard error says which, or what failed.

    Attributes:
      failed: whether one could not be written, which ended the block.
    """

    def __init__(self):
        self._files: list[Path] = []
        self.failed = False

    def __enter__(self) -> "Written":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        self.failed = isinstance(error, OSError)  # the disk is full, the folder gone since
        if isinstance(error, OSError):
            print(f"{error.filename}: not written: {error.strerror}", file=sys.stderr)
        elif self._files and error is None:
            print(f"written: {', '.join(map(str, self._files))}", file=sys.stderr)
        return self.failed

    def add(self, file: Path) -> None:
        """Adds a file that is written."""
        self._files.append(file)

    def text(self, file: Path | None, text: str) -> None:
        """Writes a text file in one piece and adds it, if it is wanted."""
        if file is not None:
            write_text(file, text)
            self.add(file)


def write_bytes_with(file: Path, write: Callable[[Any], Any]) -> None:
    """Lets `write` fill a file that takes its place only when it is complete.

    A link stays a link, and the file that it leads to is replaced; a device is written to. An
    OSError has the file's name, and leaves nothing behind.
    """
    # What is in /dev is not replaced even where standard output, say, goes to a file.
    is_own = (file.is_file() or not file.exists()) and Path("/dev") not in file.absolute().parents
    real = file.resolve()
    target = real.with_name(f".{real.name}.part") if is_own else file
    try:
        with target.open("wb") as stream:
            write(stream)
        if is_own:
            target.replace(real)
    except BaseException as error:
        if is_own:
            target.unlink(missing_ok=True)
        if isinstance(error, OSError):
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


def checked(files: Mapping[str, Path | None], folder: Path | None) -> None:
    """Finds out before a long run whether what it writes can be written.

    Args:
      files: option -> file, None where it is not wanted.
      folder: of `--report`.

    Raises:
      ValueError: one cannot; the message begins with the option.
    """
    if folder is not None and (why := why_not_writable(folder)):
        raise ValueError(f"--report {why}")
    for option, file in files.items():  # which may go into that folder
        if file is not None and (why := why_no_file(file)):
            raise ValueError(f"{option} {why}")


def why_not_writable(folder: Path) -> str | None:
    """Returns the reason why a report cannot be written into a folder; None if it can.

    The folder is made if it is not there.
    """
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
