"""DPZero and DPGD-0th against the dimension, to 10^7.  python -m figures.dimension

Shown are means of gradient norms over seeds with standard errors, at parameters that were chosen on other seeds, and
the fitted slope of the gradient norm with its 95% interval. A further panel has the processor seconds of the runs on
one problem, and their peak memory (`benchmarks.rank`). A ring marks points whose parameters are on an edge of their
grid where the last step of the grid still gained more than 5%. The figure `rank` has effective rank r = 5 whatever the
dimension d is; in `log_rank`, r grows like log d.
"""

import sys
from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.cli import Parser, input_folder, output_folder
from figures.style import CAP, FIGURES, PAGE, RING, label_panels, log_ticks, save, series, use_style

METHODS = {"dpzero": ("DPZero", series(0)), "dpgd-0th": ("DPGD-0th", series(1))}
EXPERIMENTS = {"rank": "dimension", "log": "log"}
"""For each sweep of `benchmarks.selection` that is drawn here, the experiment of `benchmarks.rank` whose rows it
selects."""
NAMES = {"rank": "rank", "log": "log_rank"}
OUTPUTS = {"tau": r"mean over iterates ($x_\tau$)", "last": "last iterate"}


def draw(rows: pd.DataFrame, selected: pd.DataFrame, slopes: pd.DataFrame) -> Figure:
    """Return the figure. rows has those of `benchmarks.rank`, for memory and time; selected those of
    `benchmarks.selection`; slopes those of `benchmarks.slopes`."""
    figure, axes = plt.subplots(1, 3, figsize=(PAGE, 2.6))
    for axis, (output, name) in zip(axes, OUTPUTS.items(), strict=False):
        for method, (label, look) in METHODS.items():
            part = selected[(selected["method"] == method) & (selected["output"] == output)]
            line = part.groupby("d")["train"].agg(["mean", "sem"])
            at = (slopes["method"] == method) & (slopes["output"] == output) & (slopes["range"] == "all")
            fit = slopes[at & (slopes["selection"] == "held-out")].iloc[0]
            text = rf"{label}: slope {fit['slope']:.3f} $\pm$ {(fit['high'] - fit['low']) / 2:.3f}"
            axis.errorbar(line.index, line["mean"], yerr=line["sem"], **look.line(label=text))
            capped = part.groupby("d")["beyond"].median() > CAP
            axis.plot(line.index[capped], line["mean"][capped], linestyle="none", **RING)
        axis.plot([], [], linestyle="none", label="a wider grid might gain over 5%", **RING)
        axis.set(xscale="log", yscale="log", title=name, xlabel="dimension $d$")
        axis.legend(loc="upper left", fontsize=6)
        low, high = axis.get_ylim()
        axis.set_ylim(low, high * (high / low) ** 0.6)
        log_ticks(axis.yaxis)
    axes[0].set_ylabel(r"$\|\nabla F_S\|$, mean and standard error")
    seconds = rows.drop_duplicates(["d", "seed"]).groupby("d")["cpu_s"].mean()
    axes[2].plot(seconds.index, seconds, **series(3).line())
    axes[2].set(xscale="log", title="processor seconds of a run", xlabel="dimension $d$")
    axes[2].set_ylim(bottom=0)
    memory = rows.groupby("d")["peak_mb"].max()
    text = f"both methods together\npeak memory: {memory.min():.0f} to {memory.max():.0f} MB"
    axes[2].text(0.97, 0.05, text, transform=axes[2].transAxes, fontsize=6.5, ha="right")
    label_panels(axes)
    return figure


def _parser() -> Parser:
    parser = Parser("figures.dimension", __doc__)
    parser.add_argument("--rows", type=input_folder(), default=RESULTS, help="folder of the rows' folders")
    parser.add_argument("--selection", type=input_folder(), default=RESULTS / "selection")
    parser.add_argument("--slopes", type=input_folder(), default=RESULTS / "slopes")
    parser.add_argument("--out", type=output_folder, default=str(FIGURES))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figures from the rows that the command line names, by default those in benchmarks/results. Returns the
    exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    with parser.refusals("--rows"):
        rows = read_rows(options.rows / "rank")
    with parser.refusals("--selection"):
        selected = read_rows(options.selection)
    with parser.refusals("--slopes"):
        slopes = read_rows(options.slopes)
    use_style()
    for sweep, experiment in EXPERIMENTS.items():
        own = [table[table["sweep"] == sweep] for table in (selected, slopes)]
        save(draw(rows[rows["experiment"] == experiment], *own), NAMES[sweep], options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
