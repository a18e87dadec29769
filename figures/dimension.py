"""DPZero and DPGD-0th against the dimension, to 10^7.  python -m figures.dimension

Shown are means of gradient norms over seeds with standard errors, at parameters that were chosen on other seeds. In (a)
the effective rank is r = 5 whatever the dimension d is; in (b) r grows like log d (`benchmarks rank`). Filled markers
are means over the iterates, open ones the last iterate. A ring marks points whose parameters are on an edge of their
grid where the last step of the grid still gained more than 5%, so that a larger grid might lower the point by as much.
"""

import sys
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.cli import Parser, input_folder, output_folder
from figures.style import CAP, FIGURES, PAGE, RING, label_panels, log_ticks, save, series, use_style

METHODS = {"dpzero": ("DPZero", series(0)), "dpgd-0th": ("DPGD-0th", series(1))}
TITLES = {"rank": "$r = 5$ for every $d$", "log": r"$r$ like $\log d$"}
OUTPUTS = {"tau": r"mean over iterates ($x_\tau$)", "last": "last iterate"}


def draw(selected: pd.DataFrame) -> Figure:
    """Return the figure of the rows of results/selection."""
    figure, axes = plt.subplots(1, 2, figsize=(PAGE, 3.0), sharey=True)
    for axis, (sweep, title) in zip(axes, TITLES.items(), strict=True):
        for method, (_, look) in METHODS.items():
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
        *(Line2D([], [], **look.line(label=label)) for label, look in METHODS.values()),
        Line2D([], [], label=OUTPUTS["tau"], **grey),
        Line2D([], [], label=OUTPUTS["last"], markerfacecolor="white", linestyle=(0, (1, 1)), **grey),
        Line2D([], [], label="a larger grid might gain over 5%", linestyle="none", **RING),
    ]
    figure.legend(handles=marks, loc="outside upper center", ncols=5, columnspacing=1)
    return figure


def _parser() -> Parser:
    parser = Parser("figures.dimension", __doc__)
    parser.add_argument("--selection", type=input_folder(), default=RESULTS / "selection")
    parser.add_argument("--out", type=output_folder, default=str(FIGURES))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figure from the rows that the command line names, by default those in benchmarks/results. Returns the
    exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    with parser.refusals("--selection"):
        selected = read_rows(options.selection)
    use_style()
    save(draw(selected), "rank", options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
