"""A pretrained language model tuned privately: accuracy against steps.  python -m figures.language_model

The rows of `benchmarks.llm.last_norm`: test accuracy on SST-2 along the runs of DPZero at epsilon = 2, and of AdamW
without privacy, from the same weights and on the same records. Bands are 95% intervals of the mean over the seeds
(Student's t). The dotted line is the model before training.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import t

from benchmarks.kit.rows import RESULTS
from figures.command import command
from figures.style import COLUMN, series

LARGE, CHOSEN, NONE = 4096, "chosen", "none"
"""Of the rows: the number of phrases, the setting of the runs that are reported, and no epsilon."""
LINES = {("adamw", NONE): "AdamW, not private", ("dpzero", "2"): r"DPZero, private, $\varepsilon = 2$"}


def curve(rows: pd.DataFrame, method: str, epsilon: str, n: int = LARGE) -> pd.DataFrame:
    """Return by step the `mean` test accuracy in percent of the reported runs of a method at this epsilon on n training
    phrases, and `half` the width of the mean's 95% interval."""
    mine = rows[(rows["method"] == method) & (rows["epsilon"].astype(str) == epsilon) & (rows["n"] == n)]
    found = mine[mine["setting"].astype(str) == CHOSEN].groupby("step")["test_accuracy"].agg(["mean", "sem", "count"])
    half = found["sem"] * t.ppf(0.975, np.maximum(found["count"] - 1, 1))
    return pd.DataFrame({"mean": 100 * found["mean"], "half": 100 * half})


def draw(rows: pd.DataFrame) -> Figure:
    """Return the figure of the rows of `benchmarks.llm.last_norm`: for each of LINES the mean test accuracy in percent
    against the number of steps, in a band that is the mean's 95% interval, and the accuracy before training."""
    figure, axis = plt.subplots(figsize=(1.5 * COLUMN, 2.6))
    for index, ((method, epsilon), text) in enumerate(LINES.items()):
        found, look = curve(rows, method, epsilon), series(1 - index)
        axis.plot(found.index, found["mean"], **look.line(markersize=3.5))
        band = (found["mean"] - found["half"], found["mean"] + found["half"])
        axis.fill_between(found.index, *band, color=look.color, alpha=0.2, linewidth=0)
        end = found.iloc[-1]
        axis.annotate(
            f"{text}: {end['mean']:.0f}%",
            (found.index[-1], end["mean"]),
            xytext=(8, -3),
            textcoords="offset points",
            color=look.color,
        )
    before = float(curve(rows, "zero-shot", NONE)["mean"].iloc[0])
    axis.axhline(before, color="0.4", linewidth=1, linestyle=":")
    axis.annotate(
        f"before training: {before:.0f}%", (found.index[-1], before), xytext=(8, -3),
        textcoords="offset points", color="0.35", annotation_clip=False,
    )  # fmt: skip
    axis.set(xlabel="steps", ylabel="test accuracy (%)", title="SmolLM2-135M on SST-2", xlim=(0, found.index[-1]))
    return figure


_parser, main = command("figures.language_model", __doc__, draw, "language_model", rows=RESULTS / "llm_last_norm")

if __name__ == "__main__":
    sys.exit(main())
