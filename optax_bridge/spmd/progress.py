"""The progress of a training: a line on the terminal, a file and a picture of its losses."""

import contextlib
import io
import math
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

_SECONDS_BETWEEN_LINES = 10.0  # where lines cannot be written over
_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 16, 40
_POINTS = 600  # more of them do not show


@contextlib.contextmanager
def progress_line(
    console: Console, max_step: float
) -> Generator[Callable[[int, float], None], None, None]:
    """Step, loss, steps per second, time left: on a terminal a line that is written over."""
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


class LossLog:
    """Appends each step's loss to `losses.csv` in the run's folder; draws `loss.svg` there."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._file: io.TextIOWrapper | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # each line was flushed: a failure was raised then
                self._file.close()
            self._file = None

    def __call__(self, step: int, loss: float) -> None:
        """Appends a line, `step,loss` with all digits of the loss."""
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            earlier = [(s, x) for s, x in read_losses(self._folder) if s < step]
            self._file = (self._folder / "losses.csv").open("w", encoding="utf-8")
            self._file.writelines(f"{s},{x!r}\n" for s, x in earlier)
        self._file.write(f"{step},{float(loss)!r}\n")
        self._file.flush()

    def draw(self) -> Path:
        """Draws all losses so far; returns the picture's file."""
        picture = self._folder / "loss.svg"
        picture.write_text(curve(read_losses(self._folder)))
        return picture


def read_losses(folder: Path) -> list[tuple[int, float]]:
    """Steps and losses of a run, from its folder; a line that is half there is left out."""
    file = folder / "losses.csv"
    if not file.exists():
        return []
    pairs = [line.split(",") for line in file.read_text().splitlines(keepends=True)]
    return [(int(p[0]), float(p[1])) for p in pairs if len(p) == 2 and p[1].endswith("\n")]


def curve(losses: list[tuple[int, float]]) -> str:
    """Losses over steps, as SVG."""
    stride = max(1, len(losses) // _POINTS)
    shown = [*losses[:-1][::stride], *losses[-1:]]
    steps, values = [s for s, _ in shown] or [0], [x for _, x in shown] or [0.0]
    low, high = min(values), max(values)
    high = high if high > low else low + 1.0

    def x(step: float) -> float:
        span = max(1, steps[-1] - steps[0])
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (step - steps[0]) / span, 1)

    def y(value: float) -> float:
        return round(_TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low), 1)

    parts = []
    for fraction in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = low + (high - low) * fraction
        parts.append(f'<path class="grid" d="M{_LEFT} {y(value)}H{_WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:.3g}</text>'
        )
    for step, anchor in ((steps[0], "start"), (steps[-1], "end")):
        parts.append(f'<text x="{x(step)}" y="{_HEIGHT - 20}" text-anchor="{anchor}">{step}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">step</text>')
    points = " ".join(f"{x(s)},{y(v)}" for s, v in zip(steps, values, strict=True))
    parts.append(f'<polyline points="{points}"/>')
    return (
        f'<svg class="loss" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="loss over {len(losses)} steps, from {values[0]:.3g} to {values[-1]:.3g}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">'
        "<style>.loss{font:12px sans-serif}.loss text{fill:currentColor}"
        ".loss polyline{fill:none;stroke:#2563eb;stroke-width:1.5}"
        ".loss .grid{stroke:currentColor;opacity:.15}</style>"
        f"{''.join(parts)}</svg>\n"
    )
