# pyright: strict
"""A line that says how far a training is."""

import contextlib
import math
import time
from collections.abc import Callable, Generator

from rich.console import Console
from rich.live import Live
from rich.text import Text

_SECONDS_BETWEEN_LINES = 10.0  # where lines cannot be written over


@contextlib.contextmanager
def progress_line(
    console: Console, max_step: float
) -> Generator[Callable[[int, float], None], None, None]:
    """Step, loss, steps per second, time left: on a terminal a line that is written over.

    Elsewhere it is a line every ten seconds.

    Args:
      console: where it is drawn.
      max_step: the last step; infinite without a limit.

    Yields:
      A function of each step and its loss.
    """
    if not console.is_terminal:
        yield _shower(max_step, console.print, _SECONDS_BETWEEN_LINES)
        return
    with Live(Text("compiling"), console=console, auto_refresh=False) as live:
        yield _shower(max_step, lambda text: live.update(Text(text), refresh=True), 0.1)


def _shower(
    max_step: float, show: Callable[[str], object], seconds: float
) -> Callable[[int, float], None]:
    first: tuple[int, float] | None = None
    shown = -math.inf

    def step_taken(step: int, loss: float) -> None:
        nonlocal first, shown
        now = time.monotonic()
        first = first or (step, now)  # it has the compilation in it
        if now - shown < seconds and step != max_step:
            return
        shown = now
        endless = math.isinf(max_step)
        line = f"step {step}{'' if endless else f' of {max_step}'}  loss {loss:.4f}"
        if step > first[0] and now > first[1]:  # some clocks tick 64 times a second
            rate = (step - first[0]) / (now - first[1])
            line += f"  {rate:.1f} steps/s"
            line += "" if endless else f"  {_clock((max_step - step) / rate)} left"
        elif step < max_step:
            line += "  measuring the speed"
        show(line)

    return step_taken


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
