"""Checks of batches: exact tests whether records are in batches as the claimed sampling says, and whether in secret."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpzero_theory.audit import datasets, exact
from dpzero_theory.audit.claim import Claim
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.runs import norms
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.sampling import CyclicPoisson, TruncatedPoisson

Included = NDArray[np.bool_]
"""An array that says whether each record was in each batch, of shape (runs, steps, records)."""
_LISTED_RUNS = 8  # Where the loop returns its batches, those of this many runs are tested
_UNLIKE_RUNS = 16  # So many runs list their batches of records that differ in size
_UNLIKE_SEED = 90  # The loop's seed in the first of them; each further run has the next seed
_UNLIKE = (1e3, 1e-3)  # The factors by which records in even and in odd places are scaled for them
_SMALL, _LARGE = 0.1, 0.9
"""The quantiles of the claimed law of batch sizes that bound ordinary batches.

A batch is small below the first quantile and large above the second one.
"""
_MEMBERS = 16  # If the loop does not return its batches, this many records show whether these depend on the seed
_CHANGES = 1e-6  # A record counts as in a batch if replacing it changes the step by more than this many clips
_OUTSIDE = 1e-2  # A record that is not in a batch may change the step by this many clips, by rounding
_STREAMS = (1, 2)  # Two known streams of random bytes: batches that are the same with both depend on the seed alone
_WHOLE_NUMBER = 0.05
"""Sizes of batches that were measured are used if all of them are this close to whole numbers of records."""


class Inclusion(NamedTuple):
    """Which records were in which batches of a loop, and how that was seen.

    Args:
        included: whether each record was in each batch, of shape (runs, steps, records).
        how: in words, from what it was seen.
    """

    included: Included
    how: str


def observed(lab: Lab) -> Inclusion | None:
    """Returns which record was in which batch; None where that cannot be seen.

    It is taken from the batches that the loop returns, or else from which steps change when a record is exchanged.
    `lab` makes experiments on the audited loop.
    """
    if lab.runs.base.batches is not None:
        runs = [lab.runs.base.batches, *(lab.loop.run(seed=60 + k).batches for k in range(_LISTED_RUNS - 1))]
        drawn = _listed(runs, lab.claim.n)
        return Inclusion(drawn, "the lists of batches that the loop returns") if drawn.shape[1] else None
    if lab.influence.scan is None:
        return None
    drawn = lab.influence.scan.included
    # With directions that depend on the seed, a step that no record changes may still have a batch: the direction may
    # be one along which no loss changes. Runs with such a step are left out, except that Poisson batches may be empty.
    if lab.claim.sampling != "poisson" and not lab.runs.same_for_all_seeds:
        drawn = drawn[np.all(drawn.any(axis=2), axis=1)]
    return Inclusion(drawn, "steps that moved when a record was exchanged") if len(drawn) else None


def _listed(runs: Sequence[list[list[int]] | None], n: int) -> Included:
    """Returns which of n records are in the batches that runs list, for the steps that all of the runs made."""
    steps = min(len(run or []) for run in runs)
    drawn = np.zeros((len(runs), steps, n), dtype=bool)
    for r, run in enumerate(runs):
        for t, batch in enumerate((run or [])[:steps]):
            drawn[r, t, [i for i in batch if 0 <= i < n]] = True
    return drawn


def on_unlike_records(lab: Lab) -> Included | None:
    """Returns which record was in which batch where the records differ in size; None where that cannot be seen.

    Every second record is a thousand times as large as it was, and the others are a thousandth, so that batches which
    follow losses, norms or an order of the records have others in them than batches that are drawn blindly. They are
    taken from the batches that the loop returns. `lab` makes experiments on the audited loop.
    """
    records, n = lab.loop.records, lab.claim.n
    if lab.runs.base.batches is None or not datasets.numbers(records[0]):
        return None
    for place in range(len(records)):
        records = datasets.replaced(records, place, datasets.scaled(records[place], _UNLIKE[place % 2]))
    count = 2 if lab.claim.sampling in ("full", "fixed-order", "shuffled") else _UNLIKE_RUNS
    runs = [lab.runs.attempt(records, seed=_UNLIKE_SEED + k) for k in range(count)]
    lists = [None if run is None else run.batches for run in runs]
    drawn = _listed(lists, n)
    return drawn if drawn.shape[1] else None


def poisson(included: Included, rate: float) -> dict[str, float]:
    """The p-values, by name, of tests that each record is in each batch independently with probability `rate`.

    `included` says whether each record was in each batch, of shape (runs, steps, records).
    """
    _, steps, n = included.shape
    sizes, times = included.sum(axis=2).ravel(), included.sum(axis=1).ravel()
    tests = {
        "how many records are drawn in all": exact.binomial(int(included.sum()), included.size, rate),
        "sizes of batches": exact.dispersion(sizes, stats.binom.pmf(np.arange(n + 1), n, rate)),
        "how often each record is drawn": exact.dispersion(times, stats.binom.pmf(np.arange(steps + 1), steps, rate)),
    }
    tests["how often one record is drawn"] = _one(included, rate)
    return tests | _shared(included, stats.binom.pmf(np.arange(n + 1), n, rate**2))


def _one(included: Included, rate: float) -> float:
    """The smallest p-value over records of how often a record was in batches, times the number of records.

    Under the claim a record is in each step's batch independently with probability `rate`. `included` says whether each
    record was in each batch, of shape (runs, steps, records).
    """
    times = included.reshape(-1, included.shape[-1]).sum(axis=0)
    chances = [exact.binomial(int(hits), included.shape[0] * included.shape[1], rate) for hits in np.unique(times)]
    return float(min(1.0, min(chances) * included.shape[-1]))


def _of_sizes(sizes: NDArray[np.int64], n: int, rate: float) -> dict[str, float]:
    """The p-values, by name, of tests that sizes of batches are binomial, of n trials with probability `rate`.

    Tested are the spread of `sizes`, and how many of them are small and large.
    """
    law = stats.binom(n, rate)
    small, large = law.ppf(_SMALL), law.ppf(_LARGE)
    return {
        "many sizes of batches": exact.dispersion(sizes, law.pmf(np.arange(n + 1))),
        "how many batches are small": exact.binomial(int((sizes < small).sum()), sizes.size, float(law.cdf(small - 1))),
        "how many batches are large": exact.binomial(int((sizes > large).sum()), sizes.size, float(law.sf(large))),
    }


def fixed_size(included: Included, rate: float) -> dict[str, float]:
    """The p-values, by name, of tests that each step draws a new batch of the fixed size rate * n.

    `included` says whether each record was in each batch, of shape (runs, steps, records), where n is the number of
    records. The p-value "sizes of batches" is 1 if all batches have that size, else 0.
    """
    n = included.shape[2]
    batch = round(n * rate)
    tests = {"sizes of batches": float((included.sum(axis=2) == batch).all())}
    tests["how often one record is drawn"] = _one(included, batch / n)
    return tests | _shared(included, stats.hypergeom.pmf(np.arange(batch + 1), n, batch, batch))


def _shared(included: Included, pmf: NDArray[np.float64]) -> dict[str, float]:
    """The p-values, by name, of how many records two batches share.

    Compared are consecutive batches of a run, and batches of the same step of two runs. `included` says whether each
    record was in each batch, of shape (runs, steps, records). `pmf` has the claimed probabilities that two batches
    share 0, 1, 2, ... records.
    """
    runs, steps = (size // 2 * 2 for size in included.shape[:2])
    pairs = {
        "what neighbouring batches share": (included[:, 0:steps:2], included[:, 1:steps:2]),
        "what batches of two runs share": (included[0:runs:2], included[1:runs:2]),
    }
    tests = {}
    for name, (first, second) in pairs.items():
        if overlaps := (first & second).sum(axis=2).ravel().tolist():
            tests[name] = exact.overlaps(sum(overlaps), len(overlaps), np.asarray(pmf))
            tests[f"how much it differs, {name}"] = exact.dispersion(np.array(overlaps), np.asarray(pmf))
    return tests


def full(included: Included, rate: float) -> dict[str, float]:
    """The test of full batches, which any sound loop passes: its p-value is 1 if every batch has all records, else 0.

    `included` says whether each record was in each batch. `rate` is not used, but all functions of `LAWS` take it.
    """
    return {"who is in a batch": float(included.all())}


def epochs(included: Included, rate: float) -> dict[str, float]:
    """The test that each record is in exactly one batch of each epoch of 1/rate steps: its p-value is 1 or 0.

    `included` says whether each record was in each batch, of shape (runs, steps, records). In a last epoch that is cut
    short a record may be in one batch or none.
    """
    length = round(1 / rate)
    blocks = [included[:, t : t + length].sum(axis=1) for t in range(0, included.shape[1], length)]
    whole = all((block == 1).all() for block in blocks[: included.shape[1] // length])
    return {"once in each epoch": float(whole and all((block <= 1).all() for block in blocks))}


def allocated(included: Included, rate: float) -> dict[str, float]:
    """The p-values, by name, of tests that each record draws its batch of an epoch of 1/rate steps by itself.

    Beside `epochs`, the sizes of the first batch of each whole epoch are tested, which are binomial, and how many
    records two such batches share. `included` says whether each record was in each batch, of shape (runs, steps,
    records).
    """
    _, steps, n = included.shape
    length = round(1 / rate)
    first = included[:, : steps - steps % length : length]
    if not first.size:
        return epochs(included, rate)
    sizes = exact.dispersion(first.sum(axis=2).ravel(), stats.binom.pmf(np.arange(n + 1), n, 1 / length))
    drawn = {"how much sizes of batches differ": sizes}
    return epochs(included, rate) | drawn | _shared(first, stats.binom.pmf(np.arange(n + 1), n, length**-2.0))


def turns(included: Included, rate: float, groups: int) -> dict[str, float]:
    """The p-values, by name, of tests that `groups` groups of records take turns and are sampled by Poisson.

    In a run a record must always have the same turn, which may be another one in other runs. Over one turn of every
    group a record is drawn once with probability groups * rate, so that these rounds are tested as Poisson batches.
    Steps after the last whole round are left out. `included` says whether each record was in each batch, of shape
    (runs, steps, records).
    """
    runs, steps, n = included.shape
    rounds = included[:, : steps - steps % groups].reshape(runs, steps // groups, groups, n)
    tests = {"one turn for each record": float((rounds.any(axis=1).sum(axis=1) <= 1).all())}
    return tests | (poisson(np.asarray(rounds.any(axis=2)), min(1.0, groups * rate)) if steps >= groups else {})


def truncated(included: Included, rate: float, largest: int) -> dict[str, float]:
    """The p-values, by name, of tests of Poisson batches that are cut to `largest` records, chosen at random.

    `included` says whether each record was in each batch, of shape (runs, steps, records), and `rate` is the
    probability with which a record is drawn before the cut.
    """
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
        "how often one record is drawn": _one(included, float(pmf @ np.arange(n + 1)) / n),
        **_shared(included, np.asarray(overlap)),
    }


_DIFFER = "where the records differ a millionfold"  # Words for the data of `on_unlike_records`
LAWS = {
    "poisson": poisson,
    "fixed-size": fixed_size,
    "full": full,
    "fixed-order": epochs,
    "shuffled": epochs,
    "random-allocation": allocated,
}
"""The tests of each sampling, by the sampling's name.

Each is a function (included, rate) -> p-values by the tests' names. `included` says whether each record was in each
batch, and `rate` is the probability with which a record is in a batch.
"""


def law_of(claim: Claim) -> Callable[[Included, float], dict[str, float]] | None:
    """Returns the tests of the claimed sampling, a function as in `LAWS`; None where there are no tests of it."""
    drawn = claim.drawn()
    if isinstance(drawn, CyclicPoisson):
        return partial(turns, groups=drawn.groups)
    if isinstance(drawn, TruncatedPoisson):
        return partial(truncated, largest=drawn.largest)
    return LAWS.get(claim.sampling)


def _sizes(lab: Lab) -> NDArray[np.int64] | None:
    """Returns the sizes of batches, measured by the length of releases on equal records; None where that fails.

    It fails where a release is not a sum divided by a constant. `lab` makes experiments on the audited loop.
    """
    if lab.influence.shares is None or lab.claim.sampling not in ("poisson", "fixed-size"):
        return None
    sizes = lab.influence.shares[np.isfinite(lab.influence.shares)] * (
        lab.claim.batch if lab.claim.average == "mean" else lab.claim.n
    )
    whole = np.rint(sizes)
    return whole.astype(np.int64) if sizes.size and np.abs(sizes - whole).max() < _WHOLE_NUMBER else None


def _law_of_sizes(lab: Lab, sizes: NDArray[np.int64], level: float) -> Verdict:
    """Tests the sizes of batches alone, where it cannot be seen which record is in a batch.

    `lab` has the claim and `sizes` are the batches' sizes. A sound loop is reported as violated with probability at
    most `level`. Returns the verdict.
    """
    n, rate, claimed = lab.claim.n, lab.claim.sample_rate, lab.claim.sampling
    law = stats.binom.pmf(np.arange(n + 1), n, rate)
    p = exact.dispersion(sizes, law) if claimed == "poisson" else float((sizes == round(lab.claim.batch)).all())
    plot = {"sizes": sizes.tolist(), "expected": lab.claim.batch, "how": "releases on equal records"}
    if p < level:
        mend = f"draw batches as {claimed} says, anew in every step; or account for what is run"
        least, most = int(sizes.min()), int(sizes.max())
        seen = (
            f"each of {sizes.size} has {least} records"
            if least == most
            else f"they have from {least} to {most} records"
        )
        return violated(f"batches have not the sizes of {claimed}: {seen}", mend, **plot)
    return held(f"{sizes.size} batches have sizes as {claimed} says; who is in them cannot be seen", p_value=p, **plot)


def looks_like(included: Included, rate: float, level: float) -> str | None:
    """Returns the name of a sampling that fits the batches seen; None where none fits.

    It is the first one, of "full", "fixed-order", "fixed-size" and "poisson", whose tests all have p-values above
    `level`. `included` says whether each record was in each batch, and `rate` is the claimed probability with which a
    record is in a batch.
    """
    for name in ("full", "fixed-order", "fixed-size", "poisson"):
        if min(LAWS[name](included, rate).values()) > level and (name != "full" or rate == 1):
            return name
    return None


def cost(lab: Lab, sampling: str) -> str:
    """Returns, as the end of a sentence, the epsilon of the claimed noise if batches are drawn by another sampling.

    `lab` has the claim, and `sampling` is the other sampling's name. The text is empty where the accountant does not
    support the combination.
    """
    try:
        most = epsilon_of_history([lab.claim.release(sampling)], lab.claim.delta).upper
    except ValueError:
        return ""
    return f": epsilon {most:.3g} instead of {lab.claim.epsilon:g}"


def law(lab: Lab, level: float) -> Verdict:
    """Test that batches are drawn as claimed; where they are not, say which sampling fits and what that one costs.

    `lab` makes experiments on the audited loop. A sound loop is reported as violated with probability at most `level`.
    Returns the verdict.
    """
    seen = observed(lab)
    if seen is None and (sizes := _sizes(lab)) is not None:
        return _law_of_sizes(lab, sizes, level)
    if seen is None:
        return untested("batches are not returned (`batches`), and cannot be seen from what records change")
    claimed, rate = lab.claim.sampling, lab.claim.sample_rate
    if (outside := _outside(lab)) is not None:
        return violated(outside, "let a step depend on no records but those of its batch; or account for full batches")
    if (tested := law_of(lab.claim)) is None:
        return untested(f"batches of sampling {claimed} have no test here")
    tests = tested(seen.included, rate)
    if claimed == "poisson" and (shown_sizes := _sizes(lab)) is not None and np.ptp(shown_sizes) > 0:
        tests |= _of_sizes(shown_sizes, lab.claim.n, rate)
    unlike = on_unlike_records(lab)
    others = {} if unlike is None else {f"{name}, {_DIFFER}": p for name, p in tested(unlike, rate).items()}
    count = len(tests) + len(others)
    if min(tests.values()) * count >= level:
        tests |= others
    name, p = min(tests.items(), key=lambda pair: pair[1])
    p = min(1.0, p * count)
    sizes = seen.included.sum(axis=2).ravel().tolist()
    plot = {"sizes": sizes, "expected": lab.claim.batch, "how": seen.how}
    if p < level:
        real = None if name.endswith(_DIFFER) else looks_like(seen.included, rate, level)
        instead = f"; they fit {real}{cost(lab, real)}" if real and real != claimed else ""
        mend = (
            f"draw batches as {claimed} says, anew in every step and from a secret stream; or account for what is run"
        )
        if name.endswith(_DIFFER):
            mend = "draw batches without regard to what the records hold; no losses, norms or lengths may decide"
        return violated(f"batches are not {claimed} ({name}){instead}", mend, p_value=p, **plot)
    chances = seen.included.size
    within = 6 * np.sqrt(rate * (1 - rate) / chances)
    power = f"{chances} chances of a record to be drawn; the rate within about {within:.3f}"
    says = f"batches are {claimed} as far as {seen.how} show"
    says += f", also {_DIFFER}" if unlike is not None else "; whether they follow what records hold was not seen"
    return held(says, power=power, p_value=p, **plot)


def _outside(lab: Lab) -> str | None:
    """Says that a record changes steps whose batch, as the loop of `lab` returns it, does not have it; None if none."""
    scan, pair = lab.influence.scan, lab.influence.pair
    if scan is None or pair is None or lab.runs.base.batches is None or lab.claim.sample_rate == 1:
        return None
    changed = datasets.replaced(lab.loop.records, 0, pair.first)
    for seed, moved in zip(scan.seeds, scan.moved, strict=True):
        how = {"noise_multiplier": lab.runs.quiet_multiplier, **lab.runs.frozen, **lab.runs.with_batches(seed)}
        first, again = (lab.runs.attempt(data, **how) for data in (lab.loop.records, changed))
        if first is None or again is None or first.batches is None or first.batches != again.batches:
            return None
        for step, batch in enumerate(first.batches[: len(moved)]):
            others = np.setdiff1d(np.arange(lab.claim.n), batch)
            if others.size and moved[step, others].max() > _OUTSIDE:
                record = int(others[np.argmax(moved[step, others])])
                return f"record {record} changes step {step}, whose batch, as the loop returns it, does not have it"
    return None


def secret(lab: Lab, level: float) -> Verdict:
    """Check that nobody can draw the batches again from a known seed, since amplification needs secret batches.

    Nothing here is random, so `level`, the probability of a false alarm, is not used. `lab` makes runs of the loop.
    Returns the verdict.
    """
    if lab.claim.sampling in ("full", "fixed-order", "shuffled") or lab.claim.sample_rate == 1:
        return held("no amplification is claimed")
    known_from = source(lab)
    if known_from is None:
        return untested("who is in a batch cannot be seen: return `batches`, or obey `step_size` 0")
    if not known_from:
        return held("equal seeds give other batches")
    if lab.view.seed == "secret":
        return untested(f"batches are a function of {known_from}: as secret as that is said to be")
    mend = "draw batches from a generator seeded with secret entropy, which is not saved, or claim no amplification"
    return violated(f"batches are a function of {known_from}{cost(lab, 'fixed-order')} where they are known", mend)


def source(lab: Lab) -> str | None:
    """Says in words what determines the batches: the loop's seed, or the process's global random generators.

    The text is empty where neither does, and None is returned where batches cannot be seen. `lab` makes experiments on
    the audited loop.
    """
    if lab.runs.base.batches is None:
        return _source_seen(lab)
    first, second, third = (lab.loop.run(seed=60, world=world).batches for world in (1, 2, 1))
    if first == second:
        return "the seed"
    return "the state of the process's global generators, which any call may seed" if first == third else ""


def _source_seen(lab: Lab) -> str | None:
    """As `source`, for a loop that does not return its batches: they are seen from what some records change.

    They are compared in runs with one seed, whose random bytes from the operating system differ.
    """
    if lab.runs.batches_repeat is None:
        return None if lab.runs.repeatable is None else ""
    both = [_members(lab, stream) for stream in (_STREAMS if lab.runs.batches_repeat else (None,))]
    drawn = [one for one in both if one is not None]
    if len(drawn) < len(both) or not all(_some(one) for one in drawn):
        return None
    return "the seed" if np.array_equal(drawn[0], drawn[-1]) else ""


def _members(lab: Lab, stream: int | None) -> NDArray[np.bool_] | None:
    """Whether each of the first records is in each batch of one run, of shape (steps, records).

    A record is in a batch if another one in its place changes the step. None is returned where a run fails. `lab` makes
    the runs. `stream` is the number of the known stream of random bytes that they read; None for the system's bytes.
    """
    records = lab.loop.records
    pair = lab.influence.pair
    other = pair.first if pair is not None else next(iter(datasets.extremes(records)))
    base = lab.runs.quiet(stream=stream)
    rows = [
        lab.runs.quiet(datasets.replaced(records, index, other), stream=stream)
        for index in range(min(len(records), _MEMBERS))
    ]
    if base is None or any(row is None or row.shape != base.shape for row in rows):
        return None
    moved = np.stack([norms(np.asarray(row) - base) for row in rows], axis=1)
    return np.asarray(moved > _CHANGES * lab.runs.unit({}))


def _some(drawn: NDArray[np.bool_]) -> bool:
    """Whether some record is in some of the steps' batches alone; of a single step, whether some records are in it."""
    along = 0 if len(drawn) > 1 else 1
    return bool((drawn.any(axis=along) != drawn.all(axis=along)).any())
