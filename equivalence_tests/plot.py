"""Pictures of a comparison, as SVG without any library.

A picture is as wide as its surroundings: its lines are stretched, its letters are not.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equivalence_tests.compare.comparison import VISIBLE, Comparison, LeafDistance
from equivalence_tests.compare.extent import relative_text
from equivalence_tests.compare.judgement import Judgement

HEIGHT = 240
NAMED = 6  # tensors with a colour of their own; the others are grey
DRAWN = 30  # tensors that are drawn at all, the farthest
_TOP, _BOTTOM = 10, 42  # room for the infinite ones above; for zero and the steps below


class Svg(str):
    """An SVG picture; notebooks draw it."""

    def _repr_svg_(self) -> str:
        return str(self)


@dataclass(frozen=True)
class _Scale:
    """The logarithmic axis: powers of ten between two exponents, and zero below."""

    low: int
    high: int

    def y(self, value: float) -> float:
        """The height of a value, in pixels from above."""
        if math.isinf(value):
            return _TOP / 2
        if value <= 0:
            return HEIGHT - 22
        part = (self.high - math.log10(value)) / (self.high - self.low)
        return _TOP + part * (HEIGHT - _TOP - _BOTTOM)


def figure(judgement: Judgement, name: str) -> list[str]:
    """The plot of a comparison with its key, as HTML; none where nothing differs."""
    plot = divergence(judgement, f"divergence of {name}", style=False)
    if not plot:
        return []
    title = "Largest difference in each tensor over the tensor's scale; at the right in ULP"
    return [f"<h4>{title}</h4>{plot}{_key(judgement)}"]


def loss_figure(old: Sequence[float], new: Sequence[float], name: str) -> list[str]:
    """The two loss curves and their difference, as HTML."""
    signed = [b - a for a, b in zip(old, new, strict=True)]
    line = "the two are the same to the bit at every step"
    if any(signed):
        step = next(step for step, value in enumerate(signed, 1) if value)
        line = f"new less old: at most {np.abs(signed).max():.2g}, first at step {step}"
    words = '<span><i class="old"></i>old</span><span><i class="new"></i>new, drawn over it</span>'
    curves = _losses(old, new, f"loss curves of {name}")
    shown = [f'<h4>Loss</h4>{curves}<p class="key">{words}<span>{line}</span></p>']
    if any(signed):
        plot = _losses([0.0] * len(signed), signed, f"difference of the losses of {name}")
        shown.append(f"<h4>Loss, new less old</h4>{plot}")
    return shown


def divergence(judgement: Judgement, title: str, *, style: bool = True) -> Svg:
    """One line for each tensor that differs: its distance over its scale at each step."""
    comparison, wide, bound = judgement.comparison, judgement.wide, judgement.bound
    leaves = _by_distance(comparison)
    if not leaves:
        return Svg("")
    steps = len(comparison.ulp_by_step)
    there = None if wide is None else _largest(wide, steps)
    bounds = {} if bound is None else _bounds(leaves, comparison.allowed_ulp(bound))
    series = [leaf.ulp_by_step * leaf.eps for leaf in leaves]
    scale = _scale([*series, list(bounds.values()), () if there is None else there])
    ulp = min((leaf.eps for leaf in leaves if leaf.eps < 1), default=1.0)
    lines = []
    for number, leaf in reversed([*enumerate(leaves[:DRAWN])]):  # the farthest above the others
        kind = f"c{number}" if number < NAMED else "rest"
        cut = leaf.poisoned_from
        values = series[number]
        named = f"<title>{html.escape(leaf.path)}</title>"
        lines.append(f'<g class="{kind}">{named}{_line(values[: cut + 1], scale)}')
        lines.append(f"{_line(values[cut:], scale, cut, 'after')}{_dots(values, scale)}</g>")
    if there is not None:
        lines.append(f'<g class="wide">{_line(there, scale)}</g>')
    for value in bounds.values():
        lines.append(f'<path class="bound" d="M-.5 {scale.y(value):.1f}H{steps - 0.5}"/>')
    return _svg(steps, title, _grid(scale, ulp), lines, style)


def stages_figure(series: Mapping[str, Sequence[float]], first: str, title: str) -> Svg:
    """One line for each stage of a replay: its distance by step; that which parts first is bold."""
    scale = _scale(series.values())
    steps = max(map(len, series.values()), default=1)
    lines, key = [], ""
    for number, (name, values) in enumerate(series.items()):
        style = ' stroke-width="3"' if name == first else ""
        dots = _dots(np.asarray(values), scale)
        at = next((step for step, value in enumerate(values) if value > 0), None)
        if name == first and at is not None:  # the first parting
            dots += f'<path class="bound" d="M{at} 0V{HEIGHT}"/>'
        lines.append(f'<g class="c{number}"{style}>{_line(values, scale)}{dots}</g>')
        key += f'<tspan style="fill:var(--c{number})" dx="8">{html.escape(name)}</tspan>'
    legend = f'<text x="50%" y="{HEIGHT - 4}" text-anchor="middle">{key}</text></svg>'
    plot = _svg(steps, title, _grid(scale, 1.0), lines, style=True)
    return Svg(plot.removesuffix("</svg>") + legend)


def _key(judgement: Judgement) -> str:
    """Returns the key to the lines of `divergence` as HTML."""
    comparison = judgement.comparison
    leaves = _by_distance(comparison)
    parts = [
        f'<span><i class="c{number}"></i><code>{html.escape(leaf.path)}</code> {_amount(leaf)}'
        "</span>"
        for number, leaf in enumerate(leaves[:NAMED])
    ]
    if len(leaves) > NAMED:
        fewer = f", {DRAWN - NAMED} of them drawn" if len(leaves) > DRAWN else ""
        others = f"{len(leaves) - NAMED} others that differ{fewer}"
        parts.append(f'<span><i class="rest"></i>{others}</span>')
    same = comparison.leaves - len(leaves)
    if same > 0:
        parts.append(f"<span>{same} identical, not drawn</span>")
    if any(leaf.poisoned_from < len(leaf.ulp_by_step) for leaf in leaves):
        parts.append('<span><i class="after"></i>after a gradient that is not finite</span>')
    if judgement.bound is not None:
        bound = f"bound, {judgement.bound:g} ULP in 100 steps"
        parts.append(f'<span><i class="bound"></i>{bound}</span>')
    if judgement.wide is not None:
        parts.append('<span><i class="wide"></i>the largest in float64</span>')
    return f'<p class="key">{"".join(parts)}</p>'


def _losses(old: Sequence[float], new: Sequence[float], title: str) -> Svg:
    """Two loss curves, the new one drawn over the old one."""
    values = [value for value in (*old, *new) if math.isfinite(value)]
    low, high = min([0.0, *values]), max([*values, 1e-30])

    def y(value: float) -> float:
        part = (high - value) / (high - low) if math.isfinite(value) else 0.0
        return _TOP + part * (HEIGHT - _TOP - _BOTTOM)

    def line(curve: Sequence[float], kind: str) -> str:
        points = " ".join(f"{step} {y(value):.1f}" for step, value in enumerate(curve))
        return f'<path class="{kind}" d="M{points}"/>'

    ticks = [(y(value), f"{value:.3g}", "") for value in np.linspace(low, high, 5).tolist()]
    return _svg(len(old), title, ticks, [line(old, "old"), line(new, "new")], style=False)


def _by_distance(comparison: Comparison) -> list[LeafDistance]:
    """The leaves with a distance, the farthest on finite inputs first."""

    def far(leaf: LeafDistance) -> tuple[float, float]:
        before = leaf.relative_by_step[: leaf.poisoned_from]
        return float(before.max(initial=0.0)), float(leaf.relative_by_step.max(initial=0.0))

    return sorted((leaf for leaf in comparison.by_leaf if far(leaf)[1] > 0), key=far, reverse=True)


def _largest(wide: Comparison, steps: int) -> np.ndarray:
    """The largest relative distance of a float64 run on finite inputs, at each step."""
    result = np.zeros(steps)
    for leaf in wide.by_leaf:
        before = (leaf.ulp_by_step * leaf.eps)[: leaf.poisoned_from]
        result[: len(before)] = np.maximum(result[: len(before)], before)
    return result


def _bounds(leaves: Sequence[LeafDistance], allowed: float) -> dict[float, float]:
    """Spacing of a dtype -> the bound, over the scale, for tensors of that dtype."""
    return {leaf.eps: min(allowed * leaf.eps, VISIBLE) for leaf in leaves if leaf.eps < 1}


def _scale(series: Iterable[Sequence[float] | np.ndarray]) -> _Scale:
    values = [float(v) for one in series for v in one if 0 < v < math.inf]
    low = math.floor(math.log10(min(values, default=1e-8)))
    return _Scale(low, max(math.ceil(math.log10(max(values, default=1.0))), low + 1))


def _line(
    values: Sequence[float] | np.ndarray, scale: _Scale, first: int = 0, kind: str = ""
) -> str:
    """A polyline; of points at one height only the ends are written."""
    heights = [round(scale.y(float(value)), 1) for value in values]
    if not heights:
        return ""
    points = [
        f"{first + step} {height:g}"
        for step, height in enumerate(heights)
        if not 0 < step < len(heights) - 1 or not heights[step - 1] == height == heights[step + 1]
    ]
    named = f' class="{kind}"' if kind else ""
    return f'<path{named} d="M{" ".join(points)}"/>'


def _dots(values: np.ndarray, scale: _Scale) -> str:
    at = np.flatnonzero(np.isinf(values))
    if not at.size:
        return ""
    dots = "".join(f"M{step} {scale.y(math.inf):g}h0" for step in (at[0], at[-1]))
    return f'<path class="inf" d="{dots}"/>'


def _grid(scale: _Scale, ulp: float) -> list[tuple[float, str, str]]:
    """Height, relative error and ULP of each mark; relative errors have a line."""
    every = max(1, math.ceil((scale.high - scale.low) / 6))
    powers = range(scale.high, scale.low - 1, -every)
    ticks = [(scale.y(10.0**p), _power(p), "") for p in powers]
    if ulp < 1:
        low, high = (math.log10(10.0**edge / ulp) for edge in (scale.low, scale.high))
        powers = [p for p in range(-18, 19) if low <= p <= high and p % every == 0]
        ticks += [(scale.y(10.0**p * ulp), "", f"{_power(p)} ULP") for p in powers]
    return [*ticks, (scale.y(0.0), "0", "")]


def _amount(leaf: LeafDistance) -> str:
    before = leaf.relative_by_step[: leaf.poisoned_from].max(initial=0.0)
    if before > 0 and math.isfinite(before):
        ulp = leaf.ulp_by_step[: leaf.poisoned_from].max()
        return f"{relative_text(float(before))}, {ulp:.3g} ULP"
    return "not finite" if leaf.eps < 1 else "unequal integers"


def _svg(
    steps: int,
    title: str,
    ticks: Sequence[tuple[float, str, str]],
    lines: Sequence[str],
    style: bool,
) -> Svg:
    labels = [(y, label) for y, label, _ in ticks if label]
    grid = "".join(f'<path class="grid" d="M-.5 {y:.1f}H{steps}"/>' for y, _ in labels)
    text = "".join(f'<text x="2" y="{y - 2:.1f}">{label}</text>' for y, label in labels)
    text += "".join(
        f'<text x="100%" y="{y + 3:.1f}" text-anchor="end">{right}</text>'
        for y, _, right in ticks
        if right
    )
    text += (
        f'<text x="2" y="{HEIGHT - 4}">step 1</text>'
        f'<text x="100%" y="{HEIGHT - 4}" text-anchor="end">step {steps}</text>'
    )
    return Svg(
        f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="{html.escape(title)}" width="100%" height="{HEIGHT}">'
        f"{STYLE if style else ''}"
        f'<svg width="100%" height="{HEIGHT}" viewBox="-0.5 0 {steps} {HEIGHT}" '
        f'preserveAspectRatio="none">{grid}{"".join(lines)}</svg>{text}</svg>'
    )


# Of the lines and their key. The report's page has it in its head, once.
RULES = (
    ".plot{font:10px sans-serif;--c0:#2563eb;--c1:#d97706;--c2:#059669;--c3:#db2777;--c4:#7c3aed;"
    "--c5:#0891b2}.plot text{fill:currentColor;opacity:.8;paint-order:stroke;stroke-width:3px;"
    "stroke:var(--back,Canvas)}.plot path{fill:none;stroke-width:1.5;"
    "vector-effect:non-scaling-stroke;stroke:inherit}.plot .grid{stroke:currentColor;opacity:.12;"
    "stroke-width:1}.plot .rest{stroke:#9ca3af;opacity:.6}.plot .rest path{stroke-width:.8}"
    + "".join(f".plot .c{n}{{stroke:var(--c{n})}}" for n in range(NAMED))
    + ".plot .after{stroke-dasharray:2 3}.plot .bound{stroke:#dc2626;stroke-dasharray:7 4}"
    ".plot .wide{stroke:currentColor;opacity:.7;stroke-dasharray:1 3}.plot .inf{stroke-width:5;"
    "stroke-linecap:round}.plot .old{stroke:#9ca3af;stroke-width:6;opacity:.6}"
    ".plot .new{stroke:#2563eb;stroke-width:1.5}"
)
STYLE = f"<style>{RULES}</style>"


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -4 < power < 5 else f"1e{power}"
