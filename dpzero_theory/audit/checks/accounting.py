"""Checks that the claimed noise gives the claimed epsilon, and that no more steps run than were accounted for."""

from typing import Any

from dpzero_theory.audit import datasets
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.runs import SEED
from dpzero_theory.privacy.accountant import epsilon_of_history

_EPSILON_ROUNDING = 1e-3
"""A claimed or reported epsilon may be too small by this relative difference, since claims are rounded."""


def accounting(lab: Lab, level: float) -> Verdict:
    """Compare the claimed epsilon with what the claimed noise, batches and steps cost by the certified accountant.

    The accountant gives a lower and an upper bound on that cost. The claim is violated where the lower bound exceeds
    the claimed epsilon, and held where the upper bound does not. Nothing here is random, so `level`, the probability of
    a false alarm, is not used. `lab` has the loop and its claim.
    """
    claim = lab.claim
    try:
        cost = epsilon_of_history([claim.release()], claim.delta)
    except ValueError as error:
        return untested(f"not accounted here: {' '.join(str(error).split())}")
    plot: dict[str, Any] = {"lower": cost.lower, "upper": cost.upper, "claimed": claim.epsilon}
    said = f"noise multiplier {claim.noise_multiplier:g}, {claim.steps} steps, {claim.sampling}, {claim.relation}"
    if cost.lower > claim.epsilon * (1 + _EPSILON_ROUNDING):
        mend = "compute the noise for this relation, sampling, n, batch and number of steps (dpzero_theory.privacy)"
        return violated(f"{said} cost epsilon {cost.lower:.4g} at least, not {claim.epsilon:g}", mend, **plot)
    if cost.upper > claim.epsilon * (1 + _EPSILON_ROUNDING):
        return untested(f"{said} cost epsilon between {cost.lower:.4g} and {cost.upper:.4g}", **plot)
    reported = lab.runs.base.shown.get("epsilon")
    if isinstance(reported, int | float) and reported < (least := _spent(lab)) * (1 - _EPSILON_ROUNDING):
        return violated(
            f"the loop reports epsilon {reported:.4g}, and spends {least:.4g}", "report what is spent", **plot
        )
    warning = ""
    if claim.delta * claim.n >= 1:
        warning = (
            f"; warning: delta {claim.delta:g} is not below 1/n = {1 / claim.n:.3g}, so that publishing one of the"
            " records whole would meet the claim: choose a delta well below 1/n"
        )
    return held(f"{said} cost epsilon {cost.upper:.4g}, {claim.epsilon:g} is claimed{warning}", **plot)


def _spent(lab: Lab) -> float:
    """Returns a lower bound on the epsilon of the releases that the loop made, which may be fewer than claimed.

    `lab` has the loop's runs and its claim.
    """
    release, made = lab.claim.release(), lab.runs.base.releases
    steps = release.steps if made is None or lab.loop.one_step else min(len(made), release.steps)
    return epsilon_of_history([release.with_steps(steps)], lab.claim.delta).lower


def steps(lab: Lab, level: float) -> Verdict:
    """Check that the loop makes no more releases than claimed, and equally many on other data sets.

    Nothing here is random, so `level`, the probability of a false alarm, is not used. `lab` makes runs of the loop.
    Returns the verdict.
    """
    if lab.runs.base.releases is None:
        return untested(lab.runs.why_no_releases)
    if lab.loop.one_step:
        return untested("the last weights are all that is released: how many steps they are of cannot be seen")
    count = len(lab.runs.base.releases)
    if count > lab.claim.steps:
        return violated(f"{count} releases are made, {lab.claim.steps} are accounted", "stop at the last step paid for")
    first, records = lab.loop.records[0], lab.loop.records
    others = {
        "records a thousand times as large": datasets.each_scaled(records, 1e3),
        "records a millionth as large": datasets.each_scaled(records, 1e-6),
        "all records alike": datasets.filled(records, first),
    }
    for name, data in others.items():
        other = lab.runs.attempt(data, seed=SEED)
        if other is not None and other.releases is not None and len(other.releases) != count:
            mend = "a number of steps fixed beforehand; stopping early by the data is a release that must be paid for"
            return violated(f"{count} steps on the records given, {len(other.releases)} on {name}", mend)
    if count < lab.claim.steps:
        return held(f"{count} releases are made, fewer than the {lab.claim.steps} accounted")
    return held(f"{count} releases are made and accounted, on {len(others) + 1} data sets")
