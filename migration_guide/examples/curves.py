"""Pictures of two trainings over their steps, as SVG in the colours of the page."""

import html
import math
from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT = 320, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 6, 8, 32
_LINES = 4
# The first is broad, so that it shows under a second one that is the same.
_STYLES = (
    'stroke="#d97706" stroke-width="5" stroke-opacity="0.45"',
    'stroke="#2563eb" stroke-width="1.2"',
)


def curves(series: Mapping[str, Sequence[float]], *, logarithmic: bool = False) -> str:
    """Draws two curves, the second over the first."""
    positive = [v for values in series.values() for v in values if v > 0 or not logarithmic]
    scale = math.log10 if logarithmic else float
    low, high = (scale(edge(positive or [1.0])) for edge in (min, max))
    if logarithmic:
        low, high = math.floor(low), math.ceil(high)
    high = high if high > low else low + 1
    steps = max(len(values) for values in series.values())

    def x(index: int) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * index / max(steps - 1, 1), 1)

    def y(value: float) -> float:
        at = low if logarithmic and value <= 0 else scale(value)
        return round(_TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - at) / (high - low), 1)

    parts = []
    for level in _levels(low, high, logarithmic):
        at = y(level)
        parts.append(f'<path stroke="currentColor" opacity="0.15" d="M{_LEFT} {at}H{_WIDTH}"/>')
        parts.append(_text(_LEFT - 4, at + 3, f"{level:.3g}", "end"))
    parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 20, f"{steps} steps", "end"))
    for index, (name, values) in enumerate(series.items()):
        points = " ".join(f"{x(i)},{y(value)}" for i, value in enumerate(values))
        parts.append(f'<polyline fill="none" {_STYLES[index]} points="{points}"/>')
        start, at = _LEFT + 140 * index, _HEIGHT - 5
        parts.append(f'<path {_STYLES[index]} d="M{start} {at - 3}h14"/>')
        parts.append(_text(start + 18, at, name, "start"))
    names = html.escape(" and ".join(series))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{names}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="9">{"".join(parts)}</svg>'
    )


def _levels(low: float, high: float, logarithmic: bool) -> list[float]:
    if logarithmic:
        stride = max(1, round((high - low) / _LINES))
        return [10.0**power for power in range(int(low), int(high) + 1, stride)]
    return [low + (high - low) * part / _LINES for part in range(_LINES + 1)]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    inside = html.escape(text)
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor">{inside}</text>'
