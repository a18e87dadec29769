"""The last normalisation of a language model: accuracy against directions.  python -m figures.directions_total

The rows of `benchmarks.llm.directions_total` at epsilon = 2: test accuracy on three tasks against the number K T of
directions in all, beside DP-AdamW, AdamW without privacy, and the model before training. A point is the mean of five
runs, with its 95% interval; that of DP-AdamW is a band.
"""

import sys

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import t

from benchmarks.kit.rows import having
from figures.command import command
from figures.style import PAGE, series

TITLES = {"sst2": "SST-2", "trec": "TREC", "sst5": "SST-5"}
LINES = {
    ("adamw", "none"): ("AdamW, not private", series(2).color, "--"),
    ("dp-adamw", "2"): ("DP-AdamW", series(1).color, "--"),
    ("zero-shot", "none"): ("before training", "0.35", ":"),
}
"""What is drawn as a line, by method and epsilon: its name, colour and dash."""


def _ends(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean test accuracy in percent and half its 95% interval (Student's t), by the number of directions."""
    runs = 100 * rows.set_index("directions")["test_accuracy"]
    found = runs.groupby(level=0).agg(["mean", "std", "count"])
    found["half"] = t.ppf(0.975, found["count"] - 1) * found["std"] / found["count"] ** 0.5
    return found


def draw(rows: pd.DataFrame) -> Figure:
    """Return the figure of the rows of `benchmarks.llm.directions_total`."""
    rows = having(rows.astype({"epsilon": str, "setting": str}), setting="chosen")
    figure, axes = plt.subplots(1, len(TITLES), figsize=(PAGE, 2.3))
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        mine = _ends(having(rows, task=name, method="dpzero", epsilon="2"))
        style = series(0).line()
        axis.errorbar(mine.index, mine["mean"], yerr=mine["half"], label="DPZero, without gradients", **style)
        for (method, epsilon), (text, color, dash) in LINES.items():
            end = _ends(having(rows, task=name, method=method, epsilon=epsilon)).iloc[0]
            axis.axhline(end["mean"], color=color, linestyle=dash, linewidth=1, label=text)
            if method == "dp-adamw":
                low, high = end["mean"] - end["half"], end["mean"] + end["half"]
                axis.axhspan(low, high, color=color, alpha=0.15, linewidth=0)
        axis.set(xscale="log", xlabel="directions in all, K T", title=title)
    axes[0].set_ylabel("test accuracy (%)")
    handles, texts = axes[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=4)
    return figure


_parser, main = command("figures.directions_total", __doc__, draw, "directions_total", tables=("llm_directions_total",))

if __name__ == "__main__":
    sys.exit(main())
