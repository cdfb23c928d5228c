"""A benchmark's results: ratios of two things measured in turn, and the page of them."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax

from benchmarks.timing import Spread, in_turn, interval
from optax_bridge.cli.installed import versions


@dataclass(frozen=True)
class Figure:
    """One ratio."""

    section: str
    subject: str
    what: str
    ratio: Spread
    base: float
    unit: str = "ms"
    bar: float | None = None
    note: str = ""

    @property
    def is_within_bar(self) -> bool:
        """True unless the whole interval is above the bar."""
        return self.bar is None or self.ratio.low <= self.bar


@dataclass(frozen=True)
class NotRun:
    """A thing that was not measured, and the reason."""

    section: str
    subject: str
    reason: str


Outcome = Figure | NotRun
# A measurement: quick or not -> outcomes, each as soon as it has been taken.
Measurement = Callable[[bool], Iterator[Outcome]]


def exactly(ratio: float) -> Spread:
    """Returns a ratio that was counted, or measured once, as a spread without width."""
    return Spread(ratio, ratio, ratio)


def ratios(
    section: str,
    subject: str,
    candidates: Mapping[str, Callable[[], float]],
    pairs: Sequence[tuple[str, str, float | None]],
    *,
    repeats: int,
    seconds: float = 5.0,
    warm_up: int = 2,
) -> Iterator[Figure]:
    """Lets candidates take turns and yields their ratios, taken turn by turn."""
    times = in_turn(candidates, repeats, warm_up, seconds)
    for first, second, bar in pairs:
        if first in times and second in times:
            turn_ratios = [a / b for a, b in zip(times[first], times[second], strict=True)]
            base = 1e3 * statistics.median(times[second])
            yield Figure(
                section, subject, f"{first} / {second}", interval(turn_ratios), base, "ms", bar
            )


_HEAD = ("| subject | sides | ratio | bar | the second side | |", "|---|---|--:|--:|--:|---|")


def ratio_text(ratio: Spread) -> str:
    """Returns a ratio with its interval, e.g. `1.02 (0.98 to 1.05)`."""
    if ratio.low == ratio.high:
        return f"{ratio.median:.2f}"
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def to_markdown(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Returns the page: the machine, how many figures are above their bar, a table a section."""
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    figures = [outcome for outcome in outcomes if isinstance(outcome, Figure)]
    above = sum(not figure.is_within_bar for figure in figures)
    lines = [
        "# What it costs: the last full run",
        "",
        "Written by `nox -s bench`; `benchmarks/README.md` says what is measured and how.",
        "",
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, device "
        f"{jax.devices()[0].device_kind}; {seconds / 60:.0f} minutes. {packages}.",
        "",
        "Every figure is the median ratio of two things that took turns in one run, in brackets "
        "the interval that holds the true median with 95 %. A ratio is above its bar where the "
        f"whole interval is: {above} of {len(figures)}.",
    ]
    for section in dict.fromkeys(outcome.section for outcome in outcomes):
        in_section = [outcome for outcome in outcomes if outcome.section == section]
        lines += ["", f"## {section.capitalize()}", ""]
        lines += [*_HEAD, *(_row(o) for o in in_section if isinstance(o, Figure)), ""]
        lines += [
            f"- not run: {o.subject}: {o.reason}" for o in in_section if isinstance(o, NotRun)
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(figure: Figure) -> str:
    bar = "" if figure.bar is None else f"{figure.bar:.2f}"
    remark = "; ".join(filter(None, ["" if figure.is_within_bar else "**above**", figure.note]))
    base = f"{figure.base:.4g} {figure.unit}"
    cells = (figure.subject, figure.what, ratio_text(figure.ratio), bar, base, remark)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
