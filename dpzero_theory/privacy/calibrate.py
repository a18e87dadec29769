"""The smallest noise multiplier for a privacy target."""

import math

from dpzero_theory import check
from dpzero_theory.privacy.accountant import direction_delta, directions, notes, total_gdp
from dpzero_theory.privacy.crossing import Curve, crossing
from dpzero_theory.privacy.gaussian import gdp_from_budget
from dpzero_theory.privacy.pairs import Bracket, Group, group
from dpzero_theory.privacy.subsampled import DeltaBracket

__all__ = ["calibrate_noise_multiplier"]


def calibrate_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    steps: int,
    sampling: str,
    neighboring: str,
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
        neighboring: `replace-one` or `add-remove`; there is no default.
        sample_rate: q in (0, 1], (expected) batch over n; 1 or None with full batch.

    Returns:
        A bracket with value = upper: at `upper` the certified upper end of delta(epsilon) is at most target_delta,
        at `lower` the certified lower end exceeds it.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: the batches alone meet the target, 1 - (1-q)^T <= delta, so that every positive
            multiplier does and there is no smallest one.
    """
    epsilon = check.real("target_epsilon", target_epsilon, above=0)
    delta = check.real("target_delta", target_delta, above=0, below=1)
    unit = group(1.0, steps, sampling=sampling, neighboring=neighboring, sample_rate=sample_rate)
    if unit.gdp > 0:
        exact = unit.gdp / float(gdp_from_budget(epsilon, delta))
        return Bracket(exact * (1 - 1e-10), exact * (1 + 1e-10), exact * (1 + 1e-10), "closed form", notes([unit]))
    reached = -math.expm1(unit.steps * math.log1p(-unit.sample_rate))
    check.precondition(
        reached > delta,
        f"target_delta must be below 1 - (1 - sample_rate)^steps = {reached:.6g}, the chance that a record is used at"
        f" all; got {delta!r} (any positive noise_multiplier meets it)",
    )
    start = _central_limit(unit, float(gdp_from_budget(epsilon, delta)))
    lower, upper, point = crossing(_curves(unit, epsilon, attained=False), start, delta)
    if directions([unit], attained=True) != directions([unit]):
        lower = crossing(_curves(unit, epsilon, attained=True), upper, delta)[0]
    return Bracket(lower, upper, upper, point.method, notes([unit]))


def _curves(unit: Group, epsilon: float, *, attained: bool) -> list[Curve]:
    def curve(index: int) -> Curve:
        def evaluate(noise: float, tau: float | None) -> DeltaBracket:
            history = [unit.with_noise(noise)]
            parts = directions(history, attained=attained)[index]
            return direction_delta(epsilon, parts, total_gdp(history), start=tau)

        return evaluate

    return [curve(index) for index in range(len(directions([unit], attained=attained)))]


def _central_limit(unit: Group, gdp: float) -> float:
    """The multiplier at which q sqrt(T (e^{1/s^2} - 1)) = gdp, s in units of the sensitivity."""
    ratio = gdp / unit.sample_rate
    return unit.sensitivity / math.sqrt(math.log1p(ratio * ratio / unit.steps))
