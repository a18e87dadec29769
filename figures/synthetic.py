"""The paper's synthetic figures from our sweep.  python -m figures.synthetic

synthetic_gradient is the paper's fig:toy_grad: the best gradient norms of the grid of parameters against the dimension,
for the paper's three spectra (modes), on training and test samples. synthetic_slopes compares their fitted growth with
the exponents of Table tab:compare. rank has DPZero and DPGD-0th against the dimension, to 10^7: in (a) the effective
rank is r = 5 whatever the dimension d is; in (b) r grows like log d (`benchmarks rank`). Filled markers are means over
the iterates, open ones the last iterate.
"""

import sys
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures.command import command
from figures.style import CAP, PAGE, RING, label_panels, log_ticks, series

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


def draw_best(selected: pd.DataFrame, lines: Mapping[str, "pd.Series[float]"], told: str) -> Figure:
    """Return the figure of the best gradient norm against the dimension d. selected has the rows of results/selection.

    Filled markers are the last iterate, open ones the mean over iterates. Bars are standard errors over seeds, where
    each seed has the parameters that are best on the others; a ring marks parameters on an edge of the grid that costs
    more than 5%. lines are black lines for the training sample, by mode (spectrum) and d; told is their text in the
    legend.
    """
    figure, grid = plt.subplots(2, 3, figsize=(PAGE, 4.6), sharex=True, sharey="col", squeeze=False)
    for line, (on, sample) in zip(grid, SAMPLES.items(), strict=True):
        for axis, mode in zip(line, MODES, strict=True):
            for method in METHODS:
                _curves(axis, _cells(selected, mode, method), method, on)
            axis.set(xscale="log", yscale="log", title=MODES[mode])
        line[0].set_ylabel(sample + r" $\|\nabla F\|$")
    for axis in grid[-1]:
        axis.set_xlabel("dimension $d$")
    for axis in grid.flat:
        log_ticks(axis.xaxis)
        log_ticks(axis.yaxis)
    for axis, mode in zip(grid[0], MODES, strict=True):
        axis.plot(lines[mode].index, lines[mode], **LINE)
    label_panels(grid.flat)
    _curve_legend(figure, selected, f"{told} (top row)")
    return figure


def at_infinity(limit: pd.DataFrame) -> dict[str, "pd.Series[float]"]:
    """Return DPZero's gradient norm at x_tau in the limit of infinitely many steps, by mode (spectrum) and d. limit has
    the rows of the sweep `limit`."""
    cells = {mode: _cells(limit, mode, "dpzero") for mode in MODES}
    return {mode: of[of["output"] == "tau"].groupby("d")["train"].mean() for mode, of in cells.items()}


def _cells(selected: pd.DataFrame, mode: str, method: str) -> pd.DataFrame:
    at = (selected["mode"] == mode) & (selected["method"] == method) & (selected["measured"] == "gradient")
    return selected[at]


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


OF_RANK = {"dpzero": ("DPZero", series(0)), "dpgd-0th": ("DPGD-0th", series(1))}
TITLES = {"rank": "$r = 5$ for every $d$", "log": r"$r$ like $\log d$"}
OUTPUTS = {"tau": r"mean over iterates ($x_\tau$)", "last": "last iterate"}


def draw_rank(selected: pd.DataFrame) -> Figure:
    """Return the figure of the rows of results/selection."""
    figure, axes = plt.subplots(1, 2, figsize=(PAGE, 3.0), sharey=True)
    for axis, (sweep, title) in zip(axes, TITLES.items(), strict=True):
        for method, (_, look) in OF_RANK.items():
            hollow = {"markerfacecolor": "white", "markeredgecolor": look.color, "linestyle": (0, (1, 1))}
            for output in OUTPUTS:
                at = (selected["sweep"] == sweep) & (selected["method"] == method) & (selected["output"] == output)
                line = selected[at].groupby("d")["train"].agg(["mean", "sem"])
                style = look.line(**(hollow if output == "last" else {}))
                axis.errorbar(line.index, line["mean"], yerr=line["sem"], **style)
                capped = selected[at].groupby("d")["beyond"].median() > CAP
                axis.plot(line.index[capped], line["mean"][capped], linestyle="none", **RING)
        axis.set(xscale="log", yscale="log", title=title, xlabel="dimension $d$")
    log_ticks(axes[0].yaxis)
    axes[0].set_ylabel(r"$\|\nabla F_S\|$, mean and standard error")
    label_panels(axes)
    grey: dict[str, Any] = {"color": "#555555", "marker": "o"}
    marks = [
        *(Line2D([], [], **look.line(label=label)) for label, look in OF_RANK.values()),
        Line2D([], [], label=OUTPUTS["tau"], **grey),
        Line2D([], [], label=OUTPUTS["last"], markerfacecolor="white", linestyle=(0, (1, 1)), **grey),
        Line2D([], [], label="a larger grid might gain over 5%", linestyle="none", **RING),
    ]
    figure.legend(handles=marks, loc="outside upper center", ncols=5, columnspacing=1)
    return figure


def draw(selected: pd.DataFrame, slopes: pd.DataFrame) -> dict[str, Figure]:
    """Return the figures by name, from the rows in the folders selection and slopes."""
    paper = selected[selected["sweep"] == "synthetic"]
    limit = at_infinity(selected[selected["sweep"] == "limit"])
    return {
        "synthetic_gradient": draw_best(paper, limit, r"DPZero's $x_\tau$, $T \to \infty$"),
        "synthetic_slopes": draw_slopes(slopes[slopes["sweep"] == "synthetic"]),
        "rank": draw_rank(selected),
    }


_parser, main = command("figures.synthetic", __doc__, draw, "", tables=("selection", "slopes"))

if __name__ == "__main__":
    sys.exit(main())
