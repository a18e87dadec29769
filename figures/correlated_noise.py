"""What correlated noise gains where directions are used again.  python -m figures.correlated_noise

From the rows of `benchmarks.correlated_noise` in 64 dimensions: the mean squared gradient that comes from independent
noise, over that from correlated noise of the same privacy, where every record is used once. Means over 12 pools with
intervals of 95%. Crosses are measured on runs, for the noise that knows the directions.
"""

import sys

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import t as student

from benchmarks.kit.rows import RESULTS
from figures.command import command
from figures.style import COLUMN, series

CURVES = {"gain_known": "noise that knows the directions", "gain_unknown": "noise that does not"}


def draw(rows: pd.DataFrame) -> Figure:
    """Return the figure from the rows of `benchmarks.correlated_noise`."""
    groups = rows[rows["d"] == 64].groupby("pool")
    mean, count = groups.mean(numeric_only=True), groups.size()
    half = groups.sem(numeric_only=True).mul(student.ppf(0.975, count - 1), axis=0)
    figure, axis = plt.subplots(figsize=(COLUMN, 2.6))
    for index, (name, text) in enumerate(CURVES.items()):
        axis.errorbar(mean.index, mean[name], yerr=half[name], **series(index).line(label=text))
    axis.plot(mean.index, mean["runs_known"], "kx", markersize=5, label="measured on runs")
    axis.axhline(1, color="0.4", linewidth=0.8, linestyle=(0, (1, 1.5)), label="no gain")
    axis.set(xscale="log", xlabel="$P$, directions in the pool (128 steps)", ylabel="gain over independent noise")
    axis.set_xticks(list(mean.index), [str(size) for size in mean.index])
    axis.minorticks_off()
    axis.legend(fontsize=6)
    return figure


_parser, main = command(
    "figures.correlated_noise", __doc__, draw, "correlated_noise", rows=RESULTS / "correlated_noise"
)

if __name__ == "__main__":
    sys.exit(main())
