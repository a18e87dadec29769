"""Upper ends of delta and epsilon by exponential moments of the loss: wide, but they exist for every history.

With K(t) = log E e^{t L}, L the total loss under P, delta(epsilon) <= e^{K(t) - t epsilon} for every t > 0, so that
epsilon(delta) <= (K(t) - log delta)/t (Chernoff). They are asked where the sharper methods do not resolve a delta that
is next to nothing.
"""

import math
from collections.abc import Callable, Sequence

from scipy.optimize import minimize_scalar

from dpzero_theory.privacy.certified.allocations.mixture import Finite
from dpzero_theory.privacy.certified.analytic.tilting import cumulant
from dpzero_theory.privacy.certified.laws.arithmetic import log_law, log_sum
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.sampling import FixedSize
from dpzero_theory.privacy.step import Release

_TILTS = (math.log(1e-9), math.log(1e13))
"""Logs of the least and the largest t."""
_ROUNDING = 1e-9
"""Of K, relative, with room: K is a sum of moments that are known to 1e-12."""


def moment_delta(releases: Sequence[Release], finite: Finite, epsilon: float) -> float:
    """An upper end of delta at `epsilon` of Gaussian releases and finite pairs."""
    ends = _both(releases, finite, epsilon, None)
    return max(min(math.exp(min(best, 0.0)) + lost + 5e-324, 1.0) for best, lost in ends)


def moment_epsilon(releases: Sequence[Release], finite: Finite, delta: float) -> float:
    """An upper end of epsilon at `delta`; infinite where outputs of infinite loss have that probability."""
    return max(max(best, 0.0) for best, _ in _both(releases, finite, None, delta))


def _both(
    releases: Sequence[Release], finite: Finite, epsilon: float | None, delta: float | None
) -> list[tuple[float, float]]:
    """For each direction the least exponent K(t) - t epsilon, or the least epsilon, and the probability of an infinite
    loss."""
    found = []
    for index in _directions(releases, finite):
        lost = math.fsum(count * pair.infinite for pair, count in finite[index])
        if delta is not None and delta <= lost:
            found.append((math.inf, lost))
            continue
        level = 0.0 if delta is None else math.log(delta - lost)

        def value(log_tilt: float, index: int = index, level: float = level) -> float:
            t = math.exp(log_tilt)
            total = math.fsum(_moment(r, index, t) for r in releases)
            total += math.fsum(count * log_sum(log_law(pair.mass), t, pair.loss) for pair, count in finite[index])
            total += _ROUNDING * abs(total)
            return total - t * epsilon if epsilon is not None else (total - level) / t

        found.append((_least(value), lost))
    return found


def _directions(releases: Sequence[Release], finite: Finite) -> tuple[int, ...]:
    """The directions that differ."""
    return (0, 1) if any(finite) or any(len(r.terms.pairs) > 1 for r in releases) else (0,)


def _least(value: Callable[[float], float]) -> float:
    return float(minimize_scalar(value, bounds=_TILTS, method="bounded", options={"xatol": 1e-3}).fun)


def _moment(release: Release, index: int, t: float) -> float:
    """K(t) of releases, from above."""
    terms = release.terms
    if terms.finite:  # fixed-size batches, zero-out: at most a record that is replaced, and one that is always used
        noise = release.noise_multiplier
        whole = t * (t + 1) / 2 / noise**2
        return release.steps * min(_of_pair(Pair("fixed-size", release.sample_rate, noise / 2), t), whole)
    if not terms.pairs:
        return terms.gdp**2 * t * (t + 1) / 2
    each = _of_pair(terms.pairs[min(index, len(terms.pairs) - 1)], t)
    if terms.truncated > 0:
        full = release.drawn_as(FixedSize(release.sample_rate)).with_steps(1)
        each = max(each, _moment(full, index, t))
    return (terms.releases or release.steps) * each


def _of_pair(pair: Pair, t: float) -> float:
    """K(t) of one release, at most that of the whole shift, as where every record is in the batch."""
    shift = (2 if pair.kind == "replace" else 1) / pair.noise
    whole = shift * shift * t * (t + 1) / 2
    try:
        value, error = cumulant(pair, t)
    except OverflowError:
        return whole
    return min(max(value + error, 0.0), whole) if math.isfinite(value + error) else whole
