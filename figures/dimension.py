"""DPZero and DPGD-0th against the dimension, to 10^6.  python -m figures.dimension

Best of the grid, mean over seeds with standard errors, with the fitted slope of the gradient norm; and the peak
memory of the process that streams the coordinates.
"""

import sys
from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.cli import Parser, input_folder, output_folder
from figures.style import FIGURES, PAGE, label_panels, save, series, use_style

__all__ = ["draw", "main"]

METHODS = {"dpzero": ("DPZero", series(0)), "dpgd-0th": ("DPGD-0th", series(1))}
OUTPUTS = {
    "tau": ("gradient_squared", r"mean over iterates ($x_\tau$)"),
    "last": ("last_gradient_squared", "last iterate"),
}


def draw(rows: pd.DataFrame, slopes: pd.DataFrame) -> Figure:
    """rows: `benchmarks.dimension`; slopes: `benchmarks.slopes`."""
    figure, axes = plt.subplots(1, 3, figsize=(PAGE, 2.5))
    for axis, (output, (column, name)) in zip(axes, OUTPUTS.items(), strict=False):
        best = rows.groupby(["method", "d", "seed"])[column].min().groupby(["method", "d"]).agg(["mean", "sem"])
        for method, (label, look) in METHODS.items():
            line = best.loc[method]
            fit = slopes[(slopes["method"] == method) & (slopes["output"] == output) & (slopes["range"] == "all")]
            text = f"{label}: slope {_interval(fit, 2)}"
            axis.errorbar(line.index, line["mean"], yerr=line["sem"], **look.line(label=text))
        axis.set(xscale="log", yscale="log", title=name, xlabel="dimension $d$")
        axis.legend(loc="upper left")
        low, high = axis.get_ylim()
        axis.set_ylim(low, high * 4)
    axes[0].set_ylabel(r"$\|\nabla F_S\|^2$")
    memory = rows.groupby("d")["peak_mb"].max()
    axes[2].plot(memory.index, memory, **series(6).line())
    axes[2].set(xscale="log", ylim=(0, 1.3 * memory.max()), title="peak memory", xlabel="dimension $d$", ylabel="MB")
    label_panels(axes)
    return figure


def _interval(fit: pd.DataFrame, factor: int) -> str:
    """Slope of the square, and half the width of its 95% interval."""
    mean, low, high = (factor * float(fit[name].iloc[0]) for name in ("slope", "low", "high"))
    return rf"{mean:.2f} $\pm$ {(high - low) / 2:.2f}"


def _parser() -> Parser:
    parser = Parser("figures.dimension", __doc__)
    parser.add_argument("--rows", type=input_folder(), default=RESULTS / "dimension")
    parser.add_argument("--slopes", type=input_folder(), default=RESULTS / "slopes")
    parser.add_argument("--out", type=output_folder, default=str(FIGURES))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figure from benchmarks/results."""
    parser = _parser()
    options = parser.parse_args(argv)
    with parser.refusals("--rows"):
        rows = read_rows(options.rows)
    with parser.refusals("--slopes"):
        slopes = read_rows(options.slopes)
    use_style()
    save(draw(rows, slopes[slopes["sweep"] == "dimension"]), "dimension", options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
