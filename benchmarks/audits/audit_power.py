"""How many runs an audit needs to see that a part of the noise is missing.

    python -m benchmarks.audit_power [--quick] [--out DIR]

The mechanism has Gaussian noise. It would be mu-GDP with all of its noise, and only a share of the noise is there.
Methods:

- noise-size: the auditor sees the noise itself (runs whose records contribute nothing) and counts numbers of noise
  until a chi-square test refutes the claim. Exact;
- clopper-pearson: pairs of runs on two data sets, `audit.power.runs_to_see`. Exact, at the fewest power of two;
- sequential: pairs of runs until `audit.sequential` stops; 50 audits, their median and 95% quantile. An audit that has
  not stopped after 2^16 pairs counts as that many, and a row where half have not stopped is empty.

All refute at level 1e-6, and with probability 95%, except where the column is a median.
"""

from argparse import Namespace

import numpy as np
from scipy import stats

from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.rows import read_rows
from dpzero_theory.audit import sequential
from dpzero_theory.audit.power import runs_to_see

LEVEL, POWER, REPEATS, MOST = 1e-6, 0.95, 50, 1 << 16
CLAIMED = (0.5, 1.0, 2.0)
SHARES = (0.9, 0.75, 0.5, 0.25)
METHODS = ("noise-size", "clopper-pearson", "sequential")
_CHUNK = 64


def numbers_of_noise(share: float) -> int:
    """The fewest numbers of noise whose sum of squares is below the chi-square quantile of LEVEL with probability
    POWER; share < 1."""

    def seen(count: int) -> bool:
        return bool(share**2 * stats.chi2.ppf(POWER, count) <= stats.chi2.ppf(LEVEL, count))

    high = 1
    while not seen(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high


def pairs_until_refuted(mu: float, share: float, rng: np.random.Generator, most: int) -> int:
    """How many pairs of runs one sequential audit takes; `most` where it has not stopped by then."""
    game, limit = sequential.Betting(mu), -np.log(LEVEL)
    while game.pairs < most:
        before = game.pairs
        wealth = game.see(np.array([0.5, -0.5]) + rng.normal(size=(_CHUNK, 2)) * share / mu)
        if wealth.max() >= limit:
            return before + int(np.argmax(wealth >= limit)) + 1
    return most


def row(method: str, mu: float, share: float, repeats: int, most: int) -> dict[str, str | int | float | None]:
    """The row of a cell. median: the median number of pairs, or of numbers of noise. q95: how many suffice with
    probability 95%. None stands for more than `most`."""
    if method == "noise-size":
        return {"q95": numbers_of_noise(share)}
    if method == "clopper-pearson":
        return {"q95": runs_to_see(mu, share, 1 - LEVEL, POWER)}
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
