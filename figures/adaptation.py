"""Private adaptation of small language models that were made here: only d varies, and every method.

    python -m figures.adaptation

(a) The steps of DPZero (epsilon = 6) until the loss on questions has fallen by 0.2 nats, against d, for OPT of two
layers and widths 16 to 128. Each run is a dot, and a line goes through their means; a dotted line grows like d. (b) The
effective rank r of the same models that `benchmarks.adaptation_widths` measures, with its interval. (c) The test
perplexity of every method, before training (line) and after it (means over seeds, with standard errors).
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
from figures.style import PAGE, label_panels, log_ticks, series

METHODS = {
    ("adamw", 0.0): "AdamW",
    ("dp-adamw", 6.0): "DP-AdamW (6)",
    ("dp-adamw", 2.0): "DP-AdamW (2)",
    ("mezo", 0.0): "MeZO",
    ("dpzero", 6.0): "DPZero (6)",
    ("dpzero", 2.0): "DPZero (2)",
    ("dpgd-0th", 6.0): "DPGD-0th (6)",
    ("dpgd-0th", 2.0): "DPGD-0th (2)",
}
FAMILIES = {"opt": "OPT", "roberta": "RoBERTa"}


def draw(steps: pd.DataFrame, ranks: pd.DataFrame, rows: pd.DataFrame) -> Figure:
    """Return the figure. steps has the rows of steps to a target loss, ranks those of the measured effective ranks, and
    rows those of `benchmarks.adaptation`."""
    figure, axes = plt.subplots(1, 3, figsize=(PAGE, 2.8), width_ratios=(1, 1, 1.3))
    _draw_steps(axes[0], steps)
    _draw_ranks(axes[1], ranks)
    _draw_methods(axes[2], rows)
    label_panels(axes)
    return figure


def _draw_steps(axis: Axes, steps: pd.DataFrame) -> None:
    look = series(0)
    means = steps.groupby("d")["steps"].mean()
    axis.plot(means.index, means, **look.line(label="steps to the target", marker="none"))
    axis.plot(steps["d"], steps["steps"], **look.line(linestyle="none"))
    reach = np.array([means.index.min(), means.index.max()])
    axis.plot(
        reach, means.iloc[0] * reach / reach[0], color="0.4", linewidth=0.8, linestyle=(0, (1, 1.5)), label="like $d$"
    )
    axis.set_title("only $d$ varies: steps")
    _by_width(axis, means.index)
    axis.legend(loc="upper left", fontsize=6.5)


def _draw_ranks(axis: Axes, ranks: pd.DataFrame) -> None:
    r = ranks["rank_estimate"]
    error = [r - ranks["rank_low"], ranks["rank_high"] - r]
    axis.errorbar(ranks["d"], r, yerr=error, **series(2).line())
    axis.set_title("effective rank $r$, 95%")
    _by_width(axis, ranks["d"])


def _by_width(axis: Axes, d: Iterable[int]) -> None:
    """Make both axes logarithmic, and label the numbers of weights `d` and round values of what is drawn."""
    axis.set(xscale="log", yscale="log", xlabel="$d$, weights trained")
    axis.set_xticks(list(d), [f"{count / 1000:.0f}k" for count in d])
    axis.xaxis.set_minor_locator(NullLocator())
    values = [value for value in (10, 20, 50, 100, 200, 500, 1000) if value <= axis.get_ylim()[1]]
    axis.set_yticks(values, [str(value) for value in values])
    axis.yaxis.set_minor_locator(NullLocator())


def ends(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the last row of each run that is shown: of the runs with other seeds than 0, with the step size and clip
    that were best, with seed 0, on the questions for choosing them."""
    last = rows[rows["step"] == rows["steps"]]
    case = ["family", "width", "method", "epsilon"]
    compared = last[last["seed"] == 0].reset_index(drop=True)
    best = compared.loc[compared.groupby(case)["dev_perplexity"].idxmin(), [*case, "step_size", "clip"]]
    return last[last["seed"] > 0].merge(best)


def _draw_methods(axis: Axes, rows: pd.DataFrame) -> None:
    last = ends(rows)
    counts = last.groupby(["family", "width"])[["method", "epsilon"]].apply(lambda part: len(part.drop_duplicates()))
    ran = set(zip(last["method"], last["epsilon"], strict=True))
    names = [text for key, text in METHODS.items() if key in ran]
    for index, family in enumerate(name for name in FAMILIES if name in counts.index.get_level_values(0)):
        width = int(counts[family].idxmax())
        part = last[(last["family"] == family) & (last["width"] == width)]
        start = rows[(rows["family"] == family) & (rows["width"] == width) & (rows["step"] == 0)]
        found = {
            text: part[(part["method"] == method) & (part["epsilon"] == epsilon)]["test_perplexity"].to_numpy(float)
            for (method, epsilon), text in METHODS.items()
        }
        found = {text: values for text, values in found.items() if len(values) > 1}
        places = np.array([names.index(text) for text in found])
        mean = np.array([values.mean() for values in found.values()])
        error = np.array([values.std(ddof=1) / np.sqrt(len(values)) for values in found.values()])
        look = series(index)
        label = f"{FAMILIES[family]}, width {width}"
        axis.errorbar(mean, places + 0.15 * (1 - 2 * index), xerr=error, **look.line(linestyle="none", label=label))
        axis.axvline(start["test_perplexity"].iloc[0], color=look.color, linewidth=0.8, linestyle=look.dash)
    axis.set(xscale="log", xlabel="test perplexity (line: before)", title="every method")
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    log_ticks(axis.xaxis)
    axis.legend(loc="upper center", bbox_to_anchor=(0.4, -0.2), ncols=2, fontsize=6.5)


_parser, main = command(
    "figures.adaptation", __doc__, draw, "adaptation", tables=("adaptation_steps", "adaptation_widths", "adaptation")
)

if __name__ == "__main__":
    sys.exit(main())
