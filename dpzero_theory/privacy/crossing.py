"""Where a decreasing curve of certified delta brackets crosses a target, as a certified bracket."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpzero_theory.privacy.subsampled import DeltaBracket

__all__ = ["Curve", "crossing"]


@dataclass(frozen=True)
class Curve:
    """A curve of delta, decreasing in x > 0; `tau` is a guess of the contour, for speed.

    bracket(x, tau) is certified; estimate(x, tau) gives (log delta, tau) without a certificate.
    """

    bracket: Callable[[float, float | None], DeltaBracket]
    estimate: Callable[[float, float | None], tuple[float, float | None]]


def _secant(curve: Curve, start: float, slope: float, log_target: float) -> tuple[float, float, float, float | None]:
    """(x, log delta(x), d log delta / d log x, tau), log delta within 1e-6 of the target or as near as it gets."""
    low, high = 0.0, math.inf
    x = start
    previous: tuple[float, float] | None = None
    tau: float | None = None
    for _ in range(100):
        log_delta, tau = curve.estimate(x, tau)
        miss = max(log_delta, -1e4) - log_target
        if previous is not None and x != previous[0]:
            chord = (miss - previous[1]) / math.log(x / previous[0])
            slope = chord if chord < -1e-6 else -1e-6
        if abs(miss) < 1e-6 or low > high * (1 - 1e-15):
            break
        low, high = (x, high) if miss > 0 else (low, x)
        previous = (x, miss)
        new = x * math.exp(min(max(-miss / slope, -0.7), 0.7))
        if not low < new < high:
            new = math.sqrt(low * high) if low > 0 and high < math.inf else (2 * x if miss > 0 else x / 2)
        x = new
    return x, log_target + miss, slope, tau


def _certify(curve: Curve, start: float, slope: float, target: float) -> tuple[float, float, DeltaBracket]:
    """(lower, upper, bracket at upper): delta(lower) > target and delta(upper) <= target, both certified."""
    log_target = math.log(target)
    x, log_delta, slope, tau = _secant(curve, start, slope, log_target)
    x *= math.exp(-(log_delta - log_target) / slope)
    step = 1e-10 / abs(slope) + 1e-14
    while True:
        upper = x * math.exp(step)
        at_upper = curve.bracket(upper, tau)
        if at_upper.upper <= target:
            break
        step *= 4
    width = (at_upper.upper - at_upper.lower) / max(at_upper.value, 5e-324)
    step = (1.5 * min(width, 1.0) + 1e-10) / abs(slope) + 1e-14
    while True:
        lower = upper * math.exp(-step)
        if lower == 0 or curve.bracket(lower, tau).lower > target:
            return lower, upper, at_upper
        step *= 4


def crossing(curves: Sequence[Curve], start: float, slope: float, target: float) -> tuple[float, float, DeltaBracket]:
    """Bracket of the least x at which every curve is at most `target`.

    Args:
        curves: decreasing curves; those that are below the target where another one crosses it cost one evaluation.
        start: a guess of x > 0.
        slope: a guess of d log delta / d log x < 0 there.
        target: 0 < target < 1, above the limit of every curve at infinity and below that of one of them at 0.

    Returns:
        (lower, upper, bracket at upper); every curve's upper end is at most `target` at `upper`, and one curve's
        lower end exceeds it at `lower`.
    """
    lower, upper, top = _certify(curves[0], start, slope, target)
    for curve in curves[1:]:
        if curve.bracket(upper, top.tau if top.tau > 0 else None).upper > target:
            low, high, point = _certify(curve, upper, slope, target)
            lower = max(lower, low)
            upper, top = (high, point) if high > upper else (upper, top)
    return lower, upper, top
