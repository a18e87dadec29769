"""The noise sources: microseconds of processor time a draw, and chi-square tests over 10^7 exact draws.

    python -m benchmarks.noise_draws [--draws N] [--out DIR]

One row per law and scale: draws one by one and in batches from the operating system's entropy, the chi-square
statistic of the batch against the exact probabilities (cells of expectation below 100 pooled into one), and the
same against a scale 1% larger, which the test must notice. A p-value below 1e-4 fails.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.kit.rows import RESULTS, Results, read_rows
from dpzero_theory.cli import Parser, integer, output_folder
from dpzero_theory.privacy.noise import SystemNoise

Array = NDArray[np.float64]
SCALES = (1.0, 10.0, 159.59989)
LIMIT_US, LIMIT_P = 25.0, 1e-4
CHUNK = 500_000


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


def measure(law: str, scale: float, draws: int) -> dict[str, float | int]:
    """One row."""
    source = SystemNoise()
    draw = source.discrete_gaussian if law == "discrete-gaussian" else source.discrete_laplace
    reach = math.ceil(LAWS[law][1] * scale) + 3
    counts = np.zeros(2 * reach + 1, dtype=np.int64)
    start = time.process_time()
    for done in range(0, draws, CHUNK):
        counts += np.bincount(draw(scale, min(CHUNK, draws - done)) + reach, minlength=len(counts))
    batch = (time.process_time() - start) / draws
    start = time.process_time()
    for _ in range(50_000):
        draw(scale)
    single = (time.process_time() - start) / 50_000
    statistic, freedom, p = chi_square(counts, exact_pmf(law, scale, reach))
    return {
        "draws": draws,
        "single_us": round(single * 1e6, 3),
        "batch_us": round(batch * 1e6, 3),
        "chi_square": statistic,
        "freedom": freedom,
        "p_value": p,
        "p_value_wrong_scale": chi_square(counts, exact_pmf(law, 1.01 * scale, reach))[2],
    }


def _parser() -> Parser:
    parser = Parser("benchmarks.noise_draws", __doc__)
    parser.add_argument("--draws", type=integer(10**5, 10**9), default=10**7)
    parser.add_argument("--out", type=output_folder, default=RESULTS / "noise_draws")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    results = Results(
        options.out,
        key=("law", "scale"),
        fields=(
            *("draws", "single_us", "batch_us", "chi_square", "freedom", "p_value"),
            "p_value_wrong_scale",
        ),
        seeds=(),
        device="cpu",
        dtype="integer",
        settings={"draws": options.draws},
    )
    with parser.opened("--out", results):
        for law in LAWS:
            for scale in SCALES:
                if not results.done(law=law, scale=scale):
                    results.add([{"law": law, "scale": scale, **measure(law, scale, options.draws)}])
    table = read_rows(options.out)
    print(table.drop(columns="status").to_string(index=False))
    good = (table["p_value"] > LIMIT_P) & (table["single_us"] <= LIMIT_US) & (table["p_value_wrong_scale"] < LIMIT_P)
    print(f"{int(good.sum())} of {len(table)} within {LIMIT_US:g} us a draw and p > {LIMIT_P:g}")
    return 0 if good.all() else 1


if __name__ == "__main__":
    sys.exit(main())
