"""Where a decreasing curve of certified delta brackets crosses a target, as a certified bracket."""

import math
from collections.abc import Callable, Sequence

from dpzero_theory.privacy.subsampled import DeltaBracket

__all__ = ["Curve", "crossing"]

Curve = Callable[[float, float | None], DeltaBracket]
"""(x, start tau) -> bracket of delta; decreasing in x > 0."""


def _secant(curve: Curve, start: float, log_target: float) -> tuple[float, float, DeltaBracket]:
    """(x, d log delta / d log x, bracket at x) with log delta(x) within 1e-7 of the target, or as near as it gets."""
    low, high = 0.0, math.inf
    x, slope = start, -10.0
    previous: tuple[float, float] | None = None
    tau: float | None = None
    for _ in range(100):
        point = curve(x, tau)
        tau = point.tau if point.tau > 0 else None
        miss = max(point.log_value, -1e4) - log_target
        if previous is not None and x != previous[0]:
            chord = (miss - previous[1]) / math.log(x / previous[0])
            slope = chord if chord < -1e-6 else -1e-6
        if abs(miss) < 1e-7 or low > high * (1 - 1e-15):
            break
        low, high = (x, high) if miss > 0 else (low, x)
        previous = (x, miss)
        new = x * math.exp(min(max(-miss / slope, -0.7), 0.7))
        if not low < new < high:
            new = math.sqrt(low * high) if low > 0 and high < math.inf else (2 * x if miss > 0 else x / 2)
        x = new
    return x, slope, point


def _certify(curve: Curve, start: float, target: float) -> tuple[float, float, DeltaBracket]:
    """(lower, upper, bracket at upper): delta(lower) > target and delta(upper) <= target, both certified."""
    log_target = math.log(target)
    x, slope, point = _secant(curve, start, log_target)
    tau = point.tau if point.tau > 0 else None
    width = (point.upper - point.lower) / max(point.value, 5e-324)
    margin = (2 * abs(point.log_value - log_target) + min(width, 1.0) + 1e-12) / abs(slope) + 1e-14
    step = margin
    upper, at_upper = x, point
    while not at_upper.upper <= target:
        upper = x * math.exp(step)
        at_upper = curve(upper, tau)
        step *= 3
    step = margin
    lower, at_lower = x, point
    while not at_lower.lower > target:
        lower = x * math.exp(-step) if step < 700 else 0.0
        if lower == 0:
            break
        at_lower = curve(lower, tau)
        step *= 3
    return lower, upper, at_upper


def crossing(curves: Sequence[Curve], start: float, target: float) -> tuple[float, float, DeltaBracket]:
    """Bracket of the least x at which every curve is at most `target`.

    Args:
        curves: decreasing curves; those that are below the target where another one crosses it cost one evaluation.
        start: a guess of x > 0.
        target: 0 < target < 1, above the limit of every curve at infinity and below that of one of them at 0.

    Returns:
        (lower, upper, bracket at upper); every curve's upper end is at most `target` at `upper`, and one curve's
        lower end exceeds it at `lower`.
    """
    lower, upper, top = _certify(curves[0], start, target)
    for curve in curves[1:]:
        if curve(upper, top.tau if top.tau > 0 else None).upper > target:
            low, high, point = _certify(curve, upper, target)
            lower = max(lower, low)
            upper, top = (high, point) if high > upper else (upper, top)
    return lower, upper, top
