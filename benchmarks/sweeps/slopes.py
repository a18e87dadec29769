"""How the sweeps' best errors grow with the dimension.  python -m benchmarks.selection && python -m benchmarks.slopes

For every method, mode and measurement in the rows of `benchmarks.selection`, log(value) = a + slope log(d) is fitted by
least squares, over all dimensions and over the largest three, which would show a saturation. The slope is the mean of
the seeds' slopes, with a 95% interval by Student's t, which is empty for one seed. There are rows for both ways of
choosing the run's parameters: on the seed that is reported (selection `own`), and on the other seeds (`held-out`).
`edge` is the share of problems whose chosen parameters are on an edge of the grid that costs more than 5%, so that the
slope is partly due to the grid.
"""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.remake import Remake
from benchmarks.kit.rows import RESULTS, read_manifest, read_rows
from benchmarks.kit.tables import half_width
from dpzero_theory.cli import Parser, input_folder

GROUP = ["sweep", "method", "mode", "start", "calibration", "output"]
KEY = (*GROUP, "measured", "range", "selection")
FIELDS = ("slope", "low", "high", "claimed", "claimed_here", "seeds", "edge")
RANGES = {"all": 0, "largest-3": -3}
CLAIMED = {
    ("dpgd-0th", "a"): 3 / 4,
    ("dpgd-0th", "b"): 5 / 8,
    ("dpgd-0th", "c"): 1 / 2,
    ("dpgd-0th", "fixed"): 1 / 2,
    ("dpzero", "a"): 1 / 4,
    ("dpzero", "b"): 1 / 8,
    ("dpzero", "c"): 0.0,
    ("dpzero", "fixed"): 0.0,
    ("dpgd", "a"): 1 / 4,
    ("dpgd", "b"): 1 / 8,
    ("dpgd", "c"): 0.0,
}
"""For each method and mode the power of d in the paper's upper bound on the gradient norm: half of that in Table
tab:compare, which is for the squared norm, with r = d (mode a), sqrt(d) (b), log d (c) or a constant (fixed)."""
GAP_GROWTH = {"a": 1 / 2, "b": 1 / 4, "c": 0.0, "fixed": 0.0}
"""What must be added to the powers in CLAIMED, by mode. The paper's table holds the gap F_S(x_0) - F_S^* fixed. Here it
is about r/2, which adds half the power with which r grows."""
CAP = 1.05
"""If the last value of a grid is better than the one before it by at most this ratio, the grid's edge counts as a limit
that is reached. Above it the best value may lie beyond the edge."""


def slope(d: ArrayLike, values: ArrayLike) -> float:
    """Return the least-squares slope of log(values) against log(d), natural logarithms: the power of d with which the
    values grow. All numbers must be positive, with at least two different d."""
    x = np.log(np.asarray(d, dtype=float))
    centred = x - x.mean()
    return float(centred @ np.log(np.asarray(values, dtype=float)) / (centred @ centred))


def interval(slopes: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the mean of the slopes, one per seed, and the ends of a 95% interval for its expectation, by Student's t.
    The ends are None for fewer than two slopes."""
    mean, half = float(np.mean(slopes)), half_width(slopes)
    return (mean, None, None) if len(slopes) < 2 else (mean, mean - half, mean + half)


def _fits(selected: pd.DataFrame) -> list[dict[str, str | float | None]]:
    rows = selected[selected["measured"] == "gradient"]
    fits: list[dict[str, str | float | None]] = []
    for keys, cells in rows.groupby(GROUP):
        sizes = cells.groupby("seed")["d"].nunique()
        # only the seeds that have all dimensions are used
        group = cells[cells["seed"].isin(sizes.index[sizes == sizes.max()])]
        names = dict(zip(GROUP, map(str, keys), strict=True))
        claimed = CLAIMED[names["method"], names["mode"]]
        bounds = {"claimed": claimed, "claimed_here": claimed + GAP_GROWTH[names["mode"]]}
        ways = [("own", "gradient_train", "own_train")]
        ways += [(cells["selection"].iloc[0], f"gradient_{on}", on) for on in ("train", "test")]
        for selection, measured, column in dict.fromkeys(ways):
            if group[column].isna().any() or (selection == "own" and column == "train"):
                continue
            for name, first in RANGES.items():
                taken = group[group["d"].isin(sorted(group["d"].unique())[first:])]
                slopes = [slope(part["d"], part[column]) for _, part in taken.groupby("seed")]
                mean, low, high = interval(slopes)
                edge = float((taken["beyond"].where(taken["edges"].notna(), 1) > CAP).mean())
                key = {**names, "measured": measured, "range": name, "selection": selection}
                fits.append(
                    {**key, "slope": mean, "low": low, "high": high, **bounds, "seeds": len(slopes), "edge": edge}
                )
    return fits


REMAKES = {"slopes": Remake(KEY, lambda row: _fits(read_rows(RESULTS / "selection")))}


def _source(options: Namespace) -> dict[str, Any]:
    return {"rows": {options.rows.name: read_manifest(options.rows)["sha256"]}}


def _check(parser: Parser, options: Namespace) -> None:
    if options.out.resolve() == options.rows.resolve():
        parser.error(f"--out must not be the folder of --rows; got {str(options.out)!r}")
    with parser.refusals("--rows"):
        options.selected = read_rows(options.rows)


EXPERIMENT = Experiment(
    name="slopes",
    about=__doc__,
    flags=[
        flag("--rows", type=input_folder(), default=RESULTS / "selection", help="folder of selected rows"),
    ],
    key=KEY,
    fields=FIELDS,
    seeds=lambda options: sorted({int(seed) for seed in options.selected["seed"]}),
    settings=_source,
    figure="figures.synthetic",
    fresh=True,
    check=_check,
    measure=lambda options, at: _fits(options.selected),
)
