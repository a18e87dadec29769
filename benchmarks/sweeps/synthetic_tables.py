"""The tables of the synthetic experiment's page, from the rows of `benchmarks.selection` and `benchmarks.slopes`."""

from itertools import product

import pandas as pd

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown, mean_error
from benchmarks.sweeps.slopes import CAP, slope

METHODS = {"dpzero": "DPZero", "dpgd-0th": "DPGD-0th", "dpgd": "DP-GD"}
MODES = "abc"
ITERATES = {"tau": "x_tau", "last": "last"}
SAME = ["output", "method", "mode"]


def _selected(sweep: str) -> pd.DataFrame:
    rows = read_rows(RESULTS / "selection")
    at = (rows["sweep"] == sweep) & (rows["measured"] == "gradient") & rows["output"].isin(list(ITERATES))
    return rows[at & (rows["start"] == "zero") & (rows["calibration"] == "paper")]


def _groups() -> list[tuple[str, str, str]]:
    return list(product(ITERATES, METHODS, MODES))


def steps() -> str:
    """Return a table of the number of steps T that is chosen most often, by iterate, method, spectrum (mode) and
    dimension. In brackets it has what is lost because the best parameters lie on an edge of the grid, if that is over
    5%."""
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
    """Return a table of slopes of the log gradient norm in log d, with 95% intervals over seeds: for parameters chosen
    on the reported seed itself, on other seeds, and on other seeds from a grid that also has longer runs. Further
    columns have the slope over the three largest d, the slope in the limit of many steps, and a proved bound on it."""
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
    """Return DP-GD's slope for a spectrum (`mode`) on the one seed for which its whole grid was run. `output` is "last"
    or "tau"."""
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
    """Return a table of DPZero's gradient norms (means over seeds) as the grid gets more steps T, with what the last
    doubling of T gains. Beside them it has those of DP-GD on the paper's grid."""
    tables = {sweep: _selected(sweep) for sweep in ("synthetic", "long", "limit")}
    lines = []
    for output, mode, d in product(ITERATES, MODES, (20, 200, 2_000)):
        cells = {sweep: _cell(table, output, "dpzero", mode, d) for sweep, table in tables.items()}
        values = [float(cell["train"].mean()) for cell in cells.values()]
        dpgd = float(_cell(tables["synthetic"], output, "dpgd", mode, d)["train"].mean())
        gain = float(cells["long"]["beyond"].median())
        shown = [f"{value:.3g}" for value in (*values, dpgd)]
        shown[1] += f" ({gain:.2f})" if gain > CAP else ""
        lines.append([ITERATES[output], mode, f"{d:,}", *shown, f"{values[2] / dpgd:.2f}"])
    header = ["iterate", "mode", "d", "DPZero, T to 5,120", "T to 81,920", "T to infinity", "DP-GD"]
    return markdown([*header, "the last two's ratio"], lines)


def _cell(rows: pd.DataFrame, output: str, method: str, mode: str, d: int) -> pd.DataFrame:
    at = (rows["method"] == method) & (rows["mode"] == mode) & (rows["d"] == d) & (rows["output"] == output)
    return rows[at]


def ratios() -> str:
    """Return a table of each zeroth-order method's gradient norm over DP-GD's on the same problem: means of the ratio
    over the seeds that both have, with parameters chosen on other seeds."""
    rows = _selected("synthetic")
    sizes = sorted(rows["d"].unique())
    lines = []
    for output, method, mode in product(ITERATES, ("dpzero", "dpgd-0th"), MODES):
        cells = [[_cell(rows, output, name, mode, d) for name in (method, "dpgd")] for d in sizes]
        lines.append([ITERATES[output], METHODS[method], mode, *(_ratio(*pair) for pair in cells)])
    return markdown(["iterate", "over DP-GD's", "mode", *(f"d = {d:,}" for d in sizes)], lines)


def _ratio(above: pd.DataFrame, below: pd.DataFrame) -> str:
    each = (above.set_index("seed")["train"] / below.set_index("seed")["train"]).dropna()
    return mean_error(each, ".2f")


def choices() -> str:
    """Return a table for what the paper leaves open: by how much the start and the noise calibration change the
    gradient norm at the largest d, and the least ratio of DPGD-0th's gradient norm to DPZero's."""
    rows = read_rows(RESULTS / "selection").query("sweep == 'choices' and measured == 'gradient'")
    largest = rows[rows["d"] == rows["d"].max()]
    lines = []
    for output, mode in product(ITERATES, MODES):
        cells = {method: _cell(largest, output, method, mode, largest["d"].max()) for method in ("dpzero", "dpgd-0th")}
        each = [cell.set_index(["start", "calibration"])["train"] for cell in cells.values()]
        moved = [f"{values.max() / values.min():.2f}" for values in each]
        lines.append([ITERATES[output], mode, *moved, f"{(each[1] / each[0]).min():.2f}"])
    header = ["iterate", "mode", "DPZero, largest over least", "DPGD-0th, largest over least"]
    return markdown([*header, "DPGD-0th over DPZero, at least"], lines)


def products_of_dpgd() -> str:
    """Return a table by d, over the three modes together, of where DP-GD's processor time goes, and of how long its
    matrix products would take at the machine's peak speed."""
    rows = read_rows(RESULTS / "dpgd_products").set_index(["mode", "d"])
    rows["grid_s"] = read_rows(RESULTS / "synthetic_dpgd_seconds").set_index(["mode", "d"])["cpu_s"]
    rows["speed"] = rows["gflops"] / rows["peak_gflops"]
    rows["least_s"] = rows["grid_s"] * rows["product_share"] * rows["speed"]
    by_d = rows.groupby("d")
    lines = [[f"{d:,}", *_spent(part)] for d, part in by_d]
    header = ["d", "lane steps with products", "time in them", "speed, of the peak"]
    header += ["minutes of the grid", "of its products at the peak"]
    return markdown(header, [*lines, ["all", *_spent(rows)]])


def _spent(part: pd.DataFrame) -> list[str]:
    shares = [
        part["clipping_lane_steps"].sum() / part["lane_steps"].sum(),
        part["product_s"].sum() / part["total_s"].sum(),
        (part["speed"] * part["product_s"]).sum() / part["product_s"].sum(),
    ]
    return [*(f"{share:.0%}" for share in shares), *(f"{part[name].sum() / 60:.1f}" for name in ("grid_s", "least_s"))]


TABLES = {
    "synthetic_steps": steps,
    "synthetic_slopes": slopes,
    "synthetic_limit": to_infinity,
    "synthetic_ratios": ratios,
    "synthetic_choices": choices,
    "dpgd_products": products_of_dpgd,
}
