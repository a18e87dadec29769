"""How many runs an audit needs to see that a part of the noise is missing.

    python -m benchmarks.audit_power [--quick] [--out DIR]

The audited mechanism has Gaussian noise. With all of its noise it would be mu-GDP, but it only has a share of that
noise. There are four methods to refute the claim of mu-GDP:

- noise-size: the auditor sees the noise itself (in runs whose records contribute nothing) and draws more of it until a
chi-square test of its size refutes the claim. The number of draws is exact;
- clopper-pearson: the auditor makes pairs of runs on two neighbouring data sets, and Clopper-Pearson intervals of the
test's errors refute the claim (`audit.power.runs_to_see`). The smallest sufficient power of two is exact;
- sequential: the auditor makes pairs of runs until the test of `audit.sequential` stops. The row has the median and the
95% quantile of 50 audits. An audit that has not stopped after 2^16 pairs counts as that many, and a column whose value
would be 2^16 is left empty;
- one-run: the auditor makes one run with canaries that do not disturb each other, guesses the signs of a quarter of
them, and `audit.bounds.refutes` refutes the claim. The row has the smallest power of two of canaries that suffices in
95% of 50 runs; a column whose value would be above 2^16 is left empty.

Every method wrongly refutes a true claim with probability at most 1e-6. The counts suffice with probability 95%, except
those in the column of medians.
"""

from argparse import Namespace

import numpy as np
from scipy import special, stats

from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.rows import read_rows
from dpzero_theory.audit import bounds, sequential
from dpzero_theory.audit.power import runs_to_see
from dpzero_theory.bisection import smallest_integer

LEVEL, POWER, REPEATS, MOST = 1e-6, 0.95, 50, 1 << 16
CLAIMED = (0.5, 1.0, 2.0)
SHARES = (0.9, 0.75, 0.5, 0.25)
METHODS = ("noise-size", "clopper-pearson", "sequential", "one-run")
_CHUNK = 64


def numbers_of_noise(share: float) -> int:
    """Return how many draws of the noise the auditor needs to see that only a `share` < 1 of its standard deviation is
    there: the least count whose sum of squares is below the chi-square quantile of LEVEL with probability POWER."""

    def seen(count: int) -> bool:
        return bool(share**2 * stats.chi2.ppf(POWER, count) <= stats.chi2.ppf(LEVEL, count))

    return smallest_integer(seen, 1, 1 << 60) or 0


def pairs_until_refuted(mu: float, share: float, rng: np.random.Generator, most: int) -> int:
    """Simulate a sequential audit of the claim mu-GDP for a mechanism with a `share` of its noise, and return how many
    pairs of runs it takes; `most` if it has not refuted the claim by then."""
    game, limit = sequential.Betting(mu), -np.log(LEVEL)
    while game.pairs < most:
        before = game.pairs
        wealth = game.see(np.array([0.5, -0.5]) + rng.normal(size=(_CHUNK, 2)) * share / mu)
        if wealth.max() >= limit:
            return before + int(np.argmax(wealth >= limit)) + 1
    return most


def canaries_to_refute(mu: float, share: float, repeats: int, most: int) -> int | None:
    """Return how many canaries of one run refute the claim of mu-GDP for a mechanism with a `share` of its noise: the
    smallest power of two up to `most` whose bound does so in POWER of `repeats` simulated runs; None if there is none.

    The scores of the canaries are independent. The signs of the quarter with the largest scores, in absolute value, are
    guessed by those of their scores.
    """

    def right(count: int, k: int) -> int:
        scores = mu / share / 2 + np.random.default_rng([11, count, k]).normal(size=count)
        return int((scores[np.argsort(-np.abs(scores))[: count // 4]] > 0).sum())

    def level(power: float) -> float:
        return float(special.ndtr(special.ndtri(power) - mu))

    for count in (1 << k for k in range(5, most.bit_length())):
        worst = int(np.quantile([right(count, k) for k in range(repeats)], 1 - POWER, method="lower"))
        if bounds.refutes(worst, count // 4, count, level, LEVEL):
            return count
    return None


def row(method: str, mu: float, share: float, repeats: int, most: int) -> dict[str, str | int | float | None]:
    """Return the columns of the row for one method, claimed mu, and share of the noise that is there.

    "median" is the median number of pairs of runs over `repeats` sequential audits. "q95" is the number that suffices
    with probability 95%: of pairs; of draws of noise for the method noise-size; of canaries for the method one-run.
    None stands for `most` or more.
    """
    if method == "noise-size":
        return {"q95": numbers_of_noise(share)}
    if method == "clopper-pearson":
        return {"q95": runs_to_see(mu, share, 1 - LEVEL, POWER)}
    if method == "one-run":
        return {"q95": canaries_to_refute(mu, share, repeats, most)}
    found = [pairs_until_refuted(mu, share, np.random.default_rng([7, k]), most) for k in range(repeats)]
    middle, high = (float(q) for q in np.quantile(found, (0.5, POWER)))
    return {"median": middle if middle < most else None, "q95": high if high < most else None}


def _repeats(options: Namespace) -> tuple[int, int]:
    return (5, 1 << 10) if options.quick else (REPEATS, MOST)


def _report(options: Namespace) -> None:
    print(read_rows(options.out).to_string())


EXPERIMENT = Experiment(
    name="audit_power",
    about=__doc__,
    flags=[flag("--quick", action="store_true", help="5 sequential audits a row, of 2^10 pairs at most")],
    key=("method", "claimed", "share"),
    fields=("median", "q95"),
    seeds=lambda options: range(_repeats(options)[0]),
    settings=lambda options: {"level": LEVEL, "power": POWER, "most": _repeats(options)[1]},
    figure="figures.audit",
    cells=lambda options: (
        {"method": method, "claimed": mu, "share": share} for method in METHODS for mu in CLAIMED for share in SHARES
    ),
    begun=lambda at: " ".join(map(str, at.values())),
    measure=lambda options, at: row(at["method"], at["claimed"], at["share"], *_repeats(options)),
    report=_report,
)
