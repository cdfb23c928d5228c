"""Files that are either written whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_text(file: Path, text: str) -> None:
    """Writes a text file in one piece."""
    write_bytes_with(file, lambda stream: stream.write(text.encode()))


def write_bytes_with(file: Path, write: Callable[[Any], Any]) -> None:
    """Lets `write` fill a file that takes its place only when it is complete."""
    temporary = file.with_name(f".{file.name}.part")
    with temporary.open("wb") as stream:
        write(stream)
    temporary.replace(file)


def why_not_writable(folder: Path) -> str | None:
    """What keeps a report from being written into a folder; None if nothing does.

    The folder is made if it is not there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{folder}: expected a folder that can be made, found {error.strerror}"
    if not os.access(folder, os.W_OK):
        return f"{folder}: expected a folder that can be written to, found one that cannot"
    return None
