"""The evidence of an audit as pictures in SVG, each with a caption that explains every mark."""

import html
import math
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#888"
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 420, 220, 56, 14, 14, 40
_BINS = 24


class _Axes:
    """A frame with linear axes; marks are appended in data coordinates."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], names: tuple[str, str], label: str) -> None:
        self._x, self._y = _wide(x), _wide(y)
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        self._parts = [
            f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img aria-label='{html.escape(label, quote=True)}'>",
            f"<path fill=none stroke='{GREY}' d='M{_LEFT} {_TOP}V{bottom}H{right}'/>",
            f"<text x={(_LEFT + right) / 2} y={_HEIGHT - 6} text-anchor=middle>{html.escape(names[0])}</text>",
            f"<text x=14 y={(_TOP + bottom) / 2} text-anchor=middle transform='rotate(-90 14 {(_TOP + bottom) / 2})'>"
            f"{html.escape(names[1])}</text>",
        ]
        for value in _ticks(*self._x):
            at = f"{self.x(value):.1f}"
            self._parts.append(f"<path stroke='{GREY}' d='M{at} {bottom}v4'/>")
            self._parts.append(f"<text x={at} y={bottom + 16} text-anchor=middle>{value:.4g}</text>")
        for value in _ticks(*self._y):
            self._parts.append(f"<path stroke='{GREY}' d='M{_LEFT} {self.y(value):.1f}h-4'/>")
            self._parts.append(f"<text x={_LEFT - 7} y={self.y(value) + 4:.1f} text-anchor=end>{value:.4g}</text>")

    def x(self, value: float) -> float:
        low, high = self._x
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self._y
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    def line(self, points: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> None:
        places = " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in points)
        self._parts.append(
            f"<polyline fill=none stroke='{colour}' stroke-width=2 stroke-dasharray='{dashes}' points='{places}'/>"
        )

    def dot(self, x: float, y: float, colour: str) -> None:
        self._parts.append(f"<circle cx={self.x(x):.1f} cy={self.y(y):.1f} r=3 fill='{colour}' fill-opacity='.7'/>")

    def bar(self, left: float, right: float, height: float, colour: str) -> None:
        top, bottom = self.y(height), self.y(max(0.0, self._y[0]))
        self._parts.append(
            f"<rect x={self.x(left):.1f} y={top:.1f} width={max(1.0, self.x(right) - self.x(left) - 0.5):.1f}"
            f" height={max(0.0, bottom - top):.1f} fill='{colour}' fill-opacity='.55'/>"
        )

    def figure(self, caption: str) -> str:
        return "".join([*self._parts, f"</svg><figcaption>{caption}</figcaption>"])


def _wide(span: tuple[float, float]) -> tuple[float, float]:
    low, high = span
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(low: float, high: float) -> list[float]:
    """Three to eight round numbers: 1, 2 or 5 times a power of ten apart."""
    raw = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    apart = unit * next(times for times in (1, 2, 5, 10) if unit * times >= raw * 0.75)
    first, last = math.ceil(low / apart - 1e-9), math.floor(high / apart + 1e-9)
    return [k * apart for k in range(first, last + 1)]


def _histogram(values: Sequence[float], low: float, high: float) -> list[tuple[float, float, int]]:
    width = (high - low) / _BINS or 1.0
    counts = [0] * _BINS
    for value in values:
        counts[min(_BINS - 1, max(0, int((value - low) / width)))] += 1
    return [(low + k * width, low + (k + 1) * width, count) for k, count in enumerate(counts)]


def noise_law(evidence: dict[str, Any]) -> str:
    """Quantiles against those of the Gaussian."""
    seen = evidence["quantiles"]
    shares = [0.005 + 0.99 * k / (len(seen) - 1) for k in range(len(seen))]
    claimed = [NormalDist().inv_cdf(share) for share in shares]
    span = (min(*claimed, *seen), max(*claimed, *seen))
    axes = _Axes(
        (claimed[0], claimed[-1]), span, ("quantile of the claimed Gaussian", "seen"), "quantiles of the noise"
    )
    axes.line([(claimed[0], claimed[0]), (claimed[-1], claimed[-1])], ORANGE, "5 4")
    for a, b in zip(claimed, seen, strict=True):
        axes.dot(a, b, BLUE)
    return axes.figure(
        "Blue: quantiles of the noise, in units of the claimed standard deviation. Dashes: where all is as claimed."
    )


def noise_size(evidence: dict[str, Any]) -> str:
    """The standard deviation in each world."""
    worlds = evidence["worlds"]
    top = max([1.3, *worlds.values()]) * 1.05
    axes = _Axes(
        (0, len(worlds) + 1), (0, top), ("data and settings, as listed", "noise seen / claimed"), "noise by world"
    )
    axes.line([(0, 1), (len(worlds) + 1, 1)], ORANGE, "5 4")
    for k, value in enumerate(worlds.values(), start=1):
        axes.dot(k, value, BLUE)
    names = ", ".join(f"{k} {html.escape(name)}" for k, name in enumerate(worlds, start=1))
    return axes.figure(f"Blue: standard deviation of the noise over the claimed one; {names}. Dashes: as claimed.")


def sensitivity(evidence: dict[str, Any]) -> str:
    """Every neighbour's largest move over what is allowed."""
    shares = [moved / allowed for moved, allowed in evidence["moves"]]
    top = max(1.2, max(shares) * 1.05)
    axes = _Axes((0, len(shares)), (0, top), ("neighbour tried", "largest move / allowed"), "moves of neighbours")
    axes.line([(0, 1), (len(shares), 1)], ORANGE, "5 4")
    for k, share in enumerate(shares):
        axes.dot(k + 0.5, share, BLUE)
    return axes.figure(
        "Blue: how far one exchanged or removed record moves a step, over what is allowed. Dashes: the limit."
    )


def batches(evidence: dict[str, Any]) -> str:
    """Sizes of the batches."""
    sizes, expected = evidence["sizes"], evidence["expected"]
    low, high = math.floor(min(*sizes, expected)), math.ceil(max(*sizes, expected))
    counts = Counter(sizes)
    most = max(counts.values())
    axes = _Axes((low - 0.5, high + 0.5), (0, most), ("records in a batch", "batches"), "sizes of batches")
    for size, count in counts.items():
        axes.bar(size - 0.5, size + 0.5, count, BLUE)
    axes.line([(expected, 0), (expected, most)], ORANGE, "5 4")
    return axes.figure("Blue: batches of each size. Dashes: the (expected) size that is claimed.")


def attack(evidence: dict[str, Any]) -> str:
    """Scores of both worlds."""
    first, second = evidence["first"], evidence["second"]
    low, high = min(*first, *second), max(*first, *second)
    pictures = [(_histogram(values, low, high), colour) for values, colour in ((first, BLUE), (second, ORANGE))]
    top = max(count for bars, _ in pictures for *_, count in bars)
    axes = _Axes((low, high), (0, top), ("score of a step, in claimed distances", "steps"), "scores of the attack")
    for bars, colour in pictures:
        for left, right, count in bars:
            axes.bar(left, right, count, colour)
    needed = ", ".join(f"{share}: {runs or 'over four million'}" for share, runs in evidence["pairs_to_see"].items())
    tail = (
        f" Pairs of steps that would refute the claim, by the share of the noise that is there: {needed}."
        if needed
        else ""
    )
    return axes.figure(
        f"Blue and orange: scores of steps on the two data sets; apart where a step betrays which.{tail}"
    )


PLOTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "noise-law": noise_law,
    "noise-size": noise_size,
    "sensitivity": sensitivity,
    "batches": batches,
    "attack": attack,
}
"""By the name of the check."""
_NEEDED = {
    "noise-law": "quantiles",
    "noise-size": "worlds",
    "sensitivity": "moves",
    "batches": "sizes",
    "attack": "first",
}


def plot(name: str, evidence: dict[str, Any]) -> str:
    """The picture of a check; empty where it has none, or has nothing to show."""
    return PLOTS[name](evidence) if name in PLOTS and evidence.get(_NEEDED[name]) else ""
