"""Checks that the claimed noise gives the claimed epsilon, and that no more steps run than were accounted for."""

from itertools import product
from typing import Any

import numpy as np
from scipy import stats

from dpzero_theory.audit import datasets
from dpzero_theory.audit.coupling import CLIPPED, LARGER
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.runs import SEED, alike
from dpzero_theory.privacy.accountant import epsilon_of_history

_EPSILON_ROUNDING = 1e-3
"""A claimed or reported epsilon may be too small by this relative difference, since claims are rounded."""

_DROWNED = 1e6  # The multiple of the claimed noise at which no release tells two data sets apart
_MOVED_BY_NOISE = (1.0, 10.0, 100.0)  # Weights then move by the noise so many times as far as in training
_COUNTED = 60  # So many runs on each of two data sets are compared by their numbers of steps
_COUNT_SEED = 8000  # The loop's seed in the first two of these runs; each further two have the next


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
    """Check that the loop makes no more releases than claimed, and that their number does not follow the data.

    The number may follow what was released. Where it differs between data sets, runs are therefore compared that
    release the same until one of them ends (`_ends_elsewhere`), and runs in which the noise is so large that no release
    tells the data sets apart (`_told_by_count`). `lab` makes runs of the loop. A sound loop is reported as violated
    with probability at most `level`. Returns the verdict.
    """
    if lab.runs.base.releases is None:
        return untested(lab.runs.why_no_releases)
    if lab.loop.one_step:
        return untested("the last weights are all that is released: how many steps they are of cannot be seen")
    count, first, records = len(lab.runs.base.releases), lab.loop.records[0], lab.loop.records
    counts = {count}
    others = {
        "records a thousand times as large": datasets.each_scaled(records, 1e3),
        "records a millionth as large": datasets.each_scaled(records, 1e-6),
        "all records alike": datasets.filled(records, first),
    }
    differ: dict[str, int] = {}
    for name, data in others.items() if count <= lab.claim.steps else ():
        other = lab.runs.attempt(data, seed=SEED)
        if other is not None and other.releases is not None:
            counts.add(len(other.releases))
            if len(other.releases) != count:
                differ[name] = len(other.releases)
    if (most := max(counts)) > lab.claim.steps:
        return violated(f"{most} releases are made, {lab.claim.steps} are accounted", "stop at the last step paid for")
    if differ and not lab.runs.noise_obeyed:
        return untested("the number of steps is not always the same, and the noise ignores its setting")
    mend = "a number of steps fixed beforehand; stopping early by the data is a release that must be paid for"
    if differ and (ends := _ends_elsewhere(lab)) is not None:
        return violated(f"{ends[0]} steps or {ends[1]}, where all that was released is the same up to there", mend)
    for name, data in others.items() if differ else ():
        if _told_by_count(lab, data, level / len(others)):
            says = "the number of steps differs more often than by chance, where no release tells the data apart"
            return violated(f"on {name} {says}", mend)
    if differ:
        says = f"from {min(counts)} to {most} releases are made, by what was released; {lab.claim.steps} are accounted"
        return held(says, power="a number of steps that differs in half of the runs where no release does")
    if count < lab.claim.steps:
        return held(f"{count} releases are made, fewer than the {lab.claim.steps} accounted")
    return held(f"{count} releases are made and accounted, on {len(others) + 1} data sets")


def _ends_elsewhere(lab: Lab) -> tuple[int, int] | None:
    """Returns the numbers of steps of two runs that release the same until one of them ends; None if none are found.

    The records of one are 1024 or 1024^2 times those of the other, and clipped in both, so that the first clipped sum
    is the same to the last bit. Both runs draw the same random numbers, and each is made twice, so that a run that does
    not repeat is left out. `lab` makes the runs.
    """
    how = lab.runs.paired(SEED, SEED if lab.loop.entropy is not None else None)
    for factor, multiplier in product(CLIPPED, (lab.runs.quiet_multiplier, lab.claim.noise_multiplier)):
        worlds = [datasets.each_scaled(lab.loop.records, factor * LARGER**power) for power in range(3)]
        runs = [
            [lab.runs.attempt(data, noise_multiplier=multiplier, **how, **lab.runs.all_records) for _ in "ab"]
            for data in worlds
        ]
        rows = [pair[0].releases for pair in runs if alike(*pair) and pair[0] is not None]
        for k, one in enumerate(rows):
            for other in rows[:k]:
                if one is None or other is None or len(one) == len(other):
                    continue
                both = min(len(one), len(other))
                if np.array_equal(one[:both], other[:both]):
                    return len(other), len(one)
    return None


def _told_by_count(lab: Lab, data: Records, level: float) -> bool:
    """Whether the number of steps tells other data from the records given where no release does.

    60 runs are made on each of the two, in turn, with a million times the claimed noise; the weights are kept where
    they are, or move by the noise as far as in training, or farther. For each number of steps, Fisher's exact test
    compares how many runs on either data set make more. Where the number of steps follows releases alone, the result is
    True with probability at most `level`. `lab` makes the runs.
    """
    loud = {"noise_multiplier": lab.claim.noise_multiplier * _DROWNED}
    ways = [lab.runs.frozen] if lab.runs.frozen else []
    if lab.loop.step_size and not lab.loop.from_weights:
        ways += [{"step_size": lab.loop.step_size * farther / _DROWNED} for farther in _MOVED_BY_NOISE]
    for how in ways or [{}]:
        runs = [
            lab.runs.attempt(world, seed=_COUNT_SEED + k, **loud, **how)
            for k in range(_COUNTED)
            for world in (None, data)
        ]
        made = [len(run.releases) for run in runs if run is not None and run.releases is not None]
        if len(made) < len(runs):
            continue
        lines = sorted(set(made))[:-1]
        for line in lines:
            here, there = (sum(count > line for count in part) for part in (made[::2], made[1::2]))
            p = 2 * stats.hypergeom.sf(max(here, there) - 1, 2 * _COUNTED, here + there, _COUNTED)
            if p * len(lines) * (1 + len(_MOVED_BY_NOISE)) < level:
                return True
    return False
