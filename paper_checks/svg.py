"""Small inline pictures: lines on linear or logarithmic axes, as SVG that scales with the page."""

import math
from collections.abc import Callable, Sequence
from html import escape

from paper_checks.mathml import readable
from paper_checks.registry import Plot

__all__ = ["svg"]

_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 420, 230, 52, 10, 12, 38


def svg(plot: Plot) -> str:
    """The plot as an <svg> element with a legend of HTML below it."""
    xs = [x for values, _ in plot.series.values() for x in values]
    ys = [y for _, values in plot.series.values() for y in values if y > 0 or not plot.log_y]
    ys += list(plot.marks.values())
    to_x = _scale(xs, plot.log_x, _LEFT, _WIDTH - _RIGHT)
    to_y = _scale(ys, plot.log_y, _HEIGHT - _BOTTOM, _TOP)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(plot.title)}">']
    for value in _ticks(min(ys), max(ys), plot.log_y):
        y = to_y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{_label(value)}</text>')
    for value in _ticks(min(xs), max(xs), plot.log_x):
        x = to_x(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 15}" text-anchor="middle">{_label(value)}</text>')
    for value in plot.marks.values():
        y = to_y(value)
        parts.append(f'<line class="mark" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for colour, (x_values, y_values) in zip(_COLOURS, plot.series.values(), strict=False):
        kept = [(x, y) for x, y in zip(x_values, y_values, strict=True) if y > 0 or not plot.log_y]
        points = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in kept)
        parts.append(f'<polyline points="{points}" stroke="{colour}"/>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(plot.x)}</text></svg>')
    names = zip(_COLOURS, plot.series, strict=False)
    legend = [f'<span style="color:{colour}">&#9644; {readable(name)}</span>' for colour, name in names]
    legend += [f"<span>&#9476; {readable(name)}</span>" for name in plot.marks]
    title = readable(f"{plot.title} ({plot.y})")
    return (
        f"<figure><figcaption>{title}</figcaption>{''.join(parts)}<div class=legend>{' '.join(legend)}</div></figure>"
    )


def _scale(values: Sequence[float], log: bool, start: float, end: float) -> Callable[[float], float]:
    convert: Callable[[float], float] = math.log10 if log else float
    low, high = convert(min(values)), convert(max(values))
    width = (high - low) or 1.0
    return lambda value: start + (convert(value) - low) / width * (end - start)


def _ticks(low: float, high: float, log: bool) -> list[float]:
    if log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        powers = [10.0**k for k in range(first, last + 1, max(1, (last - first) // 4 + ((last - first) % 4 > 0)))]
        return powers if len(powers) > 1 else [low, high]
    step = 10 ** math.floor(math.log10((high - low) / 2))
    step = next(step * k for k in (1, 2, 5, 10) if (high - low) / (step * k) <= 5)
    return [step * k for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _label(value: float) -> str:
    return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
