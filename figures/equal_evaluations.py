"""Accuracy against K at equal privacy and evaluations.  python -m figures.equal_evaluations

There is a panel for each task and a line for each number of evaluations K T of a record in a batch, for K directions in
each of T steps. Shown are means over the reported seeds of `benchmarks.equal_evaluations`, with standard errors. Clips
and step sizes are chosen on other seeds and records.
"""

import sys

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from figures.command import command
from figures.style import PAGE, label_panels, series

REPORTED = 2  # the smallest seed of runs that are reported; runs with smaller seeds choose clip and step size
COLUMNS = 2
TITLES = {
    "trec": "TREC, label vectors", "trec, norm": "TREC, and last normalisation",
    "trec, lora": "TREC, small encoder, LoRA", "trec, body": "TREC, small encoder, its layer",
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
    figure, axes = plt.subplots(lines, columns, figsize=(PAGE, 2.5 * lines), squeeze=False)
    for empty in axes.flat[len(tasks) :]:
        empty.remove()
    for axis, name in zip(axes.flat, tasks, strict=False):
        part = reported[reported["task"] == name]
        for evaluations in sorted(part["evaluations"].unique()):
            table = 100 * part[part["evaluations"] == evaluations].groupby("directions")["accuracy"].agg(
                ["mean", "sem"]
            )
            look = series(budgets.index(evaluations)).line(label=f"{evaluations:,} evaluations")
            axis.errorbar(table.index, table["mean"], yerr=table["sem"], **look)
        ks = sorted(part["directions"].unique())
        axis.set(xscale="log", xlabel="$K$, directions a step", ylabel="test accuracy, %", title=TITLES[name])
        axis.set_xticks(ks, [str(k) for k in ks])
        axis.minorticks_off()
        axis.legend(loc="best", fontsize=6.5)
    label_panels(axes.flat[: len(tasks)])
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
