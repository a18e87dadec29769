"""Do the intervals of `dpzero_theory.curvature` cover, and how fast are they?  python -m benchmarks.curvature_coverage

Diagonal matrices whose norm, trace, trace of absolute values and effective rank are known are measured 200 times each
with independent randomness. (The measurement does not depend on the eigenvectors, so nothing is lost by taking diagonal
matrices.) There is one row per spectrum and repetition, with the ends of every interval at level 0.95 and the true
values. `seconds` is the wall time of the whole measurement on one thread.

The rule for failure was fixed before the run. There are 24 counts of intervals that cover: 6 spectra times 4
quantities. An interval that covers with probability 0.95 covers fewer than 180 of 200 times with probability 0.0012, so
a count below 180 is a failure (by chance, one among all counts has probability 3%, by Bonferroni). A quantity also
fails if fewer than 1,117 of its 1,200 intervals over all spectra cover, which is 3 standard deviations below the mean.
`--summary` prints the counts.
"""

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.remake import Remake
from benchmarks.kit.rows import read_rows
from dpzero_theory.cli import integer
from dpzero_theory.curvature.lanczos import diagonal
from dpzero_theory.curvature.spectrum import Effort, measure_spectrum
from dpzero_theory.synthetic.problems import paper_spectrum

LEVEL = 0.95
REPETITIONS = 200
COVERED, COVERED_OF_ALL = 180, 1_117
QUANTITIES = ("norm", "trace", "absolute_trace", "rank")
KEY = ("spectrum", "d", "repetition")
FIELDS = (
    *(f"{name}_{end}" for name in QUANTITIES for end in ("low", "estimate", "high", "truth")),
    "products",
    "seconds",
)
CASES = {
    "1/i": 100_000,
    "1/sqrt(i)": 100_000,
    "1/i, signs": 10_000,
    "1/sqrt(i), signs": 10_000,
    "flat, one spike": 10_000,
    "rank 20": 10_000,
}
"""The diagonal matrices that are measured: the name of the spectrum, and the dimension. If the name has "signs", every
third eigenvalue is negative."""
EFFORT = Effort(search=40, probes=16, steps=10)

Array = NDArray[np.float64]


def spectrum(name: str, d: int) -> Array:
    """Return the d eigenvalues of the diagonal matrix whose spectrum has this name. The largest in absolute value is
    1."""
    if name == "flat, one spike":
        return np.concatenate([[1.0], np.full(d - 1, 1e-3)])
    if name == "rank 20":
        return np.concatenate([np.linspace(1, 0.1, 20), np.zeros(d - 20)])
    values = paper_spectrum("c" if name.startswith("1/i") else "b", d)
    return values * np.where(np.arange(d) % 3 == 1, -1, 1) if "signs" in name else values


def run(name: str, d: int, repetition: int) -> dict[str, Any]:
    """Measure the diagonal matrix with this spectrum and dimension d once, and return the row: the ends of every
    interval, and the true values. `repetition` is the seed of the measurement."""
    values = spectrum(name, d)
    sizes = np.abs(values)
    truth = {
        "norm": sizes.max(),
        "trace": values.sum(),
        "absolute_trace": sizes.sum(),
        "rank": sizes.sum() / sizes.max(),
    }
    operator = diagonal(torch.as_tensor(values))
    generator = torch.Generator().manual_seed(repetition)
    started = time.perf_counter()
    found = measure_spectrum(operator, generator, EFFORT, LEVEL, positive=bool((values >= 0).all()))
    seconds = time.perf_counter() - started
    row: dict[str, Any] = {"spectrum": name, "d": d, "repetition": repetition}
    for quantity in QUANTITIES:
        interval = getattr(found, quantity)
        ends = {"low": interval.low, "estimate": interval.estimate, "high": interval.high, "truth": truth[quantity]}
        row |= {f"{quantity}_{end}": float(value) for end, value in ends.items()}
    return row | {"products": found.products, "seconds": round(seconds, 3)}


def summary(folder: Path) -> str:
    """Return a text made of the rows in `folder`, which says for each matrix how many of its 200 intervals contain the
    true value, the largest error of the estimated effective rank, and the median time of a measurement."""
    lines = [f"{'spectrum':>18} {'d':>7} " + " ".join(f"{q:>15}" for q in QUANTITIES) + "  rank error  seconds"]
    for (name, d), part in read_rows(folder).groupby(["spectrum", "d"], sort=False):
        slack = 1e-9
        counts = [
            int(
                (
                    (part[f"{q}_low"] <= part[f"{q}_truth"] + slack * part[f"{q}_truth"].abs())
                    & (part[f"{q}_truth"] <= part[f"{q}_high"] + slack * part[f"{q}_truth"].abs())
                ).sum()
            )
            for q in QUANTITIES
        ]
        error = float((part["rank_estimate"] / part["rank_truth"] - 1).abs().max())
        shown = " ".join(f"{count:>11}/{len(part)}" for count in counts)
        lines.append(f"{name:>18} {d:>7} {shown}  {error:>10.2%}  {part['seconds'].median():>7.2f}")
    return "\n".join(lines)


REMAKES = {
    "curvature_coverage": Remake(
        KEY,
        lambda row: [run(*(row[name] for name in KEY))],
        varies=("seconds",),
        elsewhere=1e-5,
        upset=lambda row: bool(row["spectrum"] == "1/i, signs"),
    )
}


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    return run(*at.values())


EXPERIMENT = Experiment(
    name="curvature_coverage",
    about=__doc__,
    flags=[flag("--repetitions", type=integer(1, 10_000), default=REPETITIONS)],
    key=KEY,
    fields=FIELDS,
    seeds=lambda options: range(options.repetitions),
    settings={"level": LEVEL, "search": EFFORT.search, "probes": EFFORT.probes, "steps": EFFORT.steps},
    check=one_thread,
    cells=lambda options: (
        {"spectrum": name, "d": d, "repetition": index}
        for name, d in CASES.items()
        for index in range(options.repetitions)
    ),
    measure=_measure,
    workers=1,
    together=20,
    told=lambda at, rows: f"{at['spectrum']} d={at['d']}: {at['repetition'] + 1}",
    summary=summary,
)
