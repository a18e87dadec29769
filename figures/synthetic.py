"""The paper's synthetic figures from our sweep.  python -m figures.synthetic

synthetic_gradient and synthetic_loss are Figures fig:toy_grad and fig:toy_loss: the best of the grid against the
dimension, in the paper's three modes, on training and test samples. synthetic_wide goes on to larger dimensions, once
it has rows. synthetic_slopes puts the fitted growth of the gradient norm beside the exponents of Table tab:compare;
synthetic_grid_MODE shows the whole grid at one dimension; synthetic_choices what the choices left open by the paper
change.
"""

import sys
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.cli import Parser, input_folder, output_folder
from figures.style import FIGURES, PAGE, label_panels, log_ticks, save, series, use_style

__all__ = ["draw_best", "draw_choices", "draw_grid", "draw_slopes", "draw_wide", "main"]

METHODS = {"dpzero": "DPZero", "dpgd-0th": "DPGD-0th", "dpgd": "DP-GD"}
LOOKS = dict(zip(METHODS, (series(0), series(1), series(2)), strict=True))
MODES = {"a": r"$\mathrm{tr}(A)=O(d)$", "b": r"$\mathrm{tr}(A)=O(\sqrt{d})$", "c": r"$\mathrm{tr}(A)=O(\log d)$"}
SAMPLES = {"train": "training", "test": "test"}
OUTPUTS = {"last": "last", "average": "average", "tau": r"$x_\tau$"}
CHOICES: dict[tuple[str, str], dict[str, Any]] = {
    ("zero", "paper"): {"markerfacecolor": None},
    ("zero", "exact"): {"markerfacecolor": None, "markersize": 5.5},
    ("normal", "paper"): {"markerfacecolor": "white"},
    ("normal", "exact"): {"markerfacecolor": "white", "markersize": 5.5},
}
"""Start and calibration; filled: x_0 = 0, open: x_0 ~ N(0, I); small: the paper's noise, large: the exact."""

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
    _curve_legend(figure, rows)
    return figure


def _curve_legend(figure: Figure, rows: pd.DataFrame) -> None:
    """What the lines of `_curve` mean."""
    present = _present(rows)
    handles = [Line2D([], [], **LOOKS[method].line()) for method in present]
    thin = Line2D([], [], color="#555555", linewidth=0.8, linestyle=(0, (1, 1)))
    figure.legend(
        [*handles, thin], [*present.values(), r"mean over iterates ($x_\tau$)"], loc="outside upper center", ncols=4
    )


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
    """Training gradient norm of the last iterate over the grid: the best over steps, and the best over clips.

    The darkest colour is no better than the start, or worse.
    """
    part = rows[(rows["mode"] == mode) & (rows["d"] == d)]
    lanes = part.groupby(["method", "steps", "step_size", "clip"])["gradient_train_last"].mean().reset_index()
    still = lanes.loc[lanes["step_size"] == lanes["step_size"].min(), "gradient_train_last"].max()
    norm = LogNorm(float(lanes["gradient_train_last"].min()), float(still))
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


def draw_wide(rows: pd.DataFrame) -> Figure:
    """Best training gradient norm of one seed, DPZero and DPGD-0th, on both sides of the paper's largest dimension."""
    figure, axes = plt.subplots(1, 3, figsize=(PAGE, 2.6), sharex=True)
    for axis, mode in zip(axes, MODES, strict=True):
        for method in METHODS:
            part = rows[(rows["mode"] == mode) & (rows["method"] == method)]
            if len(part):
                _curve(axis, part, method, "gradient", "train")
        axis.axvline(2_000, color="#888888", linewidth=0.6)
        axis.set(xscale="log", yscale="log", title=MODES[mode], xlabel="dimension $d$")
        log_ticks(axis.yaxis)
    axes[0].set_ylabel(r"training $\|\nabla F\|$")
    axes[0].annotate("paper's largest $d$", (2_000, 0.02), xycoords=("data", "axes fraction"), fontsize=6, ha="right")
    label_panels(axes)
    _curve_legend(figure, rows)
    return figure


def draw_choices(rows: pd.DataFrame, slopes: pd.DataFrame) -> Figure:
    """One seed: the best training gradient norm at the largest dimension, and its growth, for every open choice."""
    figure, grid = plt.subplots(2, 3, figsize=(PAGE, 4.2), sharex=True)
    largest = rows[rows["d"] == rows["d"].max()]
    fits = slopes[(slopes["measured"] == "gradient_train") & (slopes["range"] == "all")]
    for column, mode in enumerate(MODES):
        for number, (method, look) in enumerate(LOOKS.items()):
            for place, output in enumerate(OUTPUTS):
                for step, ((start, calibration), style) in enumerate(CHOICES.items()):
                    x = place + 0.36 * (number - 0.5) + 0.07 * (step - 1.5)
                    values = (
                        _chosen(largest, mode, method, start, calibration)[f"gradient_train_{output}"].min(),
                        _chosen(fits[fits["output"] == output], mode, method, start, calibration)["slope"].min(),
                    )
                    for axis, value in zip(grid[:, column], values, strict=True):
                        axis.plot(x, value, **_mark(look.color, look.marker, style))
        grid[0, column].set(yscale="log", title=MODES[mode])
        log_ticks(grid[0, column].yaxis)
        grid[1, column].axhline(0, color="#888888", linewidth=0.6)
        grid[1, column].set_xticks(range(len(OUTPUTS)), list(OUTPUTS.values()))
        grid[1, column].set_xlabel("iterate that is measured")
    grid[0, 0].set_ylabel(rf"best $\|\nabla F\|$ at $d$ = {rows['d'].max():,}")
    grid[1, 0].set_ylabel(f"slope in $\\log d$, from {rows['d'].min()}")
    label_panels(grid.flat)
    present = _present(rows)
    handles = [Line2D([], [], color=LOOKS[m].color, marker=LOOKS[m].marker, linestyle="none") for m in present]
    shapes = [Line2D([], [], **_mark("#555555", "o", style)) for style in CHOICES.values()]
    names = [
        f"{'$x_0 = 0$' if start == 'zero' else '$x_0$ normal'}, {calibration} noise" for start, calibration in CHOICES
    ]
    figure.legend([*handles, *shapes], [*present.values(), *names], loc="outside upper center", ncols=3)
    return figure


def _mark(color: str, marker: str, style: dict[str, Any]) -> dict[str, Any]:
    face = style.get("markerfacecolor") or color
    look = {"color": color, "marker": marker, "linestyle": "none", "markersize": 3.5}
    return {**look, **style, "markerfacecolor": face}


def _chosen(table: pd.DataFrame, mode: str, method: str, start: str, calibration: str) -> pd.DataFrame:
    where = (table["mode"] == mode) & (table["method"] == method)
    return table[where & (table["start"] == start) & (table["calibration"] == calibration)]


def _common(rows: pd.DataFrame, mode: str) -> int:
    """The largest dimension that every method has in this mode."""
    return int(rows[rows["mode"] == mode].groupby("method")["d"].max().min())


def _parser() -> Parser:
    parser = Parser("figures.synthetic", __doc__)
    parser.add_argument("--rows", type=input_folder(), default=RESULTS, help="folder of the rows' folders")
    parser.add_argument("--out", type=output_folder, default=str(FIGURES))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figures from benchmarks/results."""
    parser = _parser()
    options = parser.parse_args(argv)
    with parser.refusals("--rows"):
        sweeps = [read_rows(options.rows / name) for name in ("synthetic", "synthetic_dpgd")]
        slopes, choices = read_rows(options.rows / "slopes"), read_rows(options.rows / "synthetic_choices")
        wider = read_rows(options.rows / "synthetic_wide") if (options.rows / "synthetic_wide").exists() else None
    rows = pd.concat(sweeps, ignore_index=True)
    use_style()
    for what in ("gradient", "loss"):
        save(draw_best(rows, what), f"synthetic_{what}", options.out)
    for mode in MODES:
        save(draw_grid(rows, mode, _common(rows, mode)), f"synthetic_grid_{mode}", options.out)
    save(draw_slopes(slopes[slopes["sweep"] == "synthetic"]), "synthetic_slopes", options.out)
    if wider is not None:
        start = rows[(rows["seed"] == 0) & (rows["method"] != "dpgd")]
        save(draw_wide(pd.concat([start, wider], ignore_index=True)), "synthetic_wide", options.out)
    save(draw_choices(choices, slopes[slopes["sweep"] == "choices"]), "synthetic_choices", options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
