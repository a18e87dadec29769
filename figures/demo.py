"""The rate against the dimension, from the rows of `benchmarks.demo`, which calls this.  python -m figures.demo"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.command import command
from figures.style import PAGE, series

MODES = {"a": "eigenvalues 1: r = d", "c": "eigenvalues 1/i: r = O(log d)"}


def draw(rows: pd.DataFrame) -> Figure:
    """Return the figure of the demo's rows: a panel for each mode (spectrum) and a line for each method, with its
    slope on logarithmic axes."""
    figure, panels = plt.subplots(1, 2, figsize=(PAGE, 2.8), sharey=True)
    for panel, (mode, title) in zip(panels, MODES.items(), strict=True):
        for i, method in enumerate(rows["method"].unique()):
            line = rows[(rows["mode"] == mode) & (rows["method"] == method)]
            slope = np.polyfit(np.log(line["d"]), np.log(line["gradient_norm"]), 1)[0]
            panel.plot(line["d"], line["gradient_norm"], label=f"{method} (slope {slope:.2f})", **series(i).line())
        panel.set(xscale="log", yscale="log", xlabel="dimension d", title=title)
        dimensions = sorted(rows["d"].unique())
        panel.set_xticks(dimensions, [str(d) for d in dimensions])
        panel.set_xticks([], minor=True)
        panel.legend()
    panels[0].set_ylabel("best gradient norm, last iterate")
    return figure


_parser, main = command("figures.demo", __doc__, draw, "rate_vs_dimension", rows="out/demo", out="out/demo")

if __name__ == "__main__":
    sys.exit(main())
