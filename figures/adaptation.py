"""Private adaptation of small language models that were made here: only d varies.

    python -m figures.adaptation

(a) The steps of DPZero (epsilon = 6) until the loss on questions has fallen by 0.2 nats, against d, for OPT of two
layers and widths 16 to 128. Each run is a dot, and a line goes through their means; a dotted line grows like d. (b) The
effective rank r of the same models that `benchmarks.adaptation_widths` measures, with its interval.
"""

import sys
from collections.abc import Iterable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from figures.command import command
from figures.style import PAGE, label_panels, series


def draw(steps: pd.DataFrame, ranks: pd.DataFrame) -> Figure:
    """Return the figure. steps has the rows of steps to a target loss, ranks those of the measured effective ranks."""
    figure, axes = plt.subplots(1, 2, figsize=(PAGE, 2.6))
    _draw_steps(axes[0], steps)
    _draw_ranks(axes[1], ranks)
    label_panels(axes)
    return figure


def _draw_steps(axis: Axes, steps: pd.DataFrame) -> None:
    look = series(0)
    means = steps.groupby("d")["steps"].mean()
    axis.plot(means.index, means, **look.line(label="mean over runs (dots)", marker="none"))
    axis.plot(steps["d"], steps["steps"], **look.line(linestyle="none"))
    reach = np.array([means.index.min(), means.index.max()])
    axis.plot(
        reach, means.iloc[0] * reach / reach[0], color="0.4", linewidth=0.8, linestyle=(0, (1, 1.5)), label="like $d$"
    )
    axis.set_title("steps until the loss has fallen by 0.2 nats")
    _by_width(axis, means.index)
    axis.legend(loc="upper left", fontsize=6.5)


def _draw_ranks(axis: Axes, ranks: pd.DataFrame) -> None:
    r = ranks["rank_estimate"]
    error = [r - ranks["rank_low"], ranks["rank_high"] - r]
    axis.errorbar(ranks["d"], r, yerr=error, **series(2).line())
    axis.set_title("effective rank $r$ at the start, with its bracket")
    _by_width(axis, ranks["d"])


def _by_width(axis: Axes, d: Iterable[int]) -> None:
    """Make both axes logarithmic, and label the numbers of weights `d` and round values of what is drawn."""
    axis.set(xscale="log", yscale="log", xlabel="$d$, weights trained")
    axis.set_xticks(list(d), [f"{count / 1000:.0f}k" for count in d])
    axis.xaxis.set_minor_locator(NullLocator())
    values = [value for value in (10, 20, 50, 100, 200, 500, 1000) if value <= axis.get_ylim()[1]]
    axis.set_yticks(values, [str(value) for value in values])
    axis.yaxis.set_minor_locator(NullLocator())


_parser, main = command(
    "figures.adaptation", __doc__, draw, "adaptation", tables=("adaptation_steps", "adaptation_widths")
)

if __name__ == "__main__":
    sys.exit(main())
