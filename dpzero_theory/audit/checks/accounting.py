"""Checks that the claimed noise gives the claimed epsilon, and that no more steps run than were accounted for."""

from typing import Any

import numpy as np

from dpzero_theory.audit import datasets
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.runs import SEED
from dpzero_theory.privacy.accountant import epsilon_of_history

_CLAIM_ROUNDING = 1e-3  # A claimed epsilon may be too small by this relative difference, since claims are rounded
_LOUDEST = 1e10  # The multiple of the claimed noise at which releases are equal on all data up to rounding
_DRAWS = 3  # Numbers of steps are compared under this many draws of that noise
_NO_RELEASES = "the loop returns neither releases nor a trajectory with a step_size among its settings"


def accounting(lab: Lab, level: float) -> Verdict:
    """Compare the claimed epsilon with what the claimed noise, batches and steps cost by the certified accountant.

    The claim is violated where the accountant's lower bound exceeds the claimed epsilon, and held where its upper bound
    does not. Nothing here is random.
    """
    claim = lab.claim
    try:
        cost = epsilon_of_history([claim.release()], claim.delta)
    except ValueError as error:
        return untested(f"not accounted here: {' '.join(str(error).split())}")
    plot: dict[str, Any] = {"lower": cost.lower, "upper": cost.upper, "claimed": claim.epsilon}
    said = f"noise multiplier {claim.noise_multiplier:g}, {claim.steps} steps, {claim.sampling}, {claim.relation}"
    if cost.lower > claim.epsilon * (1 + _CLAIM_ROUNDING):
        mend = "compute the noise for this relation, sampling, n, batch and number of steps (dpzero_theory.privacy)"
        return violated(f"{said} cost epsilon {cost.lower:.4g} at least, not {claim.epsilon:g}", mend, **plot)
    if cost.upper > claim.epsilon * (1 + _CLAIM_ROUNDING):
        return untested(f"{said} cost epsilon between {cost.lower:.4g} and {cost.upper:.4g}", **plot)
    warning = ""
    if claim.delta * claim.n >= 1:
        warning = (
            f"; warning: delta {claim.delta:g} is not below 1/n = {1 / claim.n:.3g}, so that publishing one of the"
            " records whole would meet the claim: choose a delta well below 1/n"
        )
    return held(f"{said} cost epsilon {cost.upper:.4g}, {claim.epsilon:g} is claimed{warning}", **plot)


def steps(lab: Lab, level: float) -> Verdict:
    """Check that the loop makes no more releases than claimed, and that their number does not follow the data.

    The number may follow what was released. Where it differs between data sets, it is therefore compared in coupled
    runs whose noise is so large that all releases are equal up to rounding. Nothing here is random.
    """
    if lab.runs.base.releases is None:
        return untested(_NO_RELEASES)
    records, most = lab.loop.records, lab.claim.steps
    others = {
        "records a thousand times as large": datasets.each_scaled(records, 1e3),
        "records a millionth as large": datasets.each_scaled(records, 1e-6),
        "all records alike": datasets.filled(records, records[0]),
    }
    runs = [lab.runs.base, *(lab.runs.attempt(data, seed=SEED) for data in others.values())]
    counts = {len(run.releases) for run in runs if run is not None and run.releases is not None}
    if max(counts) > most:
        return violated(f"{max(counts)} releases are made, {most} are accounted", "stop at the last step paid for")
    if len(counts) == 1:
        return held(f"{max(counts)} releases are made, {most} accounted, on {len(runs)} data sets")
    if not lab.runs.noise_obeyed:
        return untested("the number of steps is not always the same, and the noise ignores its setting")
    loud = {"noise_multiplier": lab.claim.noise_multiplier * _LOUDEST}
    compared = False
    for outputs in lab.runs.coupled([records, *others.values()], range(_DRAWS), **loud):
        first, *rest = (np.empty(0) if run is None or run.releases is None else run.releases for run in outputs)
        compared = True
        for name, rows in zip(others, rest, strict=True):
            if len(rows) != len(first) and min(len(rows), len(first)):
                says = f"{len(first)} steps or {len(rows)} on {name}, where the releases tell neither data set"
                return violated(
                    says, "fix the number of steps beforehand, or pay for stopping by the data as for a release"
                )
    if not compared:
        return untested("the number of steps is not always the same, and runs with equal noise cannot be made")
    return held(f"from {min(counts)} to {max(counts)} releases are made, by what was released; {most} are accounted")
