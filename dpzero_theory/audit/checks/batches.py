"""Checks of what an accountant is told: how batches are drawn, that they are secret, the number of steps, and epsilon.

A check is a function (lab, level) -> verdict. It runs the audited training loop by experiments of `lab`, a `Lab`. If
the loop does what it claims, the check reports a violation with probability at most `level`.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpzero_theory.audit import datasets, exact
from dpzero_theory.audit.claim import Claim
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.report import Check, Verdict, held, untested, violated
from dpzero_theory.audit.runs import SEED, norms, same
from dpzero_theory.privacy.accountant import epsilon_of_history, weak
from dpzero_theory.privacy.sampling import CyclicPoisson, TruncatedPoisson

_RunsStepsRecords = NDArray[np.bool_]  # Whether each record was in each batch, shape (runs, steps, records)
_LISTED_SEED, _LISTED_RUNS = 60, 16
"""If the loop returns its batches, those of 16 runs with the loop's seeds 60, 61, ... are tested."""
_UNLIKE_SEED, _UNLIKE = 90, (1e3, 1e-3)
"""In runs with seeds from 90 on, records with an even index are scaled by 1e3, and those with an odd one by 1e-3."""
_SMALL, _LARGE = 0.1, 0.9  # A batch is small or large if its size is below or above these claimed quantiles
_SIZE_RUNS, _WHOLE_NUMBER = 60, 0.05
"""Sizes of batches are computed from releases in at most 60 runs, and used if all are within 0.05 of integers."""
_WITHOUT_SAMPLING = ("full", "fixed-order", "shuffled")  # Ways to draw batches that do not amplify privacy
_DIFFER = "where the records differ a millionfold"  # The words of a report for runs on records scaled by `_UNLIKE`
_CLAIM_ROUNDING = 1e-3  # A claimed epsilon may be this share smaller than the one computed, since claims are rounded
_LOUDEST = 1e10  # Equal noise of this multiple of the claimed one makes releases on all data sets equal up to rounding
_DRAWS = 3  # Numbers of steps are compared under this many draws of noise with the multiple `_LOUDEST`
_NO_RELEASES = "the loop returns neither releases nor a trajectory with a step_size among its settings"


# Each function down to `_LAWS` tests that batches are drawn in the way that its comment says. `rate` is the claimed
# probability that a record is in a batch. The result is a dictionary of p-values by the name of the test
def _poisson(included: _RunsStepsRecords, rate: float) -> dict[str, float]:
    # Tests that each record is in each batch independently
    _, steps, n = included.shape
    times = included.sum(axis=1).ravel()
    return {
        "how many records are drawn in all": exact.binomial(int(included.sum()), included.size, rate),
        **_of_sizes(included.sum(axis=2).ravel(), n, rate),
        "how often each record is drawn": exact.dispersion(times, stats.binom.pmf(np.arange(steps + 1), steps, rate)),
        "how often one record is drawn": _each_record(included, rate),
        **_shared(included, stats.binom.pmf(np.arange(n + 1), n, rate**2)),
    }


def _of_sizes(sizes: NDArray[np.int64], n: int, rate: float) -> dict[str, float]:
    # The size of a Poisson batch is binomial: the number of successes in n trials
    law = stats.binom(n, rate)
    small, large = law.ppf(_SMALL), law.ppf(_LARGE)
    return {
        "sizes of batches": exact.dispersion(sizes, law.pmf(np.arange(n + 1))),
        "how many batches are small": exact.binomial(int((sizes < small).sum()), sizes.size, float(law.cdf(small - 1))),
        "how many batches are large": exact.binomial(int((sizes > large).sum()), sizes.size, float(law.sf(large))),
    }


def _each_record(included: _RunsStepsRecords, rate: float) -> float:
    # Returns the smallest p-value of a record's number of batches, times the number of records (Bonferroni)
    times = included.reshape(-1, included.shape[-1]).sum(axis=0)
    chances = [exact.binomial(int(hits), included.shape[0] * included.shape[1], rate) for hits in np.unique(times)]
    return float(min(1.0, min(chances) * included.shape[-1]))


def _shared(included: _RunsStepsRecords, pmf: NDArray[np.float64]) -> dict[str, float]:
    # Tests how many records two batches share; `pmf` has the claimed probabilities of 0, 1, 2, ...
    runs, steps = (size // 2 * 2 for size in included.shape[:2])
    pairs = {
        "what neighbouring batches share": (included[:, 0:steps:2], included[:, 1:steps:2]),
        "what batches of two runs share": (included[0:runs:2], included[1:runs:2]),
    }
    tests = {}
    for name, (first, second) in pairs.items():
        if (overlaps := (first & second).sum(axis=2).ravel()).size:
            tests[name] = exact.overlaps(int(overlaps.sum()), overlaps.size, pmf)
            tests[f"how much it differs, {name}"] = exact.dispersion(overlaps, pmf)
    return tests


def _fixed_size(included: _RunsStepsRecords, rate: float) -> dict[str, float]:
    # Tests that each step draws round(rate * n) of the n records, uniformly and independently of other steps
    n = included.shape[2]
    size = round(rate * n)
    tests = {"sizes of batches": float((included.sum(axis=2) == size).all())}
    tests["how often one record is drawn"] = _each_record(included, size / n)
    return tests | _shared(included, stats.hypergeom.pmf(np.arange(size + 1), n, size, size))


def _epochs(included: _RunsStepsRecords, rate: float) -> dict[str, float]:
    # Tests that each record is in exactly one batch of each epoch of 1/rate steps, and in at most one batch of a last
    # epoch that is cut short
    length = round(1 / rate)
    blocks = [included[:, t : t + length].sum(axis=1) for t in range(0, included.shape[1], length)]
    whole = all((block == 1).all() for block in blocks[: included.shape[1] // length])
    return {"once in each epoch": float(whole and all((block <= 1).all() for block in blocks))}


def _allocated(included: _RunsStepsRecords, rate: float) -> dict[str, float]:
    # Tests that each record is in one random batch of each epoch of 1/rate steps, independently of other records
    _, steps, n = included.shape
    length = round(1 / rate)
    # Only the first batch of each epoch is used: the sizes of an epoch's batches depend on each other, as they sum to n
    first = included[:, : steps - steps % length : length]
    if not first.size:
        return _epochs(included, rate)
    sizes = exact.dispersion(first.sum(axis=2).ravel(), stats.binom.pmf(np.arange(n + 1), n, 1 / length))
    shared = _shared(first, stats.binom.pmf(np.arange(n + 1), n, length**-2.0))
    return _epochs(included, rate) | {"how much sizes of batches differ": sizes} | shared


def _cyclic(included: _RunsStepsRecords, rate: float, groups: int) -> dict[str, float]:
    # Tests that records are in fixed groups, and that step t draws each record of group t modulo `groups` with
    # probability groups * rate. In a round of `groups` steps each group has one turn, so the records of a round are a
    # Poisson batch with rate groups * rate. Steps after the last whole round are left out
    runs, steps, n = included.shape
    rounds = included[:, : steps - steps % groups].reshape(runs, steps // groups, groups, n)
    tests = {"one turn for each record": float((rounds.any(axis=1).sum(axis=1) <= 1).all())}
    return tests | (_poisson(np.asarray(rounds.any(axis=2)), min(1.0, groups * rate)) if steps >= groups else {})


def _truncated(included: _RunsStepsRecords, rate: float, largest: int) -> dict[str, float]:
    # Tests Poisson batches of rate `rate`, of which `largest` random records are kept if there are more
    n = included.shape[2]
    pmf = stats.binom.pmf(np.arange(n + 1), n, rate)
    pmf[largest] += pmf[largest + 1 :].sum()
    pmf[largest + 1 :] = 0.0
    sizes, likely = included.sum(axis=2).ravel(), np.flatnonzero(pmf > 0)
    overlap = sum(
        pmf[one] * pmf[other] * stats.hypergeom.pmf(np.arange(n + 1), n, one, other)
        for one in likely
        for other in likely
    )
    return {
        "the largest batch": float(sizes.max() <= largest),
        "how many records are drawn in all": exact.overlaps(int(sizes.sum()), sizes.size, pmf),
        "sizes of batches": exact.dispersion(sizes, pmf),
        "how often one record is drawn": _each_record(included, float(pmf @ np.arange(n + 1)) / n),
        **_shared(included, np.asarray(overlap)),
    }


_LAWS = {
    "poisson": _poisson,
    "fixed-size": _fixed_size,
    "full": lambda included, rate: {"who is in a batch": float(included.all())},
    "fixed-order": _epochs,
    "shuffled": _epochs,
    "random-allocation": _allocated,
}
"""The functions that test batches, by the name of the claimed sampling, for samplings without a further number."""


def _tests_of(claim: Claim) -> Callable[[_RunsStepsRecords, float], dict[str, float]] | None:
    drawn = claim.drawn()
    if isinstance(drawn, CyclicPoisson):
        return partial(_cyclic, groups=drawn.groups)
    if isinstance(drawn, TruncatedPoisson):
        return partial(_truncated, largest=drawn.largest)
    return _LAWS.get(claim.sampling)


def _returned(lab: Lab, unlike: bool) -> _RunsStepsRecords | None:
    # Returns which record was in which batch, from the batches that the loop returns. With `unlike`, the data has large
    # and small records, so that batches chosen by losses or norms hold mostly records of one kind. None if the loop
    # returns no batches, a run fails, or `unlike` is True and records have no floating-point numbers to scale. Steps
    # that not all runs made, and indices outside the data, are left out
    records, n, first = lab.loop.records, lab.claim.n, _LISTED_SEED
    if lab.runs.base.batches is None or (unlike and not datasets.numbers(records[0])):
        return None
    if unlike:
        first = _UNLIKE_SEED
        for place in range(n):
            records = datasets.replaced(records, place, datasets.scaled(records[place], _UNLIKE[place % 2]))
    count = 2 if unlike and lab.claim.sampling in _WITHOUT_SAMPLING else _LISTED_RUNS
    found = [lab.runs.attempt(records, seed=first + k) for k in range(count)]
    lists: Sequence[list[list[int]]] = [(run.batches or []) if run else [] for run in found]
    drawn = np.zeros((count, min(map(len, lists)), n), dtype=bool)
    for r, run in enumerate(lists):
        for t, batch in enumerate(run[: drawn.shape[1]]):
            drawn[r, t, [i for i in batch if 0 <= i < n]] = True
    return drawn if drawn.shape[1] else None


def _visible(lab: Lab) -> tuple[_RunsStepsRecords, str] | None:
    # Returns which record was in which batch, and what shows this, in words: the lists of batches that the loop returns
    # or, if it returns none, the steps that change if a record is exchanged
    if lab.runs.base.batches is not None:
        drawn = _returned(lab, unlike=False)
        return None if drawn is None else (drawn, "the lists of batches that the loop returns")
    if lab.influence.scan is None:
        return None
    drawn = lab.influence.scan.included
    # If directions depend on the seed, no record may change a step although its batch is not empty, because no loss
    # changes along the direction. Runs with such a step are left out, except for Poisson batches, which may be empty.
    if lab.claim.sampling != "poisson" and not lab.runs.same_for_all_seeds:
        drawn = drawn[np.all(drawn.any(axis=2), axis=1)]
    return (drawn, "steps that moved when a record was exchanged") if len(drawn) else None


def _many_sizes(lab: Lab) -> dict[str, float]:
    # Tests the sizes of Poisson batches that the loop does not return. On n equal records, the norm of a release is
    # proportional to the size of its batch, if directions do not depend on the seed. Returns no test if that is not so,
    # or if the sizes computed from norms are no integers
    claim, runs, data = lab.claim, lab.runs, lab.influence.loudest
    if claim.sampling != "poisson" or runs.base.batches or data is None or not runs.same_for_all_seeds:
        return {}
    rows = [runs.quiet(data, **runs.with_batches(seed)) for seed in range(SEED, SEED + min(lab.most_runs, _SIZE_RUNS))]
    whole = runs.quiet(data, **runs.all_records)
    if whole is None or any(row is None or row.shape != whole.shape for row in rows):
        return {}
    sizes = norms(np.array(rows)) / norms(whole) * (claim.batch if claim.average == "mean" else claim.n)
    if np.abs(sizes - np.rint(sizes)).max() > _WHOLE_NUMBER or np.ptp(sizes) < 1:
        return {}
    found = _of_sizes(np.rint(sizes).astype(np.int64).ravel(), claim.n, claim.sample_rate)
    return {f"{name}, by releases on equal records": p for name, p in found.items()}


def _as_claimed(lab: Lab, level: float) -> Verdict:
    seen, claimed, rate = _visible(lab), lab.claim.sampling, lab.claim.sample_rate
    if seen is None:
        return untested("batches are not returned (`batches`), and cannot be seen from what records change")
    if (tested := _tests_of(lab.claim)) is None:
        return untested(f"batches of sampling {claimed} have no test here")
    included, how = seen
    tests, unlike = tested(included, rate) | _many_sizes(lab), _returned(lab, unlike=True)
    if unlike is not None:
        tests |= {f"{name}, {_DIFFER}": p for name, p in tested(unlike, rate).items()}
    p, name = min((p, name) for name, p in tests.items())
    p = min(1.0, p * len(tests))
    if p < level:
        mend = (
            f"draw batches as {claimed} says, anew in every step and from a secret stream, without regard to what the"
        )
        mend += " records hold; or account for what is run"
        return violated(f"batches are not {claimed} ({name})", mend, p_value=p)
    within = 6 * np.sqrt(rate * (1 - rate) / included.size)
    power = f"{included.size} chances of a record to be drawn; the rate within about {within:.3f}"
    says = f"batches are {claimed} as far as {how} show"
    says += f", also {_DIFFER}" if unlike is not None else "; whether they follow what records hold was not seen"
    return held(says, power=power, p_value=p)


def _secret(lab: Lab, level: float) -> Verdict:
    # Amplification by sampling needs secret batches: nobody may be able to draw them again
    if lab.claim.sampling in _WITHOUT_SAMPLING or lab.claim.sample_rate == 1:
        return held("no amplification is claimed")
    known_from = source(lab)
    if known_from is None:
        return untested("who is in a batch cannot be seen: return `batches`, or obey `step_size` 0")
    if not known_from:
        return held("equal seeds give other batches")
    if lab.view.seed == "secret":
        return untested(f"batches are a function of {known_from}: as secret as that is said to be")
    mend = "draw batches from a generator seeded with secret entropy, which is not saved, or claim no amplification"
    return violated(f"batches are a function of {known_from}: nothing is amplified where they are known", mend)


def source(lab: Lab) -> str | None:
    """Find out what determines the batches of an audited loop: its seed, or the process's global random generators.

    Args:
        lab: experiments on the loop.

    Returns:
        "the seed"; "the state of the process's global generators, which any call may seed"; or "" if neither determines
        the batches. None if this is unknown: the loop does not return its batches, and its runs with almost no noise
        fail or never release the same numbers.
    """
    numbers = (1, 2, 1)
    if lab.runs.base.batches is not None:
        first, second, third = (lab.loop.run(seed=_LISTED_SEED, global_seed=number).batches for number in numbers)
        by_seed, by_globals = first == second, first == third
    elif lab.runs.repeatable is None:
        return None
    elif lab.runs.repeatable or lab.runs.streamed:
        return ""
    else:
        rows = [lab.runs.quiet(seed=SEED, global_seed=number) for number in numbers]
        if rows[0] is None or rows[1] is None or rows[2] is None:
            return None
        by_seed, by_globals = same(rows[0], rows[1]), same(rows[0], rows[2])
    if by_seed:
        return "the seed"
    return "the state of the process's global generators, which any call may seed" if by_globals else ""


def _accounting(lab: Lab, level: float) -> Verdict:
    # Violated if the accountant's lower bound exceeds the claimed epsilon, held if its upper bound does not exceed it
    claim = lab.claim
    try:
        cost = epsilon_of_history([claim.as_step()], claim.delta)
    except ValueError as error:
        return untested(f"not accounted here: {' '.join(str(error).split())}")
    said = f"noise multiplier {claim.noise_multiplier:g}, {claim.steps} steps, {claim.sampling}, {claim.relation}"
    if cost.lower > claim.epsilon * (1 + _CLAIM_ROUNDING):
        mend = "compute the noise for this relation, sampling, n, batch and number of steps (dpzero_theory.privacy)"
        return violated(f"{said} cost epsilon {cost.lower:.4g} at least, not {claim.epsilon:g}", mend)
    if cost.upper > claim.epsilon * (1 + _CLAIM_ROUNDING):
        return untested(f"{said} cost epsilon between {cost.lower:.4g} and {cost.upper:.4g}")
    warning = "".join(f"; warning: {note}" for note in weak(claim.epsilon, claim.delta, n=claim.n))
    return held(f"{said} cost epsilon {cost.upper:.4g}, {claim.epsilon:g} is claimed{warning}")


def _steps(lab: Lab, level: float) -> Verdict:
    if lab.runs.base.releases is None:
        return untested(_NO_RELEASES)
    records, most = lab.loop.records, lab.claim.steps
    others = {
        "records a thousand times as large": datasets.scaled(records, 1e3),
        "records a millionth as large": datasets.scaled(records, 1e-6),
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
    # A loop may stop by its releases, so steps are counted with noise that makes releases equal on all data sets
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


CHECKS = (
    Check("batches", "Are batches drawn as claimed?", _as_claimed, core=True),
    Check("batches-secret", "Can the batches be drawn again?", _secret, random=False, follows=("noise-fixed",)),
    Check("accounting", "Does the claimed noise give the claimed epsilon?", _accounting, core=True, random=False),
    Check("steps", "Are there as many releases as accounted, whatever the data?", _steps, random=False),
)
"""The checks of this module, in the order of the report."""
