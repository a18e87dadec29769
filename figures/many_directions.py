"""DPZero on all weights of a language model: accuracy against directions.  python -m figures.many_directions

The rows of llm_all_weights, a finished experiment (300 directions in all, at most), and those of
`benchmarks.llm.many_directions` (64 a step): test accuracy on SST-2 at epsilon = 2 against the number of directions
that a run has had, beside DP-AdamW, AdamW without privacy, and the model before training, each a line. A point is the
mean of the reported runs; those of many directions are along runs of 64,000. Its bar, and DP-AdamW's band, are the 95%
interval of an accuracy on 872 test sentences; how runs differ from each other is not in it, as most are single runs.
"""

import math
import sys

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.kit.rows import having
from figures.command import command
from figures.style import COLUMN, series

LINES = {
    ("adamw", "none"): "AdamW, not private",
    ("dp-adamw", "2"): "DP-AdamW",
    ("zero-shot", "none"): "before training",
}
"""What is drawn as a line, by method and epsilon."""
STEPS = 300
"""The steps, of one direction each, of the runs of llm_all_weights."""
TEST = 872
"""The test sentences."""


def _accuracy(rows: pd.DataFrame, method: str, epsilon: str) -> float:
    found = having(rows.astype({"epsilon": str, "setting": str}), method=method, epsilon=epsilon, setting="chosen")
    return float(100 * found["test_accuracy"].mean())


def _half(accuracy: float) -> float:
    """Return half the 95% interval of an accuracy on the test sentences; both are in percent."""
    return 1.96 * math.sqrt(accuracy * (100 - accuracy) / TEST)


def draw(few: pd.DataFrame, many: pd.DataFrame) -> Figure:
    """Return the figure of the rows `few` of llm_all_weights and `many` of llm_many_directions."""
    figure, axis = plt.subplots(figsize=(1.5 * COLUMN, 2.6))
    runs = having(many.astype({"setting": str}), method="dpzero", setting="chosen")
    along = 100 * runs.groupby("steps")["test_accuracy"].mean()
    total = [STEPS, *(along.index * runs["directions"].iloc[0])]
    accuracy = [_accuracy(few, "dpzero", "2"), *along]
    axis.errorbar(total, accuracy, yerr=[_half(each) for each in accuracy], **series(0).line(markersize=4))
    axis.annotate(
        f"DPZero: {accuracy[-1]:.0f}%", (total[-1], accuracy[-1]), xytext=(8, -9), textcoords="offset points",
        color=series(0).color,
    )  # fmt: skip
    for place, ((method, epsilon), text) in enumerate(LINES.items()):
        height, color = _accuracy(few, method, epsilon), (*(series(n).color for n in (2, 1)), "0.35")[place]
        axis.axhline(height, color=color, linewidth=1, linestyle=":" if method == "zero-shot" else "--")
        if method == "dp-adamw":
            axis.axhspan(height - _half(height), height + _half(height), color=color, alpha=0.15, linewidth=0)
        axis.annotate(
            f"{text}: {height:.0f}%", (total[-1], height), xytext=(8, 1), textcoords="offset points", color=color,
            annotation_clip=False,
        )  # fmt: skip
    axis.set(
        xscale="log", xlabel="directions in all", ylabel="test accuracy (%)", xlim=(total[0] / 1.3, total[-1] * 1.1),
        title=r"All weights of SmolLM2-135M, SST-2, $\varepsilon = 2$",
    )  # fmt: skip
    return figure


_parser, main = command(
    "figures.many_directions", __doc__, draw, "many_directions", tables=("llm_all_weights", "llm_many_directions")
)

if __name__ == "__main__":
    sys.exit(main())
