"""Certificates and measurements, the paper's and the sharpened theorem's.  python -m figures.certificates

Top: against the dimension in the paper's three modes, and against epsilon on the digits. Bottom: against the number of
samples and epsilon in mode c, and against epsilon on SST-2. A filled marker is the mean over seeds of the mean over
iterates of ||grad F||^2, with its standard error; an open one is the upper bound that the theorem certifies for it.
Both theorems' parameters evaluate a record equally often; the sharpened theorem has its best K, which takes fewer steps
of more directions. The grey line is the trivial bound L^2.
"""

import sys
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.kit.rows import RESULTS
from figures.command import command
from figures.style import PAGE, Series, label_panels, log_ticks, series

CELL = ["problem", "mode", "n", "d", "epsilon", "parameters"]
SETS = {
    "paper": "Theorem 3",
    "sharp-best-k": "sharpened",
}
LOOKS: dict[str, Series] = {
    "paper": series(1),
    "sharp-best-k": series(0),
}


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row for each problem, epsilon and set of parameters: the certified bound, the trivial bound
    L^2 (L is the Lipschitz constant), and over seeds the mean of what was measured, ||grad F||^2, with its standard
    error."""
    groups = rows.groupby(CELL, as_index=False)
    return groups.agg(
        bound=("bound", "first"),
        trivial=("trivial_bound", "first"),
        mean=("gradient_squared", "mean"),
        error=("gradient_squared", "sem"),
        last=("last_gradient_squared", "mean"),
        steps=("steps", "first"),
        directions=("directions_per_step", "first"),
        seeds=("gradient_squared", "count"),
    )


def draw(rows: pd.DataFrame) -> Figure:
    """Return the figure of the rows of `benchmarks.certificates` with the preset full."""
    table = summarise(rows[rows["parameters"].isin(LOOKS)])
    figure, grid = plt.subplots(2, 4, figsize=(PAGE, 4.2))
    huber = table[table["problem"] == "pseudo-huber"]
    for axis, mode, trace in zip(grid[0, :3], "abc", ("d", r"\sqrt{d}", r"\log d"), strict=True):
        part = huber[(huber["mode"] == mode) & (huber["n"] == 1000) & (huber["epsilon"] == 8.0)]
        _panel(axis, part, "d", f"mode {mode}: $r$ like ${trace}$", r"$d$  ($n=10^3,\ \varepsilon=8$)")
    for axis in grid[0, :3]:
        axis.set_xlim(12, 1.7e5)
    mode_c = huber[huber["mode"] == "c"]
    one = mode_c["steps"].where(mode_c["directions"] == 1)
    uncapped = one.groupby([mode_c["n"], mode_c["d"], mode_c["epsilon"]]).transform("nunique") == 1
    samples = mode_c[(mode_c["d"] == 20) & (mode_c["epsilon"] == 2.0) & uncapped]
    _panel(grid[1, 0], samples, "n", "mode c", r"$n$  ($d=20,\ \varepsilon=2$)")
    by_epsilon = mode_c[(mode_c["d"] == 200) & (mode_c["n"] == 10_000)]
    _panel(grid[1, 1], by_epsilon, "epsilon", "mode c", r"$\varepsilon$  ($n=10^4,\ d=200$)")
    real = {
        name: (axis, table[table["problem"] == name]) for name, axis in (("digits", grid[0, 3]), ("sst2", grid[1, 2]))
    }
    for name, (axis, part) in real.items():
        told = {"digits": "digits", "sst2": "SST-2"}[name]
        _panel(axis, part, "epsilon", f"logistic, {told}", r"$\varepsilon$")
    for axis in grid[:, 0]:
        axis.set_ylabel(r"$\|\nabla F_S\|^2$")
    drawn = [axis for axis in grid.flat if axis is not grid[1, 3]]
    for axis in drawn:
        log_ticks(axis.xaxis)
        log_ticks(axis.yaxis)
    for axis, part in ((grid[1, 1], by_epsilon), *real.values()):
        ticks = sorted(part["epsilon"].unique())
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    grid[0, 0].annotate(
        "trivial: $L^2$", (1, 1), (0, 2), ("axes fraction", "data"), "offset points", fontsize=6, ha="right"
    )
    label_panels(drawn)
    grid[1, 3].axis("off")
    _legend(grid[1, 3])
    return figure


TRIVIAL: dict[str, Any] = {"color": "#888888", "linewidth": 0.8, "linestyle": (0, (1, 1.5))}
"""The line style of the trivial bound, the squared Lipschitz constant, which holds without any theorem."""


def _panel(axis: Axes, table: pd.DataFrame, x: str, title: str, label: str) -> None:
    for name, look in LOOKS.items():
        for _, group in table[table["parameters"] == name].groupby(["problem"]):
            line = group.sort_values(x)
            axis.plot(line[x], line["bound"], **_certified(look))
            ran = line[line["seeds"] > 0]
            axis.errorbar(ran[x], ran["mean"], yerr=ran["error"], **_measured(look))
    for _, group in table.groupby("problem"):
        axis.axhline(float(group["trivial"].iloc[0]), **TRIVIAL)
    axis.set(xscale="log", yscale="log", title=title, xlabel=label)


def _certified(look: Series) -> dict[str, Any]:
    return look.line(linestyle=(0, (3, 1.5)), markerfacecolor="white", markeredgecolor=look.color, markeredgewidth=1)


def _measured(look: Series) -> dict[str, Any]:
    return look.line(linestyle="-")


def _legend(axis: Axes) -> None:
    handles, labels = [], []
    for name, look in LOOKS.items():
        handles += [Line2D([], [], **style(look)) for style in (_certified, _measured)]
        labels += [f"{SETS[name]}: certified", f"{SETS[name]}: measured"]
    axis.legend(handles, labels, loc="center", fontsize=7)


_parser, main = command("figures.certificates", __doc__, draw, "certificates", rows=RESULTS / "certificates")

if __name__ == "__main__":
    sys.exit(main())
