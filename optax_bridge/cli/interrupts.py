# pyright: strict
"""Ctrl-C while a file or folder is being made: one line that says how things stand."""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import typer

from optax_bridge.cli.signals import INTERRUPTED, interrupt


class Interrupts:
    """While it is open, an interrupt ends the command with one line and exit code 130."""

    def __init__(self, destination: Path):
        self.destination, self.is_starting, self._seen = destination, True, False
        self._at_first = _identity(destination)
        self._handler: Any = None

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) in (signal.default_int_handler, interrupt):
            self._handler = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if kind is KeyboardInterrupt or (self._seen and error is not None):
            self._say()
            # All is said; what threads of libraries say of what was taken from them is not for us.
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for good
            raise typer.Exit(INTERRUPTED) from None

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._seen = True
        if self.is_starting:
            self._say()
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt

    def _say(self) -> None:
        if _identity(self.destination) == self._at_first:
            message = (
                f"interrupted: {self.destination} is as it was before; run it again to make it"
            )
        else:
            message = f"interrupted when {self.destination} was whole already: it can be used"
        typer.echo(message, err=True)


def _identity(path: Path) -> tuple[int, int] | None:
    """Inode and time of change of a file or folder; None if it does not exist."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
