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
from benchmarks.timing import Spread
from optax_bridge.installed import versions

PICTURE = "results.svg"
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
    """A ratio with its quartiles, e.g. `1.02 (0.98 to 1.05)`."""
    if ratio.low == ratio.high:
        return f"{ratio.median:.2f}"
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def markdown(outcomes: Sequence[Outcome], here: dict[str, Any], seconds: float) -> str:
    """The page, a table for each section.

    Args:
      outcomes: of a run.
      here: `machine()`.
      seconds: that the run took.
    """
    named = ", ".join(f"{name} {version}" for name, version in here["versions"].items())
    lines = [
        "# What it costs: the last full run",
        "",
        "Written by `optax-bridge bench --results benchmarks/RESULTS.md`; `benchmarks/README.md` "
        "says what is measured and how.",
        "",
        f"{here['date']}, {here['processor']}, {here['cores']} cores, {here['system']}; device "
        f"{here['device']}; load before the run {here['load before']}; {seconds / 60:.0f} minutes. "
        f"{named}.",
        "",
        "Every figure is the median ratio of two things that took turns in one run, in brackets "
        "the first and third quartile.",
        "**above** marks a ratio whose lower quartile is above its bar.",
        "",
        f"![ratios]({PICTURE})",
    ]
    for section in dict.fromkeys(outcome.section for outcome in outcomes):
        of_it = [outcome for outcome in outcomes if outcome.section == section]
        lines += ["", f"## {section[0].upper()}{section[1:]}", ""]
        figures = [outcome for outcome in of_it if isinstance(outcome, Figure)]
        if figures:
            lines += ["| what | of | ratio | bar | the second one | |", "|---|---|--:|--:|--:|---|"]
            lines += [_row(figure) for figure in figures]
        missing = [f"- not run: {o.subject}: {o.why}" for o in of_it if isinstance(o, NotRun)]
        lines += ["", *missing] if figures and missing else missing
    return "\n".join(lines) + "\n"


def _row(figure: Figure) -> str:
    bar = "" if figure.bar is None else f"{figure.bar:.2f}"
    remark = "; ".join(filter(None, ["" if figure.kept else "**above**", figure.note]))
    base = f"{figure.base:.4g} {figure.unit}"
    cells = (figure.subject, figure.what, shown(figure.ratio), bar, base, remark)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def picture(outcomes: Sequence[Outcome]) -> str:
    """Every ratio with its quartiles on a logarithmic axis from 1/4 to 4, as SVG."""
    figures = [outcome for outcome in outcomes if isinstance(outcome, Figure)]
    height = _ROW * (len(figures) + 2)

    def x(ratio: float) -> float:
        inside = min(max(ratio, _LOW), _HIGH)
        share = math.log(inside / _LOW) / math.log(_HIGH / _LOW)
        return round(_LEFT + (_WIDTH - _LEFT - 10) * share, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="10" role="img">',
        "<title>Ratios of this run, with quartiles</title>",
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
    """What is worse or better than in another run: figures whose quartiles do not overlap."""
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
