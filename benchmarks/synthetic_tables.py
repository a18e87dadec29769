"""The tables of the synthetic experiment's page, from the rows of `benchmarks.selection` and `benchmarks.slopes`."""

import pandas as pd

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown
from benchmarks.slopes import CAP, slope

__all__ = ["slopes", "steps", "to_infinity"]

METHODS = {"dpzero": "DPZero", "dpgd-0th": "DPGD-0th", "dpgd": "DP-GD"}
ITERATES = {"tau": "x_tau", "last": "last"}
SAME = ["output", "method", "mode"]


def _selected(sweep: str) -> pd.DataFrame:
    rows = read_rows(RESULTS / "selection")
    at = (rows["sweep"] == sweep) & (rows["measured"] == "gradient") & rows["output"].isin(list(ITERATES))
    return rows[at & (rows["start"] == "zero") & (rows["calibration"] == "paper")]


def _groups() -> list[tuple[str, str, str]]:
    return [(output, method, mode) for output in ITERATES for method in METHODS for mode in "abc"]


def steps() -> str:
    """T that is chosen most often in each cell; in brackets what the ends of the grid cost, where over 5%."""
    rows = _selected("synthetic")
    sizes = sorted(rows["d"].unique())
    lines = []
    for output, method, mode in _groups():
        cells = rows[(rows["output"] == output) & (rows["method"] == method) & (rows["mode"] == mode)]
        shown = [_chosen(cells[cells["d"] == d]) for d in sizes]
        lines.append([ITERATES[output], METHODS[method], mode, *shown])
    return markdown(["iterate", "method", "mode", *(f"d = {d:,}" for d in sizes)], lines)


def _chosen(cell: pd.DataFrame) -> str:
    most, cost = int(cell["steps"].mode().iloc[0]), float(cell["beyond"].median())
    return f"{most:,} ({cost:.2f})" if cost > CAP else f"{most:,}"


def slopes() -> str:
    """Slopes in d with 95% intervals over seeds: settings chosen on the seed itself, on others, with more steps."""
    rows = read_rows(RESULTS / "slopes")
    rows = rows[(rows["measured"] == "gradient_train") & (rows["start"] == "zero")]
    lines = []
    for output, method, mode in _groups():
        fits = rows[(rows["output"] == output) & (rows["method"] == method) & (rows["mode"] == mode)]
        grid, long, limit = (fits[fits["sweep"] == sweep] for sweep in ("synthetic", "long", "limit"))
        everywhere = grid[grid["range"] == "all"]
        shown = [
            f"{_of_one_seed(output, mode):.2f}"
            if method == "dpgd"
            else _slope(everywhere[everywhere["selection"] == "own"]),
            _slope(everywhere[everywhere["selection"] == "held-out"]),
            _slope(grid[(grid["range"] == "largest-3") & (grid["selection"] == "held-out")]),
            _slope(long[long["range"] == "all"]),
            _slope(limit[limit["range"] == "all"].sort_values("selection")),
        ]
        bounds = everywhere.iloc[0]
        lines.append(
            [ITERATES[output], METHODS[method], mode, *shown, f"{bounds['claimed']:g} ({bounds['claimed_here']:g})"]
        )
    header = ["iterate", "method", "mode", "own seed", "other seeds", "the same, largest three d"]
    return markdown([*header, "T to 81,920", "T to infinity", "bound (here)"], lines)


def _of_one_seed(output: str, mode: str) -> float:
    """DP-GD's, on the seed that has the whole grid."""
    rows = read_rows(RESULTS / "synthetic_dpgd")
    best = rows[rows["mode"] == mode].groupby("d")[f"gradient_train_{output}"].min()
    return slope(best.index.to_numpy(), best.to_numpy())


def _slope(fit: pd.DataFrame) -> str:
    if fit.empty:
        return ""
    row = fit.iloc[0]
    ends = "" if pd.isna(row["low"]) else f" ({row['low']:.2f} to {row['high']:.2f})"
    return f"{row['slope']:.2f}{ends}"


def to_infinity() -> str:
    """x_tau as T grows, beside DP-GD's on the paper's grid: means over seeds."""
    tables = {sweep: _selected(sweep) for sweep in ("synthetic", "long", "limit")}
    lines = []
    for mode in "abc":
        for d in (20, 200, 2_000):
            values = [_value(tables[sweep], "dpzero", mode, d) for sweep in tables]
            dpgd = _value(tables["synthetic"], "dpgd", mode, d)
            lines.append([mode, f"{d:,}", *(f"{value:.3g}" for value in (*values, dpgd)), f"{values[2] / dpgd:.2f}"])
    header = ["mode", "d", "DPZero, T to 5,120", "T to 81,920", "T to infinity", "DP-GD", "the last two's ratio"]
    return markdown(header, lines)


def _value(rows: pd.DataFrame, method: str, mode: str, d: int) -> float:
    at = (rows["method"] == method) & (rows["mode"] == mode) & (rows["d"] == d) & (rows["output"] == "tau")
    return float(rows[at]["train"].mean())
