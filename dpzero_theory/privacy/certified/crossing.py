"""Where a decreasing curve of certified delta brackets crosses a target, as a certified bracket."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpzero_theory.privacy.certified.contour import DeltaBracket

MARGIN = 1e-14
"""Relative, of the target, by which a curve exceeds it at the lower end of `crossing`."""


@dataclass(frozen=True)
class Curve:
    """A curve of delta, decreasing in x > 0; `tau` is a guess of the contour, for speed.

    bracket(x, tau) is certified; estimate(x, tau) gives (log delta, tau) without a certificate, -inf for a delta
    that is too small to be resolved.
    """

    bracket: Callable[[float, float | None], DeltaBracket]
    estimate: Callable[[float, float | None], tuple[float, float | None]]


def _secant(curve: Curve, start: float, slope: float, log_target: float) -> tuple[float, float, float, float | None]:
    """(x, log delta(x), d log delta / d log x, tau), log delta within 1e-5 of the target or as near as it gets."""
    low, high = 0.0, math.inf
    x = start
    previous: tuple[float, float] | None = None
    tau: float | None = None
    miss = 0.0
    for _ in range(100):
        log_delta, tau = curve.estimate(x, tau)
        if log_delta == -math.inf:
            high, previous = x, None
            x = math.sqrt(low * high) if low > 0 else x / 1.6
            continue
        miss = log_delta - log_target
        if previous is not None and abs(x / previous[0] - 1) > 1e-5:
            chord = (miss - previous[1]) / math.log(x / previous[0])
            slope = chord if chord < -1e-6 else -1e-6
        if abs(miss) < 1e-5 or low > high * (1 - 1e-8):
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
    least = 1e-10 / abs(slope) + 1e-14
    factor = 1.02
    upper = x * math.exp(least)
    # from its own start, so that anyone who evaluates delta at `upper` again finds the same bracket
    at_upper = curve.bracket(upper, None)
    while not at_upper.upper <= target:
        step = max((math.log(at_upper.upper) - log_target) / abs(slope), least)
        upper *= math.exp(min(factor * step, 1.0) + least)
        at_upper = curve.bracket(upper, None)
        least, factor = 2 * least, 2 * factor
    factor = 1.02
    lower, at_lower = upper, at_upper
    while lower > 0 and not at_lower.lower > target * (1 + MARGIN):
        step = max((log_target - math.log(max(at_lower.lower, 5e-324))) / abs(slope), least)
        lower *= math.exp(-min(factor * step, 1.0) - least)
        at_lower = curve.bracket(lower, tau)
        least, factor = 2 * least, 2 * factor
    return lower, upper, at_upper


def crossing(curves: Sequence[Curve], start: float, slope: float, target: float) -> tuple[float, float, DeltaBracket]:
    """Bracket of the least x at which every curve is at most `target`.

    Args:
        curves: decreasing curves; those that are below the target where another one crosses it cost one evaluation.
        start: a guess of x > 0.
        slope: a guess of d log delta / d log x < 0 there.
        target: 0 < target < 1, above the limit of every curve at infinity and below that of one of them at 0.

    Returns:
        (lower, upper, bracket at upper); every curve's upper end is at most `target` at `upper`, and one curve's
        lower end exceeds it at `lower`, by `MARGIN` at least.
    """
    lower, upper, top = _certify(curves[0], start, slope, target)
    for curve in curves[1:]:
        if curve.bracket(upper, None).upper > target:
            low, high, point = _certify(curve, upper, slope, target)
            lower = max(lower, low)
            upper, top = (high, point) if high > upper else (upper, top)
    return lower, upper, top
