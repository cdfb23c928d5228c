"""Pictures of a divergence over the steps, as SVG without any library."""

import html
import math
from collections.abc import Sequence

WIDTH, HEIGHT = 320, 120
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 6, 8, 18


class Svg(str):
    """An SVG picture; notebooks draw it."""

    def _repr_svg_(self) -> str:
        return str(self)


def divergence(ulp_by_step: Sequence[float], title: str, *, style: bool = True) -> Svg:
    """The distance at each step, in ULP on a logarithmic axis.

    Args:
      ulp_by_step: the largest distance at each step; infinite values stand at the upper edge.
      title: for readers who cannot see the picture.
      style: whether the picture brings its style along; a page may have it once.

    Returns:
      The picture; its colours follow those of the page that it stands in.
    """
    values = [float(value) for value in ulp_by_step]
    finite = [value for value in values if 0 < value < math.inf]
    low = min([-2, *(math.floor(math.log10(value)) for value in finite)])
    high = max([1, *(math.ceil(math.log10(value)) for value in finite)])
    across, up = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def x(step: int) -> float:
        return round(_LEFT + across * (step + 0.5) / max(len(values), 1), 1)

    def y(value: float) -> float:
        if math.isinf(value):
            return _TOP
        exponent = low if value <= 0 else math.log10(value)
        return round(_TOP + up * (high - max(exponent, low)) / (high - low), 1)

    parts = []
    for power in range(low, high + 1, max(1, (high - low) // 4)):
        at = y(10.0**power)
        parts.append(f'<path class="grid" d="M{_LEFT} {at}H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 4}" y="{at + 3}" text-anchor="end">{_power(power)}</text>')
    points = " ".join(f"{x(step)},{y(value)}" for step, value in enumerate(values))
    parts.append(f'<polyline points="{points}"/>')
    parts += [
        f'<circle class="inf" cx="{x(step)}" cy="{_TOP}" r="2.5"/>'
        for step, value in enumerate(values)
        if math.isinf(value)
    ]
    parts.append(
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 5}" text-anchor="end">'
        f"ULP over {len(values)} steps</text>"
    )
    return Svg(
        f'<svg class="divergence" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="{html.escape(title)}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}">{_STYLE if style else ""}{"".join(parts)}</svg>'
    )


# The report's page has its own, which follows the page's colours.
_STYLE = (
    "<style>.divergence{font:9px sans-serif}.divergence text{fill:currentColor}"
    ".divergence polyline{fill:none;stroke:#d97706;stroke-width:1.5}"
    ".divergence .grid{stroke:currentColor;opacity:.15}.divergence .inf{fill:#dc2626}</style>"
)


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -3 < power < 5 else f"1e{power}"
