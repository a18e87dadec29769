"""Exact laws of releases, without the library: closed forms to 40 digits, and sums over all outputs."""

import math
from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import norm

from dpzero_theory.privacy.bracket import Bounds, Bracket
from dpzero_theory.privacy.calibration import calibrated
from dpzero_theory.privacy.laws.finite import FinitePair
from dpzero_theory.privacy.sampling import sampling_of
from dpzero_theory.privacy.solve import solved
from dpzero_theory.privacy.step import Step, step_of

RELATIONS = {"ADD_OR_REMOVE_ONE": "add-remove", "REPLACE_ONE": "replace-one", "REPLACE_SPECIAL": "zero-out"}
"""This package's relations by the names of dp_accounting's."""

__all__ = [
    "Couple",
    "around",
    "brute_force",
    "call",
    "closed_form",
    "discrete_gaussian",
    "exact_delta",
    "gaussian",
    "laplace",
    "made",
    "noise_for",
    "pair_delta",
    "power",
    "sought",
]

Array = NDArray[np.float64]
Couple = tuple[Array, Array]
"""The probabilities of all outputs under two neighbouring data sets."""


def laplace(levels: int, multiplier: float, q: float, relation: str) -> list[Couple]:
    """Returns the two laws of one discrete Laplace release, for each direction of the neighbouring relation.

    The noise has the parameter multiplier * levels, and the record, in a Poisson batch at rate q, adds `levels` (and
    another one -levels). All outputs beyond +-levels have one ratio, so they are one output.
    """
    r = math.exp(-1 / (multiplier * levels))
    x = np.arange(-levels, levels + 1)

    def law(centre: int) -> Array:
        mass = (1 - r) / (1 + r) * r ** np.abs(x - centre)
        mass[0], mass[-1] = (r ** (levels + sign * centre) / (1 + r) for sign in (1, -1))
        return np.asarray(mass)

    return _couples(law(0), law(levels), law(-levels), q, relation)


def discrete_gaussian(levels: int, sigma: float, q: float, relation: str) -> list[Couple]:
    """Returns the two laws of one discrete Gaussian release, for each direction of the neighbouring relation.

    The noise has standard deviation `sigma`, and the record, in a Poisson batch at rate q, adds `levels` (and another
    one -levels). Outputs go up to 12 sigma.
    """
    reach = levels + math.ceil(12 * sigma)
    x = np.arange(-reach, reach + 1.0)

    def law(centre: int) -> Array:
        mass = np.exp(-((x - centre) ** 2) / (2 * sigma**2))
        return np.asarray(mass / np.exp(-(x**2) / (2 * sigma**2)).sum())

    return _couples(law(0), law(levels), law(-levels), q, relation)


def gaussian(multiplier: float, q: float, relation: str, points: int = 20_001) -> list[Couple]:
    """Returns the two laws of one continuous Gaussian release, for each direction of the neighbouring relation.

    The noise has standard deviation `multiplier`, and the record, in a Poisson batch at rate q, adds 1 (and another one
    -1). It is a Riemann sum of `points` points; 20,001 leave an error of 1e-7.
    """
    x = np.linspace(-13 * multiplier - 1, 13 * multiplier + 1, points)

    def law(centre: int) -> Array:
        mass = np.exp(-((x - centre) ** 2) / (2 * multiplier**2))
        return np.asarray(mass * (x[1] - x[0]) / (multiplier * math.sqrt(2 * math.pi)))

    return _couples(law(0), law(1), law(-1), q, relation)


def _couples(absent: Array, there: Array, other: Array, q: float, relation: str) -> list[Couple]:
    used = (1 - q) * absent + q * there
    if relation == "replace-one":
        return [(used, (1 - q) * absent + q * other)]
    return [(used, absent), (absent, used)]


def power(couple: Couple, steps: int) -> Couple:
    """Returns the two laws of all outputs of `steps` independent releases, each with the laws `couple`."""
    first, second = couple
    for _ in range(steps - 1):
        first, second = np.outer(first, couple[0]).ravel(), np.outer(second, couple[1]).ravel()
    return first, second


def exact_delta(epsilon: float, runs: Sequence[Sequence[Couple]]) -> float:
    """Returns the larger delta(epsilon) over the directions of a composition of runs.

    Each of `runs` has one pair of laws for each direction. The last run's outputs are summed for each output of the
    others, so that it may be a long one.
    """
    found = []
    for *most, last in zip(*runs, strict=True):
        p, q = np.ones(1), np.ones(1)
        for couple in most:
            p, q = np.outer(p, couple[0]).ravel(), np.outer(q, couple[1]).ravel()
        scale = math.exp(epsilon)
        found.append(
            math.fsum(np.maximum(a * last[0] - scale * b * last[1], 0).sum() for a, b in zip(p, q, strict=True))
        )
    return max(found)


def closed_form(kind: str, q: float, s: float, epsilon: float) -> float:
    """Returns delta(epsilon) of one release of the pair of laws `kind`, to 40 digits.

    The best event is a half-line in the output x; q is the sampling rate and s the noise multiplier.
    """
    with mpmath.workdps(40):
        q, s, e = mpmath.mpf(q), mpmath.mpf(s), mpmath.exp(mpmath.mpf(epsilon))
        tail = lambda c: mpmath.erfc(c / (s * mpmath.sqrt(2))) / 2  # noqa: E731
        if kind == "remove":
            c = mpmath.mpf(1) / 2 + s**2 * mpmath.log((e - 1 + q) / q)
            return float((1 - q) * tail(c) + q * tail(c - 1) - e * tail(c))
        if kind == "add":
            c = mpmath.mpf(1) / 2 + s**2 * mpmath.log((1 / e - 1 + q) / q)
            return float(1 - tail(c) - e * ((1 - q) * (1 - tail(c)) + q * (1 - tail(c - 1))))
        mixture = lambda x: 1 - q + q * mpmath.exp((2 * x - 1) / (2 * s**2))  # noqa: E731
        low, high = mpmath.mpf(-1), 1 + 2 * s**2 * (mpmath.log(1 / q) + epsilon + 2)
        for _ in range(200):
            c = (low + high) / 2
            low, high = (c, high) if mixture(c) < e * mixture(-c) else (low, c)
        return float((1 - q) * tail(c) + q * tail(c - 1) - e * ((1 - q) * tail(c) + q * tail(c + 1)))


def pair_delta(pair: FinitePair, epsilon: float) -> tuple[float, float]:
    """Returns delta(epsilon) of the dominated and of the dominating pair of laws with finitely many outcomes."""
    beyond = pair.loss > epsilon
    upper = pair.infinite + float(pair.mass[beyond] @ -np.expm1(epsilon - pair.loss[beyond]))
    return float(np.maximum(pair.p - math.exp(epsilon) * pair.q, 0).sum()), upper


def call(strike, s):
    """Returns E (Y - strike)_+ for the log-normal Y = exp((2x - 1)/(2 s^2)), x ~ N(0, s^2), by Black's formula."""
    strike = np.asarray(strike, dtype=float)
    log_strike = np.log(np.maximum(strike, 1e-300))
    inside = ndtr(0.5 / s - s * log_strike) - strike * ndtr(-0.5 / s - s * log_strike)
    return np.where(strike > 0, inside, 1 - strike)


def brute_force(epsilon, s, t, released, epochs):
    """Returns the deltas (remove, add) of random allocation, by the trapezoid rule in all outputs but the last.

    The last output is integrated in closed form.

    Args:
        epsilon: the epsilon of the deltas.
        s: the noise multiplier.
        t: the number of steps of an epoch.
        released: how many of an epoch's steps are released.
        epochs: the number of epochs.
    """
    # By comparison with half the step the rule has converged to 1e-9 at the noise multipliers used here; with two
    # outputs at 0.7 the step 0.02 erred by 7e-5
    step = (0.005 if released < 3 else 0.02) if epochs == 1 else 0.15
    x = np.arange(-9, 9 + step, step)
    weight, y = norm.pdf(x) * step, np.exp(x / s - 0.5 / s**2)
    weights, ratios = np.ones(1), np.ones(1)
    for epoch in range(epochs):
        sums = np.full(1, 1 - released / t)
        sum_weights = np.ones(1)
        for _ in range(released - (epoch == epochs - 1)):
            sums = np.add.outer(sums, y / t).ravel()
            sum_weights = np.outer(sum_weights, weight).ravel()
        if epoch < epochs - 1:
            ratios = np.outer(ratios, sums).ravel()
            weights = np.outer(weights, sum_weights).ravel()
    e = math.exp(epsilon)
    remove = add = 0.0
    for ratio, w in zip(ratios, weights, strict=True):
        # The density ratio S of all steps is ratio (sums + Y/t), with the factor Y of the last output
        strike = t * (e / ratio - sums)
        remove += w * float(sum_weights @ call(strike, s)) * ratio / t
        strike = t * (1 / (e * ratio) - sums)
        put = np.where(strike > 0, call(strike, s) - 1 + strike, 0)
        add += w * float(sum_weights @ put) * e * ratio / t
    return remove, add


def made(noise: float, steps: int = 1, q: float = 1.0, relation: str = "add-remove", **more: Any) -> Step:
    """Returns releases in Poisson batches at rate q, or in full ones at q = 1, unless `more` names a sampling."""
    drawn = {"sampling": "full" if q == 1 else "poisson", **more}
    return step_of(noise, steps, relation=relation, sample_rate=q, **drawn)  # type: ignore[typeddict-item]


def around(found: Bracket | Bounds, exact: float, room: float = 1e-9, width: float | None = None) -> bool:
    """Whether a bracket holds a number that is known up to the share `room`, and is at most the share `width` wide."""
    holds = found.lower * (1 - room) <= exact <= found.upper * (1 + room)
    return holds and (width is None or found.upper <= (1 + width) * found.lower)


def noise_for(
    target_epsilon: float, target_delta: float, steps: int, *, group: int = 1, n: int | None = None, **words: Any
) -> Bracket:
    """Returns the bracket of the least noise multiplier for a target, with the words of a step as of `step_of`."""
    return calibrated(step_of(1e6, steps, **words), target_epsilon, target_delta, group, n)


def sought(
    name: str, target_epsilon: float, target_delta: float, *, sample_rate: float | None = None, **given: Any
) -> Bracket:
    """Returns the bracket of `solved` for a number, with a sample rate in place of batch over n."""
    if sample_rate is not None:
        given["sampling"] = sampling_of(given["sampling"], sample_rate)
    return solved(name, epsilon=target_epsilon, delta=target_delta, **given)
