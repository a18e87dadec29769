"""The smallest noise multiplier for a privacy target."""

import math

from scipy.special import ndtri

from dpzero_theory import check
from dpzero_theory.privacy.accountant import direction_curve, directions, notes
from dpzero_theory.privacy.certified.allocation import Run, allocation_curve
from dpzero_theory.privacy.certified.crossing import Curve, crossing
from dpzero_theory.privacy.certified.pairs import Bracket, Group, group
from dpzero_theory.privacy.gaussian import gdp_from_epsilon

__all__ = ["calibrate_noise_multiplier"]


def calibrate_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    steps: int,
    sampling: str,
    relation: str,
    sample_rate: float | None = None,
) -> Bracket:
    """The smallest noise multiplier for which `steps` releases are (target_epsilon, target_delta)-DP.

    The multiplier is the standard deviation of the noise on the sum of a batch over the per-record clip C, for both
    relations (with replace-one the sum changes by up to 2C: at full batch it is twice that of add-remove).

    Args:
        target_epsilon: epsilon > 0.
        target_delta: 0 < delta < 1.
        steps: T >= 1, number of releases.
        sampling: one of `pairs.SAMPLINGS`; there is no default.
        relation: `replace-one` or `add-remove`; there is no default.
        sample_rate: q in (0, 1], (expected) batch over n; 1 or None with full batch.

    Returns:
        A bracket with value = upper: at `upper` the certified upper end of delta(epsilon) is at most target_delta,
        at `lower` the certified lower end exceeds it.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: the batches alone meet the target, 1 - (1-q)^T <= delta (random allocation: T/t, with
            t the steps of an epoch), so that every positive
            multiplier does and there is no smallest one.
    """
    epsilon = check.real("target_epsilon", target_epsilon, above=0)
    delta = check.real("target_delta", target_delta, above=0, below=1)
    unit = group(1.0, steps, sampling=sampling, relation=relation, sample_rate=sample_rate)
    if unit.allocated:
        return _allocated(unit, epsilon, delta)
    if unit.gdp > 0:
        exact = unit.gdp / float(gdp_from_epsilon(epsilon, delta))
        return Bracket(exact * (1 - 1e-10), exact * (1 + 1e-10), exact * (1 + 1e-10), "closed form", notes([unit]))
    reached = -math.expm1(unit.steps * math.log1p(-unit.sample_rate))
    check.precondition(
        reached > delta,
        f"target_delta must be below 1 - (1 - sample_rate)^steps = {reached:.6g}, the chance that a record is used at"
        f" all; got {delta!r} (any positive noise_multiplier meets it)",
    )
    start, slope = _central_limit(unit, epsilon, delta)
    above, below = directions([unit]), directions([unit], attained=True)
    lower, upper, point = crossing(_curves(unit, epsilon, len(above), attained=False), start, slope, delta)
    if below != above:
        lower = crossing(_curves(unit, epsilon, len(below), attained=True), start, slope, delta)[0]
    return Bracket(lower, upper, upper, point.method, notes([unit]))


def _allocated(unit: Group, epsilon: float, delta: float) -> Bracket:
    reached = min(unit.steps / unit.epoch, 1.0)
    check.precondition(
        reached > delta,
        f"target_delta must be below steps * sample_rate = {reached:.6g}, the chance that a record is used at all; got"
        f" {delta!r} (any positive noise_multiplier meets it)",
    )
    start, slope = _central_limit(unit, epsilon, delta)

    def curve(relation: str) -> Curve:
        return allocation_curve(lambda noise: (epsilon, [Run(noise, unit.epoch, unit.steps)]), relation)

    lower, upper, point = crossing([curve(unit.relation)], start, slope, delta)
    if unit.relation == "replace-one":
        lower = crossing([curve("add-remove")], start / unit.sensitivity, slope, delta)[0]
    return Bracket(lower, upper, upper, point.method, notes([unit]))


def _curves(unit: Group, epsilon: float, count: int, *, attained: bool) -> list[Curve]:
    def curve(index: int) -> Curve:
        return direction_curve(
            lambda noise: (epsilon, directions([unit.with_noise(noise)], attained=attained)[index], 0.0)
        )

    return [curve(index) for index in range(count)]


def _central_limit(unit: Group, epsilon: float, delta: float) -> tuple[float, float]:
    """A first guess: the multiplier s at which mu = q sqrt(T (e^{1/s^2} - 1)) (s per sensitivity) would do.

    mu is taken from delta = Phi(mu/2 - epsilon/mu), close below the exact one, and the slope of log delta in log s
    from the same Gaussian.
    """
    z = -float(ndtri(delta))
    root = math.sqrt(z * z + 2 * epsilon)
    gdp = 2 * epsilon / (root + z) if z > 0 else root - z
    ratio = gdp / unit.sample_rate
    start = unit.sensitivity / math.sqrt(math.log1p(ratio * ratio / unit.steps))
    return start, -1 - abs((epsilon / gdp) ** 2 - gdp**2 / 4)
