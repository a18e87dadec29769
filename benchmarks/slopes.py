"""How the sweeps' best errors grow with the dimension.  python -m benchmarks.slopes

Reads the rows of `benchmarks.synthetic` and `benchmarks.dimension`, those that are there, and for every method, mode
and measurement takes the best value of the grid in each cell and seed and fits log(best) = a + slope log(d) by
least squares, over all dimensions and over the largest three, where saturation would show. The slope is the mean of
the seeds' slopes, with a 95% interval from Student's t; the interval is empty with one seed. The best grid point is
that of the training measurement, as a parameter search finds it.
"""

import sys
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import t as student

from benchmarks.kit.rows import RESULTS, Results, discard, read_manifest, read_rows
from dpzero_theory.cli import Parser, input_folder, output_folder

__all__ = ["best_rows", "interval", "main", "slope"]

CELL = ["method", "mode", "start", "calibration", "d", "seed"]
KEY = ("sweep", "method", "mode", "start", "calibration", "output", "measured", "range")
FIELDS = ("slope", "low", "high", "claimed", "claimed_here", "seeds")
RANGES = {"all": 0, "largest-3": -3}
CLAIMED = {
    ("dpgd-0th", "a"): 3 / 4,
    ("dpgd-0th", "b"): 5 / 8,
    ("dpgd-0th", "c"): 1 / 2,
    ("dpzero", "a"): 1 / 4,
    ("dpzero", "b"): 1 / 8,
    ("dpzero", "c"): 0.0,
    ("dpgd", "a"): 1 / 4,
    ("dpgd", "b"): 1 / 8,
    ("dpgd", "c"): 0.0,
}
"""Exponents of d in the gradient norm's upper bounds: half of those of Table tab:compare at r = d, sqrt(d), log d."""
SWEEPS = {
    "synthetic": ("synthetic", "synthetic_dpgd"),
    "wide": ("synthetic_wide",),
    "choices": ("synthetic_choices",),
    "dimension": ("dimension",),
}
"""The folders of each sweep's rows; dimensions that not every seed of a method has are left out."""
GAP_GROWTH = {"a": 1 / 2, "b": 1 / 4, "c": 0.0}
"""What they gain here, where F_S(x_0) - F_S^*, which the table holds fixed, is about r/2: half the exponent of r."""


def best_rows(rows: pd.DataFrame, output: str, what: str = "gradient") -> pd.DataFrame:
    """The row of each cell and seed whose `what` of `output` is the smallest on the training set."""
    column = f"{what}_train_{output}"
    return rows.loc[rows.groupby(CELL)[column].idxmin()].reset_index(drop=True)


def slope(d: ArrayLike, values: ArrayLike) -> float:
    """Least-squares slope of log(values) against log(d)."""
    x = np.log(np.asarray(d, dtype=float))
    centred = x - x.mean()
    return float(centred @ np.log(np.asarray(values, dtype=float)) / (centred @ centred))


def interval(slopes: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean and 95% interval of its expectation; no interval for fewer than two values."""
    mean, count = float(np.mean(slopes)), len(slopes)
    if count < 2:
        return mean, None, None
    half = float(student.ppf(0.975, count - 1)) * float(np.std(slopes, ddof=1)) / np.sqrt(count)
    return mean, mean - half, mean + half


def _parser() -> Parser:
    parser = Parser("benchmarks.slopes", __doc__)
    parser.add_argument("--rows", type=input_folder(), default=RESULTS, help="folder of the sweeps' folders")
    parser.add_argument("--out", type=output_folder, default=RESULTS / "slopes")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Fit the slopes of the committed rows anew."""
    parser = _parser()
    options = parser.parse_args(argv)
    if any(options.out.resolve() == (options.rows / name).resolve() for names in SWEEPS.values() for name in names):
        parser.error(f"--out must not be the folder of a sweep; got {str(options.out)!r}")
    sweeps: dict[str, pd.DataFrame] = {}
    source: dict[str, str] = {}
    with parser.refusals("--rows"):
        for sweep, names in SWEEPS.items():
            folders = [options.rows / name for name in names if (options.rows / name / "manifest.json").exists()]
            if folders:
                sweeps[sweep] = pd.concat([read_rows(folder) for folder in folders], ignore_index=True)
                source |= {folder.name: read_manifest(folder)["sha256"] for folder in folders}
    if not sweeps:
        parser.error(f"--rows must be a folder with rows of {', '.join(SWEEPS)}; got {str(options.rows)!r}")
    if "dimension" in sweeps:
        sweeps["dimension"] = _as_synthetic(sweeps["dimension"])
    discard(options.out)
    results = Results(
        options.out,
        key=KEY,
        fields=FIELDS,
        seeds=sorted({int(seed) for rows in sweeps.values() for seed in rows["seed"]}),
        device="cpu",
        dtype="float64",
        settings={"rows": source},
        figure="figures.synthetic",
    )
    with parser.opened("--out", results):
        for sweep, rows in sweeps.items():
            results.add(_fits(sweep, rows))
    return 0


def _as_synthetic(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of `benchmarks.dimension` with the columns of `benchmarks.synthetic`."""
    return rows.assign(
        mode="c",
        start="zero",
        calibration="exact",
        gradient_train_tau=np.sqrt(rows["gradient_squared"]),
        gradient_train_last=np.sqrt(rows["last_gradient_squared"]),
    )


def _fits(sweep: str, rows: pd.DataFrame) -> list[dict[str, str | float | None]]:
    fits: list[dict[str, str | float | None]] = []
    outputs = [output for output in ("last", "average", "tau") if f"gradient_train_{output}" in rows]
    for output in outputs:
        best = best_rows(rows, output)
        for keys, cells in best.groupby(["method", "mode", "start", "calibration"]):
            runs = cells.groupby("d")["seed"].nunique()
            group = cells[cells["d"].isin(runs.index[runs == cells["seed"].nunique()])]  # dimensions of every seed
            for measured in ("gradient_train", "gradient_test"):
                if f"{measured}_{output}" not in rows:
                    continue
                for name, first in RANGES.items():
                    slopes = [
                        slope(part["d"].iloc[first:], part[f"{measured}_{output}"].iloc[first:])
                        for _, part in group.sort_values("d").groupby("seed")
                    ]
                    mean, low, high = interval(slopes)
                    names = dict(zip(KEY, (sweep, *map(str, keys), output, measured, name), strict=True))
                    claimed = CLAIMED[names["method"], names["mode"]]
                    bounds = {"claimed": claimed, "claimed_here": claimed + GAP_GROWTH[names["mode"]]}
                    fits.append({**names, "slope": mean, "low": low, "high": high, **bounds, "seeds": len(slopes)})
    return fits


if __name__ == "__main__":
    sys.exit(main())
