"""Accuracy against K at equal privacy and evaluations.  python -m figures.equal_evaluations

There is a panel for each task and for what is trained, and a line for each number of evaluations K T of a record in a
batch, for K directions in each of T steps. LoRA and the layer are those of the small sentence encoder. Shown are means
over the reported seeds of `benchmarks.equal_evaluations`, with standard errors. Clips and step sizes are chosen on
other seeds and records.
"""

import sys

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures.command import command
from figures.style import PAGE, label_panels, series

REPORTED = 2  # the smallest seed of runs that are reported; runs with smaller seeds choose clip and step size
COLUMNS, LEAST_SPAN = 4, 10.0
"""Panels side by side, and the fewest points of accuracy that an axis spans, so that noise does not look like more."""
TITLES = {
    "trec": "TREC, label vectors", "trec, norm": "TREC, and last norm",
    "trec, lora": "TREC, LoRA", "trec, body": "TREC, a layer",
    "sst5": "SST-5, label vectors", "sst2": "SST-2, label vectors", "digits": "digits, logistic",
}  # fmt: skip


def draw(*tables: pd.DataFrame) -> Figure:
    """Return the figure of these rows of `benchmarks.equal_evaluations`. Only rows of the plain update, without
    momentum, decay or schedule, are shown."""
    rows = pd.concat(tables)
    plain = (rows["update"] == "plain") & (rows["weight_decay"] == 0) & (rows["schedule"] == "constant")
    reported = rows[plain & (rows["seed"] >= REPORTED)]
    tasks = [name for name in TITLES if (reported["task"] == name).any()]
    budgets = sorted(reported["evaluations"].unique())
    columns = min(COLUMNS, len(tasks))
    lines = -(-len(tasks) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(PAGE, 2.1 * lines), squeeze=False)
    for empty in axes.flat[len(tasks) :]:
        empty.axis("off")
    for axis, name in zip(axes.flat, tasks, strict=False):
        part = reported[reported["task"] == name]
        for evaluations in sorted(part["evaluations"].unique()):
            table = 100 * part[part["evaluations"] == evaluations].groupby("directions")["accuracy"].agg(
                ["mean", "sem"]
            )
            look = series(budgets.index(evaluations)).line(label=f"{evaluations:,} evaluations")
            axis.errorbar(table.index, table["mean"], yerr=table["sem"], **look)
        ks = sorted(part["directions"].unique())
        axis.set(xscale="log", xlabel="$K$, directions a step", title=TITLES[name])
        low, high = axis.get_ylim()
        wider = max(LEAST_SPAN - (high - low), 0) / 2
        axis.set_ylim(low - wider, high + wider)
        axis.set_xticks(ks, [str(k) for k in ks])
        axis.minorticks_off()
    for row in axes[:, 0]:
        row.set_ylabel("test accuracy, %")
    label_panels(axes.flat[: len(tasks)])
    looks = [series(index).line(label=f"{count:,} evaluations") for index, count in enumerate(budgets)]
    handles = [Line2D([], [], **look) for look in looks]
    if len(tasks) < axes.size:
        axes.flat[-1].legend(handles=handles, loc="center")
    else:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


_parser, main = command(
    "figures.equal_evaluations",
    __doc__,
    draw,
    "equal_evaluations",
    tables=("equal_evaluations", "equal_evaluations_encoder"),
)

if __name__ == "__main__":
    sys.exit(main())
