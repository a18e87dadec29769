"""The last normalisation of a language model: accuracy against directions.  python -m figures.directions_total

The rows of `benchmarks.llm.directions_total` at epsilon = 2: test accuracy on three tasks against the number K T of
directions in all, beside DP-AdamW, AdamW without privacy, and the model before training. A point is the mean of five
runs, with its 95% interval; that of DP-AdamW is a band.
"""

import sys

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.llm.directions_total import TASKS, ends
from benchmarks.llm.tasks import task
from figures.command import command
from figures.style import PAGE, series

LINES = {
    ("adamw", "none"): ("AdamW, not private", series(2).color, "--"),
    ("dp-adamw", "2"): ("DP-AdamW", series(1).color, "--"),
    ("zero-shot", "none"): ("before training", "0.35", ":"),
}
"""What is drawn as a line, by method and epsilon: its name, colour and dash."""


def draw(rows: pd.DataFrame) -> Figure:
    """Return the figure of the rows of `benchmarks.llm.directions_total`."""
    found = ends(rows)
    names = [name for name in TASKS if (name, "zero-shot", "none", "0") in found]
    figure, axes = plt.subplots(1, len(names), figsize=(PAGE, 2.3), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        mine = {int(at[3]): end for at, end in found.items() if at[:3] == (name, "dpzero", "2")}
        axis.errorbar(
            list(mine), [end.mean for end in mine.values()], yerr=[end.half for end in mine.values()],
            label="DPZero, without gradients", **series(0).line(),
        )  # fmt: skip
        for (method, epsilon), (text, color, dash) in LINES.items():
            end = found[name, method, epsilon, "0"]
            axis.axhline(end.mean, color=color, linestyle=dash, linewidth=1, label=text)
            if method == "dp-adamw":
                axis.axhspan(end.mean - end.half, end.mean + end.half, color=color, alpha=0.15, linewidth=0)
        axis.set(xscale="log", xlabel="directions in all, K T", title=task(name).title)
    axes[0][0].set_ylabel("test accuracy (%)")
    handles, texts = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=4)
    return figure


_parser, main = command("figures.directions_total", __doc__, draw, "directions_total", tables=("llm_directions_total",))

if __name__ == "__main__":
    sys.exit(main())
