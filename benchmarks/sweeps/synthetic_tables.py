"""The tables of the synthetic experiment's page, from the rows of `benchmarks.selection` and `benchmarks.slopes`."""

from itertools import product

import pandas as pd

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown, mean_error
from benchmarks.sweeps.slopes import CAP

METHODS = {"dpzero": "DPZero", "dpgd-0th": "DPGD-0th", "dpgd": "DP-GD"}
MODES = "abc"
ITERATES = {"tau": "x_tau", "last": "last"}
SIZES = (20, 200, 2_000)


def _selected(sweep: str) -> pd.DataFrame:
    rows = read_rows(RESULTS / "selection")
    at = (rows["sweep"] == sweep) & (rows["measured"] == "gradient") & rows["output"].isin(list(ITERATES))
    return rows[at & (rows["start"] == "zero") & (rows["calibration"] == "paper")]


def _groups() -> list[tuple[str, str, str]]:
    return list(product(ITERATES, METHODS, MODES))


def slopes() -> str:
    """Return a table of slopes of the log gradient norm in log d, with 95% intervals over seeds, for parameters chosen
    on other seeds: from the paper's grid, from a grid that also has longer runs, and in the limit of many steps. The
    last column has the paper's bound on the slope."""
    rows = read_rows(RESULTS / "slopes")
    rows = rows[(rows["measured"] == "gradient_train") & (rows["start"] == "zero")]
    lines = []
    for output, method, mode in _groups():
        fits = rows[(rows["output"] == output) & (rows["method"] == method) & (rows["mode"] == mode)]
        grid, long, limit = (fits[fits["sweep"] == sweep] for sweep in ("synthetic", "long", "limit"))
        everywhere = grid[grid["range"] == "all"]
        shown = [
            _slope(everywhere[everywhere["selection"] == "held-out"]),
            _slope(long[long["range"] == "all"]),
            _slope(limit[limit["range"] == "all"].sort_values("selection")),
        ]
        bounds = everywhere.iloc[0]
        lines.append(
            [ITERATES[output], METHODS[method], mode, *shown, f"{bounds['claimed']:g} ({bounds['claimed_here']:g})"]
        )
    return markdown(["iterate", "method", "mode", "T to 5,120", "T to 81,920", "T to infinity", "bound (here)"], lines)


def _slope(fit: pd.DataFrame) -> str:
    if fit.empty:
        return ""
    row = fit.iloc[0]
    ends = "" if pd.isna(row["low"]) else f" ({row['low']:.2f} to {row['high']:.2f})"
    return f"{row['slope']:.2f}{ends}"


def to_infinity() -> str:
    """Return a table of DPZero's gradient norms at d = 2,000 (means over seeds) as the grid gets more steps T, with
    what the last doubling of T gains. Beside them it has those of DP-GD on the paper's grid."""
    tables = {sweep: _selected(sweep) for sweep in ("synthetic", "long", "limit")}
    lines = []
    for output, mode in product(ITERATES, MODES):
        cells = {sweep: _cell(table, output, "dpzero", mode, SIZES[-1]) for sweep, table in tables.items()}
        values = [float(cell["train"].mean()) for cell in cells.values()]
        dpgd = float(_cell(tables["synthetic"], output, "dpgd", mode, SIZES[-1])["train"].mean())
        gain = float(cells["long"]["beyond"].median())
        shown = [f"{value:.3g}" for value in (*values, dpgd)]
        shown[1] += f" ({gain:.2f})" if gain > CAP else ""
        lines.append([ITERATES[output], mode, *shown, f"{values[2] / dpgd:.2f}"])
    header = ["iterate", "mode", "DPZero, T to 5,120", "T to 81,920", "T to infinity", "DP-GD"]
    return markdown([*header, "the last two's ratio"], lines)


def _cell(rows: pd.DataFrame, output: str, method: str, mode: str, d: int) -> pd.DataFrame:
    at = (rows["method"] == method) & (rows["mode"] == mode) & (rows["d"] == d) & (rows["output"] == output)
    return rows[at]


def ratios() -> str:
    """Return a table of DPZero's gradient norm over DP-GD's on the same problem, at three dimensions: means of the
    ratio over the seeds that both have, with parameters chosen on other seeds."""
    rows = _selected("synthetic")
    lines = []
    for output, mode in product(ITERATES, MODES):
        cells = [[_cell(rows, output, method, mode, d) for method in ("dpzero", "dpgd")] for d in SIZES]
        lines.append([ITERATES[output], mode, *(_ratio(*pair) for pair in cells)])
    return markdown(["iterate", "mode", *(f"d = {d:,}" for d in SIZES)], lines)


def _ratio(above: pd.DataFrame, below: pd.DataFrame) -> str:
    each = (above.set_index("seed")["train"] / below.set_index("seed")["train"]).dropna()
    return mean_error(each, ".2f")


TABLES = {
    "synthetic_slopes": slopes,
    "synthetic_limit": to_infinity,
    "synthetic_ratios": ratios,
}
