"""The noise sources: microseconds of processor time a draw, and chi-square tests over 10^7 or 10^9 exact draws.

    python -m benchmarks.noise_draws [--preset scalar|vector] [--draws N] [--out DIR]

One row per law and scale: draws one by one and in batches from the operating system's entropy, the chi-square
statistic of the batch against the exact probabilities (cells of expectation below 100 pooled into one), and the
same against a scale 1% larger, which the test must notice. A p-value below 1e-4 fails. `vector` tests the sampler of
vectors alone, 10^9 draws a scale; from scale 2^20 on in cells of scale/32 times the 16 values of
the lowest four bits.
"""

import math
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.remake import Remake, Row
from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.cli import integer
from dpzero_theory.privacy.noise import SystemNoise

Array = NDArray[np.float64]
SCALES = (1.0, 10.0, 159.59989)
SINGLE = 50_000
WIDE, REACH, PARTS, BITS = 2.0**20, 8, 32, 4
LIMIT_P = 1e-4
CHUNK = 500_000


@dataclass(frozen=True)
class Preset:
    """at_once: draws in one call, which decides on the sampler; limit: of the time in the column `timed`."""

    folder: str
    laws: tuple[str, ...]
    scales: tuple[float, ...]
    draws: int
    at_once: int
    timed: str
    limit: float


LARGE = (2.0**30 / 3, 2.0**38 * 3.7)
PRESETS = {
    "scalar": Preset("noise_draws", ("discrete-gaussian", "discrete-laplace"), SCALES, 10**7, 50, "single_us", 25.0),
    "vector": Preset("noise_draws_vector", ("discrete-gaussian",), SCALES + LARGE, 10**9, CHUNK, "batch_us", 0.25),
}


LAWS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "discrete-gaussian": (lambda z: np.exp(-(z**2) / 2), 9.0),
    "discrete-laplace": (lambda z: np.exp(-np.abs(z)), 40.0),
}
"""Unnormalised probability of scale * z, and the z beyond which it is negligible."""


def exact_pmf(law: str, scale: float, reach: int) -> Array:
    """Probabilities of -reach, ..., reach."""
    weights = LAWS[law][0](np.arange(-reach, reach + 1.0) / scale)
    return np.asarray(weights / weights.sum())


def chi_square(counts: NDArray[np.int64], pmf: Array) -> tuple[float, int, float]:
    """Statistic, degrees of freedom and p-value."""
    expected = pmf * counts.sum()
    kept = expected >= 100
    observed = np.append(counts[kept], counts[~kept].sum())
    wanted = np.append(expected[kept], expected[~kept].sum())
    if wanted[-1] < 100:
        observed, wanted = observed[:-1], wanted[:-1] * (observed[:-1].sum() / wanted[:-1].sum())
    found = stats.chisquare(observed, wanted)
    return float(found.statistic), len(wanted) - 1, float(found.pvalue)


def wide_pmf(scale: float, width: int) -> Array:
    """Probabilities of the cells of `width` integers from -REACH scale on, the outer ones to infinity, and low bits.

    The sum over a cell is the integral from half a unit below its first integer, to 1e-9 of it.
    """
    edges = (np.arange(1 - REACH * PARTS, REACH * PARTS) * float(width) - 0.5) / scale
    below, above = np.append(0.0, stats.norm.cdf(edges)), np.append(stats.norm.sf(edges), 0.0)
    cells = np.where(
        np.arange(2 * REACH * PARTS) < REACH * PARTS, np.diff(below, append=1.0), -np.diff(above, prepend=1)
    )
    return np.repeat(cells, 1 << BITS) / (1 << BITS)


def measure(law: str, scale: float, draws: int, at_once: int) -> dict[str, float | int]:
    """One row."""
    source = SystemNoise()
    draw = source.discrete_gaussian if law == "discrete-gaussian" else source.discrete_laplace
    reach, width = math.ceil(LAWS[law][1] * scale) + 3, math.floor(scale / PARTS)
    wide = scale >= WIDE
    counts = np.zeros(2 * REACH * PARTS << BITS if wide else 2 * reach + 1, dtype=np.int64)

    def cells(found: NDArray[np.int64]) -> NDArray[np.int64]:
        if not wide:
            return found + reach
        place = np.clip(found // width + REACH * PARTS, 0, 2 * REACH * PARTS - 1)
        return place << BITS | found & ((1 << BITS) - 1)

    def pmf(of: float) -> Array:
        return wide_pmf(of, width) if wide else exact_pmf(law, of, reach)

    batch = 0.0
    for done in range(0, draws, CHUNK):
        start = time.process_time()
        count = min(CHUNK, draws - done)
        found = np.concatenate([draw(scale, at_once) for _ in range(-(-count // at_once))])[:count]
        batch += time.process_time() - start
        counts += np.bincount(cells(found), minlength=len(counts))
    start = time.process_time()
    for _ in range(SINGLE):
        draw(scale)
    single = (time.process_time() - start) / SINGLE
    statistic, freedom, p = chi_square(counts, pmf(scale))
    return {
        "draws": draws,
        "single_us": round(single * 1e6, 3),
        "batch_us": round(batch / draws * 1e6, 4),
        "chi_square": statistic,
        "freedom": freedom,
        "p_value": p,
        "p_value_wrong_scale": chi_square(counts, pmf(1.01 * scale))[2],
    }


def _errors(row: Row) -> dict[str, float]:
    """Of a chi-square number sqrt(2 degrees of freedom); of a p-value that of a uniform number."""
    uniform = 1 / math.sqrt(12)
    return {"chi_square": math.sqrt(2 * row["freedom"]), "p_value": uniform, "p_value_wrong_scale": uniform}


def _again(preset: Preset, row: Row) -> list[dict[str, Any]]:
    law, scale = row["law"], row["scale"]
    return [{"law": law, "scale": scale, **measure(law, scale, row["draws"], preset.at_once)}]


REMAKES = {
    preset.folder: Remake(("law", "scale"), partial(_again, preset), varies=("single_us", "batch_us"), errors=_errors)
    for preset in PRESETS.values()
}


def _report(options: Namespace) -> int:
    table, preset = read_rows(options.out), PRESETS[options.preset]
    print(table.drop(columns="status").to_string(index=False))
    good = (table["p_value"] > LIMIT_P) & (table["p_value_wrong_scale"] < LIMIT_P)
    good &= table[preset.timed] <= preset.limit
    print(f"{int(good.sum())} of {len(table)} within {preset.limit:g} us a draw and p > {LIMIT_P:g}")
    return 0 if good.all() else 1


def _draws(options: Namespace) -> int:
    return int(options.draws or PRESETS[options.preset].draws)


EXPERIMENT = Experiment(
    name="noise_draws",
    about=__doc__,
    flags=[
        flag("--preset", choices=PRESETS, default="scalar"),
        flag("--draws", type=integer(10**5, 10**9), help="default: 10^7, of vectors 10^9"),
    ],
    folder=lambda options: RESULTS / PRESETS[options.preset].folder,
    key=("law", "scale"),
    fields=("draws", "single_us", "batch_us", "chi_square", "freedom", "p_value", "p_value_wrong_scale"),
    dtype="integer",
    settings=lambda options: {"draws": _draws(options)},
    cells=lambda options: (
        {"law": law, "scale": scale} for law in PRESETS[options.preset].laws for scale in PRESETS[options.preset].scales
    ),
    measure=lambda options, at: measure(**at, draws=_draws(options), at_once=PRESETS[options.preset].at_once),
    report=_report,
)
