# pyright: strict
"""A line that says how far a training is."""

import contextlib
import math
import time
from collections.abc import Callable, Generator
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

_SECONDS_BETWEEN_LINES = 10.0  # where lines cannot be written over


class _Line:
    """Step, loss, steps per second, time left.

    Args:
      max_step: the last step; infinite if there is none.
      show: shows a line.
      seconds: between two lines.
    """

    def __init__(self, max_step: float, show: Callable[[str], Any], seconds: float):
        self._max_step, self._show, self._seconds = max_step, show, seconds
        self._first: tuple[int, float] | None = None
        self._shown = -math.inf

    def __call__(self, step: int, loss: Any) -> None:
        now = time.monotonic()
        if self._first is None:  # it has the compilation in it
            self._first = (step, now)
        if now - self._shown < self._seconds and step != self._max_step:
            return
        self._shown = now
        first, start = self._first
        rate = (step - first) / (now - start) if step > first else None
        of = "" if math.isinf(self._max_step) else f" of {self._max_step}"
        parts = [f"step {step}{of}", f"loss {loss:.4f}"]
        if rate is not None:
            parts.append(f"{rate:.1f} steps/s")
            if not math.isinf(self._max_step):
                parts.append(f"{_clock((self._max_step - step) / rate)} left")
        self._show("  ".join(parts))


@contextlib.contextmanager
def progress_line(
    console: Console, max_step: float
) -> Generator[Callable[[int, Any], None], None, None]:
    """A line on a terminal that is written over; elsewhere a line every ten seconds.

    Args:
      console: where it stands.
      max_step: the last step; infinite if there is none.

    Yields:
      A function of each step and its loss.
    """
    if not console.is_terminal:
        yield _Line(max_step, console.print, _SECONDS_BETWEEN_LINES)
        return
    with Live(Text("compiling"), console=console, auto_refresh=False) as live:
        yield _Line(max_step, lambda text: live.update(Text(text), refresh=True), 0.1)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
