"""A run's figures as a page: tables, a picture, and what changed since another run."""

import html
import math
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks.figures import Figure, NotRun, Outcome
from benchmarks.reasons import reason
from benchmarks.timing import Spread
from optax_bridge.installed import versions

PICTURE = "results.svg"
_QUICK = "The problems of a quick run are tiny, and no figure is held to a bar."
_WIDTH, _ROW, _LEFT = 860, 15, 470
_LOW, _HIGH = 0.25, 4.0


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    device = jax.devices()[0]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": device.device_kind,
        "platform": device.platform,
        "system": platform.system(),
        "load before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": versions(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def shown(ratio: Spread) -> str:
    """A ratio with its interval, e.g. `1.02 (0.98 to 1.05)`."""
    if ratio.low == ratio.high:
        return f"{ratio.median:.2f}"
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def markdown(
    outcomes: Sequence[Outcome], here: dict[str, Any], seconds: float, quick: bool = False
) -> str:
    """The page: what it comes to, what is above its bar and why, then a table for each section.

    Args:
      outcomes: of a run.
      here: `machine()`.
      seconds: that the run took.
      quick: whether the problems were tiny; nothing is held to a bar then.
    """
    named = ", ".join(f"{name} {version}" for name, version in here["versions"].items())
    lines = [
        f"# What it costs: {'a quick run' if quick else 'the last full run'}",
        "",
        "Written by `optax-bridge bench --results benchmarks/RESULTS.md`; `benchmarks/README.md` "
        "says what is measured and how.",
        "",
        f"{here['date']}, {here['processor']}, {here['cores']} cores, {here['system']}; device "
        f"{here['device']}; load before the run {here['load before']}; {seconds / 60:.0f} minutes. "
        f"{named}.",
        "",
        "Every figure is the median ratio of two things that took turns in one run, in brackets "
        "the interval that holds the true median with 95 %. A ratio is above its bar where the "
        "whole interval is. Beside the clock stands a judge without noise: the compiled programs "
        "of both, whose loops are counted. Where these are the same the true ratio is 1, whatever "
        "was timed.",
        "",
        *_summary(outcomes),
        "",
        *([_QUICK] if quick else _above(outcomes)),
        "",
        f"![ratios]({PICTURE})",
    ]
    for section in _sections(outcomes):
        of_it = [outcome for outcome in outcomes if outcome.section == section]
        lines += ["", f"## {section[0].upper()}{section[1:]}", ""]
        figures = [outcome for outcome in of_it if isinstance(outcome, Figure)]
        if figures:
            lines += [*_HEAD, *map(_row, figures)]
        missing = [f"- not run: {o.subject}: {o.why}" for o in of_it if isinstance(o, NotRun)]
        lines += ["", *missing] if figures and missing else missing
    return "\n".join(lines) + "\n"


_HEAD = ("| what | of | ratio | bar | the second one | |", "|---|---|--:|--:|--:|---|")


def _sections(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(outcome.section for outcome in outcomes))


def _summary(outcomes: Sequence[Outcome]) -> list[str]:
    """How many figures there are, and how many are above their bar, by section."""
    lines = [
        "| | figures | with a bar | above it | the same program by count | not run |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    rows: list[list[int]] = []
    for section in _sections(outcomes):
        of_it = [outcome for outcome in outcomes if outcome.section == section]
        figures = [outcome for outcome in of_it if isinstance(outcome, Figure)]
        barred = [figure for figure in figures if figure.bar is not None]
        rows.append([
            len(figures),
            len(barred),
            sum(not figure.kept for figure in barred),
            sum(figure.same_work for figure in figures),
            len(of_it) - len(figures),
        ])  # fmt: skip
        lines.append(f"| {section} | {' | '.join(map(str, rows[-1]))} |")
    total = [sum(column) for column in zip(*rows, strict=True)]
    return [*lines, f"| **all** | {' | '.join(map(str, total))} |"]


def _above(outcomes: Sequence[Outcome]) -> list[str]:
    """What is above its bar, gathered by the reason."""
    by_reason: dict[str, list[Figure]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Figure) and not outcome.kept:
            by_reason.setdefault(reason(outcome) or "not explained", []).append(outcome)
    if not by_reason:
        return ["Nothing is above its bar."]
    lines = ["Above the bar, and why:", ""]
    for why, figures in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        ratios = [figure.ratio.median for figure in figures]
        span = f"{min(ratios):.2f}" + (f" to {max(ratios):.2f}" if len(ratios) > 1 else "")
        names = dict.fromkeys(f"{figure.subject} ({figure.what})" for figure in figures)
        some = "; ".join(list(names)[:4]) + ("; ..." if len(names) > 4 else "")
        lines.append(f"- {len(figures)} of {span}: {why}. {some}".replace("|", "\\|"))
    return lines


def _row(figure: Figure) -> str:
    bar = "" if figure.bar is None else f"{figure.bar:.2f}"
    above = "" if figure.kept else "**above**"
    remark = "; ".join(filter(None, [above, figure.work, figure.note, reason(figure)]))
    base = f"{figure.base:.4g} {figure.unit}"
    cells = (figure.subject, figure.what, shown(figure.ratio), bar, base, remark)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def picture(outcomes: Sequence[Outcome]) -> str:
    """Every ratio with its interval on a logarithmic axis from 1/4 to 4, as SVG."""
    figures = [outcome for outcome in outcomes if isinstance(outcome, Figure)]
    height = _ROW * (len(figures) + 2)

    def x(ratio: float) -> float:
        inside = min(max(ratio, _LOW), _HIGH)
        share = math.log(inside / _LOW) / math.log(_HIGH / _LOW)
        return round(_LEFT + (_WIDTH - _LEFT - 10) * share, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="10" role="img">',
        "<title>Ratios of this run, with their intervals</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for tick in (0.25, 0.5, 1.0, 2.0, 4.0):
        parts.append(
            f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{_ROW}" y2="{height}" stroke="#ccc"/>'
            f'<text x="{x(tick)}" y="10" text-anchor="middle">{tick:g}</text>'
        )
    for row, figure in enumerate(figures):
        y = _ROW * (row + 1.7)
        colour = "#1f6fb4" if figure.kept else "#c0392b"
        name = html.escape(f"{figure.subject}: {figure.what}"[:96])
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 3}" text-anchor="end">{name}</text>'
            f'<line x1="{x(figure.ratio.low)}" x2="{x(figure.ratio.high)}" y1="{y}" y2="{y}" '
            f'stroke="{colour}"/><circle cx="{x(figure.ratio.median)}" cy="{y}" r="3" '
            f'fill="{colour}"/>'
        )
    return "".join([*parts, "</svg>\n"])


def changes(outcomes: Sequence[Outcome], before: Sequence[Outcome]) -> list[str]:
    """What is worse or better than in another run: figures whose intervals do not overlap."""
    then = {figure.key: figure for figure in before if isinstance(figure, Figure)}
    lines = []
    for figure in outcomes:
        if not isinstance(figure, Figure) or figure.key not in then:
            continue
        old = then[figure.key].ratio
        if figure.ratio.low > old.high or figure.ratio.high < old.low:
            word = "slower" if figure.ratio.median > old.median else "faster"
            lines.append(
                f"{word}: {figure.subject}: {figure.what}: {shown(figure.ratio)}, was {shown(old)}"
            )
    return lines
