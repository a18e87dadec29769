"""The paper's synthetic figures from our sweep.  python -m figures.synthetic

synthetic_gradient and synthetic_loss are Figures fig:toy_grad and fig:toy_loss: the best of the grid against the
dimension, in the paper's three modes, on training and test samples. synthetic_slopes puts the fitted growth of the
gradient norm beside the exponents of Table tab:compare; synthetic_grid shows the whole grid at one dimension.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.results import RESULTS, read_rows
from figures.style import FIGURES, PAGE, label_panels, log_ticks, save, series, use_style

__all__ = ["draw_best", "draw_grid", "draw_slopes", "main"]

METHODS = {"dpzero": "DPZero", "dpgd-0th": "DPGD-0th", "dpgd": "DP-GD"}
LOOKS = dict(zip(METHODS, (series(0), series(1), series(2)), strict=True))
MODES = {"a": r"$\mathrm{tr}(A)=O(d)$", "b": r"$\mathrm{tr}(A)=O(\sqrt{d})$", "c": r"$\mathrm{tr}(A)=O(\log d)$"}
SAMPLES = {"train": "training", "test": "test"}

BOUNDS: dict[str, dict[str, Any]] = {
    "claimed": {"color": "#999999", "linewidth": 0.9},
    "claimed_here": {"color": "black", "linewidth": 0.9},
}


def draw_best(rows: pd.DataFrame, what: str) -> Figure:
    """Best of the grid against d; what: 'gradient' or 'loss'. Lines: the last iterate; thin: the mean over iterates.

    The best grid point is that of the mean over seeds of the training measurement; bars are standard errors.
    """
    figure, grid = plt.subplots(2, 3, figsize=(PAGE, 4.4), sharex=True, sharey="col")
    for line, (on, sample) in zip(grid, SAMPLES.items(), strict=True):
        for axis, mode in zip(line, MODES, strict=True):
            for method in METHODS:
                part = rows[(rows["mode"] == mode) & (rows["method"] == method)]
                if len(part):
                    _curve(axis, part, method, what, on)
            axis.set(xscale="log", yscale="log", title=MODES[mode])
        name = r"$\|\nabla F\|$" if what == "gradient" else "loss"
        line[0].set_ylabel(f"{sample} {name}")
    for axis in grid[1]:
        axis.set_xlabel("dimension $d$")
    for axis in grid.flat:
        log_ticks(axis.xaxis)
        log_ticks(axis.yaxis)
    label_panels(grid.flat)
    present = _present(rows)
    handles = [Line2D([], [], **LOOKS[method].line()) for method in present]
    thin = Line2D([], [], color="#555555", linewidth=0.8, linestyle=(0, (1, 1)))
    figure.legend(
        [*handles, thin], [*present.values(), r"mean over iterates ($x_\tau$)"], loc="outside upper center", ncols=4
    )
    return figure


def _present(rows: pd.DataFrame) -> dict[str, str]:
    return {method: name for method, name in METHODS.items() if (rows["method"] == method).any()}


def _curve(axis: Axes, part: pd.DataFrame, method: str, what: str, on: str) -> None:
    look = LOOKS[method]
    last = _best(part, f"{what}_train_last", f"{what}_{on}_last")
    axis.errorbar(last.index, last["mean"], yerr=last["sem"].fillna(0), **look.line())
    mean = _best(part, f"{what}_train_tau", f"{what}_{on}_tau")
    axis.plot(mean.index, mean["mean"], color=look.color, linewidth=0.8, linestyle=(0, (1, 1)))


def _best(part: pd.DataFrame, chosen_by: str, shown: str) -> pd.DataFrame:
    lanes = part.groupby(["d", "steps", "step_size", "clip"])
    table = lanes[shown].agg(["mean", "sem"]).assign(by=lanes[chosen_by].mean()).reset_index()
    return table.loc[table.groupby("d")["by"].idxmin()].set_index("d")


def draw_slopes(slopes: pd.DataFrame) -> Figure:
    """Fitted slopes of the training gradient norm with 95% intervals, and the exponents of the upper bounds."""
    figure, axes = plt.subplots(1, 2, figsize=(PAGE, 2.5), sharey=True)
    for axis, output, name in zip(
        axes, ("last", "tau"), ("last iterate", r"mean over iterates ($x_\tau$)"), strict=True
    ):
        part = slopes[(slopes["output"] == output) & (slopes["measured"] == "gradient_train")]
        for offset, (method, look) in zip((-0.22, 0, 0.22), LOOKS.items(), strict=True):
            for place, mode in enumerate(MODES):
                for span, face in (("all", look.color), ("largest-3", "white")):
                    fit = part[(part["method"] == method) & (part["mode"] == mode) & (part["range"] == span)]
                    if fit.empty:
                        continue
                    x = place + offset + (0.06 if span == "largest-3" else -0.03)
                    low, high = (
                        float(fit["slope"].iloc[0] - fit[end].fillna(fit["slope"]).iloc[0]) for end in ("low", "high")
                    )
                    axis.errorbar(
                        x, fit["slope"], yerr=[[low], [-high]], color=look.color, marker=look.marker,
                        markerfacecolor=face, markeredgecolor=look.color, linestyle="none",
                    )  # fmt: skip
                    for column, style in BOUNDS.items():
                        level = float(fit[column].iloc[0])
                        axis.plot([place + offset - 0.09, place + offset + 0.12], [level] * 2, **style)
        axis.set_xticks(range(3), [f"mode {mode}" for mode in MODES])
        axis.set_title(name)
        axis.axhline(0, color="#888888", linewidth=0.6)
    axes[0].set_ylabel(r"slope of $\log\|\nabla F\|$ in $\log d$")
    label_panels(axes)
    present = _present(slopes)
    handles = [
        *(Line2D([], [], color=LOOKS[m].color, marker=LOOKS[m].marker, linestyle="none") for m in present),
        Line2D([], [], color="#555555", marker="o", markerfacecolor="white", linestyle="none"),
        *(Line2D([], [], **style) for style in BOUNDS.values()),
    ]
    labels = [*present.values(), "largest three $d$", "bound, fixed gap", "bound, gap $r/2$ as here"]
    figure.legend(handles, labels, loc="outside upper center", ncols=6, columnspacing=1.2)
    return figure


def draw_grid(rows: pd.DataFrame, mode: str, d: int) -> Figure:
    """Training gradient norm of the last iterate over the grid: the best over steps, and the best over clips."""
    part = rows[(rows["mode"] == mode) & (rows["d"] == d)]
    lanes = part.groupby(["method", "steps", "step_size", "clip"])["gradient_train_last"].mean().reset_index()
    norm = LogNorm(float(lanes["gradient_train_last"].min()), float(lanes["gradient_train_last"].quantile(0.95)))
    methods = [method for method in METHODS if (lanes["method"] == method).any()]
    figure, grid = plt.subplots(2, len(methods), figsize=(PAGE, 4.6), squeeze=False, sharey="row")
    for column, method in enumerate(methods):
        table = lanes[lanes["method"] == method]
        for axis, other, away in ((grid[0, column], "clip", "steps"), (grid[1, column], "steps", "clip")):
            cells = table.pivot_table(index=other, columns="step_size", values="gradient_train_last", aggfunc="min")
            image = axis.imshow(cells, norm=norm, cmap="cividis_r", origin="lower", aspect="auto")
            axis.set_xticks(range(0, len(cells.columns), 2), [f"{x:g}" for x in cells.columns[::2]], rotation=45)
            axis.set_yticks(range(len(cells.index)), [f"{y:g}" for y in cells.index])
            best = np.unravel_index(int(np.argmin(cells.to_numpy())), cells.shape)
            axis.plot(best[1], best[0], marker="*", color="white", markeredgecolor="black", markersize=9)
            axis.grid(visible=False)
            axis.set_title(f"{METHODS[method]}, best {away}")
        grid[1, column].set_xlabel(r"step size $\alpha$")
    grid[0, 0].set_ylabel("clip $C$")
    grid[1, 0].set_ylabel("steps $T$")
    label_panels(grid.flat)
    figure.colorbar(image, ax=grid, label=r"training $\|\nabla F(x_T)\|$", extend="max", aspect=40, pad=0.01)
    figure.suptitle(f"mode {mode}, d = {d:,}")
    return figure


def main() -> None:
    """Draw the four figures from benchmarks/results."""
    parser = argparse.ArgumentParser(prog="figures.synthetic", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, default=RESULTS / "synthetic")
    parser.add_argument("--slopes", type=Path, default=RESULTS / "slopes")
    parser.add_argument("--out", type=Path, default=FIGURES)
    options = parser.parse_args()
    use_style()
    rows = read_rows(options.rows)
    rows = rows[(rows["start"] == "zero") & (rows["calibration"] == "paper")]
    for what in ("gradient", "loss"):
        save(draw_best(rows, what), f"synthetic_{what}", options.out)
    save(draw_grid(rows, "c", int(rows["d"].max())), "synthetic_grid", options.out)
    slopes = read_rows(options.slopes)
    slopes = slopes[(slopes["sweep"] == "synthetic") & (slopes["start"] == "zero") & (slopes["calibration"] == "paper")]
    save(draw_slopes(slopes), "synthetic_slopes", options.out)


if __name__ == "__main__":
    main()
