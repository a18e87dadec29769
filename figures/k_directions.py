"""K directions a step: certified and measured, at equal evaluations.  python -m figures.k_directions

(a) Certified bounds on ||grad F||^2 against K at the paper's setting (`benchmarks.k_directions`, directions on the
sphere), a line for each number of evaluations of a record; a star marks the best K. (b) A point for every problem and
epsilon of `benchmarks.certificates`: the factors by which the best K lowers the bound (across) and the measured mean
over the run (up), with standard errors. On the line both fall by the same factor.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.command import command
from figures.style import PAGE, label_panels, series

CELL = ["problem", "mode", "n", "d", "epsilon"]
PROBLEMS = {"pseudo-huber": "pseudo-Huber", "digits": "digits", "sst2": "SST-2"}


def gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each problem and epsilon for which the best number K of directions is not 1, with the ratio of
    the value for K = 1 to that for the best K: of the certified bound, the mean over the run, and the last iterate.

    rows: of `benchmarks.certificates`. A column error_NAME is the standard error of the ratio in NAME.
    """
    groups = rows.dropna(subset="gradient_squared").groupby([*CELL, "parameters"])
    values = groups[["bound", "gradient_squared", "last_gradient_squared"]]
    mean, error = values.mean(), values.sem()
    best_k = groups["directions_per_step"].first().xs("sharp-best-k", level="parameters")
    one, best = (mean.xs(name, level="parameters") for name in ("sharp", "sharp-best-k"))
    ratio = one / best
    relative = (error / mean) ** 2
    spread = ratio * np.sqrt(sum(relative.xs(name, level="parameters") for name in ("sharp", "sharp-best-k")))
    table = ratio.join(spread.add_prefix("error_")).join(best_k).dropna()
    return table[table["directions_per_step"] > 1].reset_index()


def draw(certified: pd.DataFrame, cells: pd.DataFrame) -> Figure:
    """Return the figure. certified has the rows of `benchmarks.k_directions`; cells has those of
    `benchmarks.certificates` with the preset full."""
    figure, axes = plt.subplots(1, 2, figsize=(PAGE, 3.0))
    _draw_certified(axes[0], certified)
    _draw_gains(axes[1], gains(cells))
    axes[0].set(xscale="log", yscale="log", xlabel="$K$, directions a step")
    ks = (1, 4, 16, 64, 256)
    axes[0].set_xticks(ks, [str(k) for k in ks])
    axes[0].minorticks_off()
    label_panels(axes)
    return figure


def _draw_certified(axis: Axes, rows: pd.DataFrame) -> None:
    part = rows[(rows["law"] == "sphere") & (rows["chosen"] == "K")]
    for index, budget in enumerate(sorted(part["budget"].unique(), key=lambda budget: budget or np.inf)):
        line = part[part["budget"] == budget]
        text = f"{budget:,} evaluations" if budget else "no cap"
        axis.plot(line["K"], line["bound"], **series(index).line(label=text))
        low = line.sort_values("bound", kind="stable").iloc[0]
        axis.plot(low["K"], low["bound"], "*", color=series(index).color, markersize=9, zorder=5)
    axis.set(
        title="certified, at equal evaluations (star: best $K$)",
        ylabel=r"certified $\|\nabla F_S\|^2$",
        ylim=(1.5e-3, 0.6),
    )
    axis.legend(loc="upper left", fontsize=6, handlelength=2)


def _draw_gains(axis: Axes, table: pd.DataFrame) -> None:
    for index, (problem, text) in enumerate(PROBLEMS.items()):
        part = table[table["problem"] == problem]
        look = series(index).line(linestyle="none", label=text)
        axis.errorbar(part["bound"], part["gradient_squared"], yerr=part["error_gradient_squared"], **look)
    line = [1.0, 1.05 * float(table["bound"].max())]
    axis.plot(line, line, color="0.4", linewidth=0.8, label="as certified")
    axis.axhline(1, color="0.4", linewidth=0.8, linestyle=(0, (1, 1.5)), label="no gain")
    axis.set(
        title="$K = 1$ over the best $K$", xlabel="ratio of the certificates", ylabel="ratio of the measured means"
    )
    axis.legend(loc="upper right", fontsize=6, handlelength=1.5)


_parser, main = command(
    "figures.k_directions",
    __doc__,
    draw,
    "k_directions",
    tables=("k_directions", "certificates"),
)

if __name__ == "__main__":
    sys.exit(main())
