"""The tables of `benchmarks.rank`. The parameters of a run are chosen on other seeds than those reported."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown, mean_error
from benchmarks.sweeps.selection import OF_RANK, as_synthetic, select
from benchmarks.sweeps.slopes import interval, slope
from benchmarks.sweeps.synthetic_tables import ITERATES

METHODS = {"dpzero": "DPZero", "dpgd-0th": "DPGD-0th"}
SPECTRA = {"rank": "r = 5.0", "log": "r like log d"}
LAWS = {"sphere": "sphere", "gaussian": "Gaussian", "rademacher": "random signs"}


def dimension() -> str:
    """Return a table by dimension d of the gradient norm that the methods reach, a mean over seeds, and of its slope in
    d on logarithmic axes with a 95% interval over seeds. Below the methods of each spectrum one row has the peak memory
    of the runs of one problem, the largest over seeds, and another row their processor time, the mean over seeds."""
    rows, selected = read_rows(RESULTS / "rank"), read_rows(RESULTS / "selection")
    fits = read_rows(RESULTS / "slopes").query("measured == 'gradient_train' and selection == 'held-out'")
    sizes = sorted(selected[selected["sweep"].isin(list(OF_RANK))]["d"].unique())
    lines = []
    for sweep, (experiment, _) in OF_RANK.items():
        for output, iterate in ITERATES.items():
            for method, name in METHODS.items():
                at = f"sweep == '{sweep}' and method == '{method}' and output == '{output}'"
                by_d = selected.query(at).groupby("d")["train"]
                (fit,) = fits.query(f"{at} and range == 'all'").to_dict("records")
                shown = f"{fit['slope']:.3f} ({fit['low']:.3f} to {fit['high']:.3f})"
                lines.append([SPECTRA[sweep], iterate, name, *(f"{mean:.3g}" for mean in by_d.mean()), shown])
        cells = rows[rows["experiment"] == experiment].drop_duplicates(["d", "seed"]).groupby("d")
        lines.append([SPECTRA[sweep], "", "memory, MB", *(f"{peak:.0f}" for peak in cells["peak_mb"].max()), ""])
        lines.append([SPECTRA[sweep], "", "seconds", *(f"{mean:.1f}" for mean in cells["cpu_s"].mean()), ""])
    return markdown(["spectrum", "iterate", "", *(f"d = 10^{len(f'{d}') - 1}" for d in sizes), "slope in d"], lines)


def others() -> str:
    """Return a table of the gradient norm as one thing varies: the effective rank r, the law of the directions, a
    rotation of the Hessian, or the number K of directions per step. Errors are standard errors over seeds."""
    rows = read_rows(RESULTS / "rank")
    lines = []
    for varied, (experiment, column, said) in _VARIED.items():
        found = dict(_by(rows, experiment, column, said))
        lines += [[varied, value, *(_shown(chosen, *of) for of in _COLUMNS)] for value, chosen in found.items()]
        if experiment == "rank":
            whole = pd.concat(found.values())
            lines.append([varied, "slope in r", *(_slope(whole, *of) for of in _COLUMNS)])
    header = [f"{METHODS[method]}, {ITERATES[output]}" for method, output in _COLUMNS]
    return markdown(["varied", "", *header], lines)


_COLUMNS = [(method, output) for method in METHODS for output in ITERATES]
_VARIED: Mapping[str, tuple[str, str, Callable[[Any], str]]] = {
    "rank, d = 10^4": ("rank", "r", lambda r: f"r = {r:.2f}"),
    "law, d = 200": ("law", "law", LAWS.__getitem__),
    "law, A turned": ("rotated", "law", LAWS.__getitem__),
    "K, equal evaluations, d = 10^4": ("directions", "directions", lambda k: f"K = {k}"),
}
"""For each experiment, by its title in the table: its name in the rows, the column that varies, and a function that
writes a value of that column as text."""


def _by(
    rows: pd.DataFrame, experiment: str, column: str, said: Callable[[Any], str]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield for every value of `column` in an experiment a text, which `said` makes of the value, and the rows that
    `benchmarks.selection` gives for that value alone. For each seed they have the parameters that are best on the other
    seeds, once at the last iterate and once at x_tau, the iterate at a random step. The effective rank of the problems
    is added to them as the column `r`."""
    for value, part in rows[rows["experiment"] == experiment].groupby(column, sort=False):
        table = as_synthetic(part, experiment, "fixed")
        chosen = pd.DataFrame([row for output in ITERATES for row in select(table, "gradient", output)])
        yield said(value), chosen.assign(r=part["r"].iloc[0])


def _shown(chosen: pd.DataFrame, method: str, output: str) -> str:
    values = chosen[(chosen["method"] == method) & (chosen["output"] == output)]["train"]
    return mean_error(values, ".3g") if len(values) else ""


def _slope(chosen: pd.DataFrame, method: str, output: str) -> str:
    """Return the slope of a method's log gradient norm in log r, with r the effective rank, as text with a 95% interval
    over seeds. `output` says whether the norm is at the last iterate or at x_tau. `chosen` has the rows of the chosen
    parameters by r and seed."""
    part = chosen[(chosen["method"] == method) & (chosen["output"] == output)]
    mean, low, high = interval([slope(of["r"], of["train"]) for _, of in part.groupby("seed")])
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


TABLES = {"rank_dimension": dimension, "rank_others": others}
