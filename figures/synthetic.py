"""The paper's synthetic figures from our sweep.  python -m figures.synthetic

The figures synthetic_gradient and synthetic_loss are the paper's fig:toy_grad and fig:toy_loss: the best values of the
grid of parameters against the dimension, for the paper's three spectra (modes). Gradient norms are on training and test
samples. Losses are divided by the least expected loss, and on training samples alone, since on test samples they are
the same within half a percent. synthetic_slopes compares the fitted growth of the gradient norm with the exponents of
Table tab:compare. synthetic_grid shows the whole grid at one dimension.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.cli import Parser, input_folder, output_folder
from figures.style import CAP, FIGURES, PAGE, RING, label_panels, log_ticks, save, series, use_style

METHODS = {"dpzero": "DPZero", "dpgd-0th": "DPGD-0th", "dpgd": "DP-GD"}
LOOKS = dict(zip(METHODS, (series(0), series(1), series(2)), strict=True))
MODES = {"a": r"$\mathrm{tr}(A)=O(d)$", "b": r"$\mathrm{tr}(A)=O(\sqrt{d})$", "c": r"$\mathrm{tr}(A)=O(\log d)$"}
SAMPLES = {"train": "training", "test": "test"}

DOTS = (0, (1, 1))
LINE: dict[str, Any] = {"color": "black", "linewidth": 0.9, "linestyle": "-"}
BOUNDS: dict[str, dict[str, Any]] = {
    "claimed": {"linewidth": 0.9, "linestyle": DOTS},
    "claimed_here": {"linewidth": 1.3, "linestyle": "-"},
}
"""The styles of the paper's bounds on the slopes, each in the colour of its method."""


def draw_best(selected: pd.DataFrame, what: str, lines: Mapping[str, "pd.Series[float]"], told: str) -> Figure:
    """Return the figure of the best gradient norm or loss ('gradient' or 'loss', as `what` says) against the dimension
    d. selected has the rows of `benchmarks.selection`.

    Filled markers are the last iterate, open ones the mean over iterates. Bars are standard errors over seeds, where
    each seed has the parameters that are best on the others; a ring marks parameters on an edge of the grid that costs
    more than 5%. lines are black lines for the training sample, by mode (spectrum) and d; told is their text in the
    legend. Losses are drawn on the training sample alone.
    """
    samples = SAMPLES if what == "gradient" else {"train": SAMPLES["train"]}
    size = (PAGE, 0.8 + 1.9 * len(samples))
    figure, grid = plt.subplots(len(samples), 3, figsize=size, sharex=True, sharey="col", squeeze=False)
    for line, (on, sample) in zip(grid, samples.items(), strict=True):
        for axis, mode in zip(line, MODES, strict=True):
            for method in METHODS:
                _curves(axis, _cells(selected, mode, method, what), method, on)
            axis.set(xscale="log", yscale="log", title=MODES[mode])
        name = r"$\|\nabla F\|$" if what == "gradient" else "loss / least loss"
        line[0].set_ylabel(f"{sample} {name}")
    for axis in grid[-1]:
        axis.set_xlabel("dimension $d$")
    for axis in grid.flat:
        log_ticks(axis.xaxis)
        if what == "gradient":
            log_ticks(axis.yaxis)
        else:
            axis.set_yscale("linear")
    for axis, mode in zip(grid[0], MODES, strict=True):
        axis.plot(lines[mode].index, lines[mode], **LINE)
    label_panels(grid.flat)
    _curve_legend(figure, selected, f"{told} (top row)" if len(samples) > 1 else told)
    return figure


def at_infinity(limit: pd.DataFrame) -> dict[str, "pd.Series[float]"]:
    """Return DPZero's gradient norm at x_tau in the limit of infinitely many steps, by mode (spectrum) and d. limit has
    the rows of the sweep `limit`."""
    cells = {mode: _cells(limit, mode, "dpzero", "gradient") for mode in MODES}
    return {mode: of[of["output"] == "tau"].groupby("d")["train"].mean() for mode, of in cells.items()}


def least_loss(rows: pd.DataFrame) -> dict[str, "pd.Series[float]"]:
    """Return the expected minimum of the loss by mode (spectrum) and d. rows has those of `benchmarks.least_loss`."""
    return {mode: rows[rows["mode"] == mode].set_index("d")["least_loss"] for mode in MODES}


def in_units(selected: pd.DataFrame, least: Mapping[str, "pd.Series[float]"]) -> pd.DataFrame:
    """Return the rows of losses in `selected`, with training and test losses divided by the least loss of their mode
    (spectrum) and d, which `least` has: the losses themselves grow with d so much that the methods' curves coincide."""
    rows = selected[selected["measured"] == "loss"]
    unit = [float(least[str(mode)][d]) for mode, d in zip(rows["mode"], rows["d"], strict=True)]
    return rows.assign(train=rows["train"] / unit, test=rows["test"] / unit)


def _cells(selected: pd.DataFrame, mode: str, method: str, what: str) -> pd.DataFrame:
    return selected[(selected["mode"] == mode) & (selected["method"] == method) & (selected["measured"] == what)]


def _curve_legend(figure: Figure, selected: pd.DataFrame, told: str = "") -> None:
    """Add a legend for the methods in `selected` and for the marks on their curves. If `told` is not empty, it is the
    text for the black line."""
    present = _present(selected)
    handles = [Line2D([], [], **LOOKS[method].line()) for method in present]
    seeds = {method: selected.loc[selected["method"] == method, "seed"].nunique() for method in present}
    names = [f"{name} ({seeds[m]} seed{'s' * (seeds[m] > 1)})" for m, name in present.items()]
    last = Line2D([], [], color="#555555", marker="o")
    mean = Line2D([], [], color="#555555", marker="o", markerfacecolor="white", linewidth=0.8, linestyle=DOTS)
    ring = Line2D([], [], linestyle="none", **RING)
    bars = ", standard errors" if max(seeds.values()) > 1 else ""
    marks = [f"last iterate{bars}", r"mean over iterates ($x_\tau$)", "a larger grid might gain over 5%"]
    lines = [*handles, last, mean, ring]
    if told:
        lines.append(Line2D([], [], **LINE))
        marks.append(told)
    figure.legend(lines, [*names, *marks], loc="outside upper center", ncols=3)


def _present(rows: pd.DataFrame) -> dict[str, str]:
    return {method: name for method, name in METHODS.items() if (rows["method"] == method).any()}


def _curves(axis: Axes, cells: pd.DataFrame, method: str, on: str) -> None:
    look = LOOKS[method]
    open_look = look.line(
        linewidth=0.8, linestyle=DOTS, markerfacecolor="white", markeredgecolor=look.color, markersize=3.5
    )
    for output, style in (("last", look.line()), ("tau", open_look)):
        part = cells[cells["output"] == output]
        if part.empty:
            continue
        values = part.groupby("d")[on].agg(["mean", "sem"])
        axis.errorbar(values.index, values["mean"], yerr=values["sem"].fillna(0), **style)
        capped = part.groupby("d")["beyond"].median() > CAP
        axis.plot(values.index[capped], values["mean"][capped], linestyle="none", **RING)


def held_out(slopes: pd.DataFrame) -> pd.DataFrame:
    """Return those rows of the fitted slopes whose parameters were chosen on other seeds, and, for sweeps with one seed
    only, those whose parameters were chosen on that seed."""
    return slopes[(slopes["selection"] == "held-out") | (slopes["seeds"] == 1)]


def draw_slopes(slopes: pd.DataFrame) -> Figure:
    """Return the figure of the fitted slopes of the training gradient norm in d with 95% intervals, beside the powers
    of d in the paper's upper bounds.

    Parameters are chosen on other seeds than the slope's. If there is only one seed, they are chosen on that, and there
    is no interval.
    """
    slopes = held_out(slopes)
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
                        ends = [place + offset - 0.09, place + offset + 0.12]
                        axis.plot(ends, [level] * 2, color=look.color, **style)
        axis.set_xticks(range(3), [f"mode {mode}" for mode in MODES])
        axis.set_title(name)
        axis.axhline(0, color="#888888", linewidth=0.6)
    axes[0].set_ylabel(r"slope of $\log\|\nabla F\|$ in $\log d$, 95%")
    axes[0].text(
        0.98, 0.97, "the bounds are of $x_\\tau$; of the\nlast iterate there is none", transform=axes[0].transAxes,
        fontsize=6.5, ha="right", va="top",
    )  # fmt: skip
    label_panels(axes)
    present = _present(slopes)
    handles = [
        *(Line2D([], [], color=LOOKS[m].color, marker=LOOKS[m].marker, linestyle="none") for m in present),
        *(
            Line2D([], [], color="#555555", marker="o", markerfacecolor=face, linestyle="none")
            for face in ("#555555", "white")
        ),
        *(Line2D([], [], color="#555555", **style) for style in BOUNDS.values()),
    ]
    labels = [*present.values(), "all $d$", "largest three $d$", "bound, fixed gap", "bound, gap $r/2$ as here"]
    figure.legend(handles, labels, loc="outside upper center", ncols=7, columnspacing=0.9, handletextpad=0.2)
    return figure


def draw_grid(rows: pd.DataFrame, mode: str, d: int) -> Figure:
    """Return the figure of the training gradient norm of the last iterate over the grid of parameters, for one spectrum
    (`mode`) and dimension d: minimised over the number of steps, and over the clip. `rows` has those of
    `benchmarks.synthetic`."""
    part = rows[(rows["mode"] == mode) & (rows["d"] == d)]
    lanes = part.groupby(["method", "steps", "step_size", "clip"])["gradient_train_last"].mean().reset_index()
    still = float(lanes.loc[lanes["step_size"] == lanes["step_size"].min(), "gradient_train_last"].max())
    methods = [method for method in METHODS if (lanes["method"] == method).any()]
    figure, grid = plt.subplots(2, len(methods), figsize=(PAGE, 4.6), squeeze=False, sharey="row")
    for column, method in enumerate(methods):
        table = lanes[lanes["method"] == method]
        chosen = table.sort_values("gradient_train_last", kind="stable").iloc[0]
        norm = LogNorm(float(chosen["gradient_train_last"]), still)
        for axis, other, away in ((grid[0, column], "clip", "steps"), (grid[1, column], "steps", "clip")):
            cells = table.pivot_table(index=other, columns="step_size", values="gradient_train_last", aggfunc="min")
            image = axis.imshow(cells, norm=norm, cmap="cividis_r", origin="lower", aspect="auto")
            axis.set_xticks(range(0, len(cells.columns), 2), [_power(float(x)) for x in cells.columns[::2]])
            axis.set_yticks(range(len(cells.index)), [f"{y:,g}" for y in cells.index])
            place = (cells.columns.get_loc(chosen["step_size"]), cells.index.get_loc(chosen[other]))
            axis.plot(*place, marker="*", color="white", markeredgecolor="black", markersize=9)
            axis.grid(visible=False)
            axis.set_title(f"{METHODS[method]}, best {away}")
        grid[1, column].set_xlabel(r"step size $\alpha$")
        label = r"training $\|\nabla F(x_T)\|$"
        bar = figure.colorbar(image, ax=grid[:, column], label=label, extend="max", location="bottom", aspect=30)
        log_ticks(bar.ax.xaxis)
    grid[0, 0].set_ylabel("clip $C$")
    grid[1, 0].set_ylabel("steps $T$")
    label_panels(grid.flat)
    alone = ", ".join(METHODS[method] for method in methods if part[part["method"] == method]["seed"].nunique() == 1)
    seeds = f"means over seeds{f' ({alone}: one)' if alone else ''}"
    marks = "star: the best setting; darkest: no better than not to move; each method has its own scale"
    figure.suptitle(f"mode {mode}, d = {d:,}, {seeds}\n{marks}", fontsize=8)
    return figure


def _power(value: float) -> str:
    return f"$10^{{{round(math.log10(value))}}}$"


def _common(rows: pd.DataFrame, mode: str) -> int:
    """Return the largest dimension up to which every method has rows with this spectrum (`mode`): the smallest of the
    methods' largest dimensions."""
    return int(rows[rows["mode"] == mode].groupby("method")["d"].max().min())


def _parser() -> Parser:
    parser = Parser("figures.synthetic", __doc__)
    parser.add_argument("--rows", type=input_folder(), default=RESULTS, help="folder of the rows' folders")
    parser.add_argument("--out", type=output_folder, default=str(FIGURES))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figures from the rows that the command line names, by default those in benchmarks/results. Returns the
    exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    with parser.refusals("--rows"):
        selected, slopes = read_rows(options.rows / "selection"), read_rows(options.rows / "slopes")
        rows = pd.concat([read_rows(options.rows / name) for name in ("synthetic", "synthetic_dpgd")])
        least = least_loss(read_rows(options.rows / "least_loss"))
    use_style()
    paper = selected[selected["sweep"] == "synthetic"]
    limit = at_infinity(selected[selected["sweep"] == "limit"])
    told = r"DPZero's $x_\tau$, $T \to \infty$"
    save(draw_best(paper, "gradient", limit, told), "synthetic_gradient", options.out)
    ones = {mode: values / values for mode, values in least.items()}
    told = r"least loss, $\mathrm{tr}(A)/2$"
    save(draw_best(in_units(paper, least), "loss", ones, told), "synthetic_loss", options.out)
    save(draw_grid(rows, "c", _common(rows, "c")), "synthetic_grid", options.out)
    save(draw_slopes(slopes[slopes["sweep"] == "synthetic"]), "synthetic_slopes", options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
