"""Only d varies, on a pretrained language model: steps against the number of trained weights.  python -m figures.only_d

The rows of `benchmarks.llm.only_d`: private steps of DPZero until the loss on held-out records has fallen by 0.2 nats,
against d, for two step sizes s in units of 1/G^2. Each run is a dot, and lines go through the means of logarithms. The
dotted line grows like d. Runs that did not get there are triangles at their last step.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from figures.command import command
from figures.style import COLUMN, series


def draw(*made: pd.DataFrame) -> Figure:
    """Return the figure of the rows of `benchmarks.llm.only_d`, which may come in several tables."""
    rows = pd.concat(made, ignore_index=True)
    figure, axis = plt.subplots(figsize=(1.5 * COLUMN, 2.6))
    for index, (scale, part) in enumerate(rows.groupby("scale")):
        look = series(index)
        reached, rest = part.dropna(subset="steps"), part[part["steps"].isna()]
        axis.plot(reached["d"], reached["steps"], **look.line(linestyle="none", alpha=0.45))
        axis.plot(rest["d"], rest["steps_made"], **look.line(linestyle="none", alpha=0.45, marker="^"))
        means = np.exp(np.log(reached["steps"]).groupby(reached["d"]).mean())
        axis.plot(means.index, means, **look.line(marker="none"))
        axis.annotate(
            f"$s = {scale:g}$", (means.index[0], means.iloc[0]), xytext=(-6, -3), textcoords="offset points",
            color=look.color, horizontalalignment="right",
        )  # fmt: skip
    sizes = sorted(rows["d"].unique())
    begun = float(np.exp(np.log(rows.loc[rows["d"] == sizes[0], "steps"].dropna()).mean()))
    reach = np.array([sizes[0], sizes[0] * 40])
    axis.plot(reach, begun * reach / reach[0], color="0.4", linewidth=1, linestyle=":")
    axis.annotate("like $d$", (reach[1], begun * 40), xytext=(6, -6), textcoords="offset points", color="0.35")
    axis.set(
        xscale="log", yscale="log", xlabel="$d$, weights trained", ylabel="private steps to $-0.2$ nats",
        xlim=(80, 4e8), ylim=(4, 2000),
        title="SmolLM2-135M on SST-2, $\\varepsilon = 2$: 230,000 times the weights",
    )  # fmt: skip
    axis.set_xticks([10**k for k in range(3, 9)], [f"$10^{k}$" for k in range(3, 9)])
    axis.set_yticks([10, 100, 1000], ["10", "100", "1,000"])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_locator(NullLocator())
    return figure


_parser, main = command("figures.only_d", __doc__, draw, "only_d", tables=("llm_only_d", "llm_only_d_gpu"))

if __name__ == "__main__":
    sys.exit(main())
