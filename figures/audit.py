"""What the audits find, and what they can see.  python -m figures.audit

The figure audit_zoo has a row for every check that must find a fault of `benchmarks.audit_zoo`, with the number of
loops that have such a fault, and a last row for the sound loops; it has a column for every check. A cell is the share
of the row's audits in which the column's check says "violated". At the right it says in how many of the audits the
fault was found by a check that is about it, and how many audits of sound loops reported anything.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures.command import command
from figures.style import PAGE

_OTHERS = ("loop", "repeat", "finds", "found", "said", "violated", "runs", "wall_s", "cpu_s", "status")


def matrix(faults: pd.DataFrame, sound: pd.DataFrame) -> Figure:
    """Return the figure of which checks report which kinds of faults. The arguments have the rows of
    `benchmarks.audit_zoo` for faulty and for sound loops."""
    checks = [name for name in faults.columns if name not in _OTHERS]
    kinds = [(name, faults[faults["finds"] == name]) for name in checks if (faults["finds"] == name).any()]
    shares = [(part[checks] == "VIOLATED").mean() for _, part in kinds] + [(sound[checks] == "VIOLATED").mean()]
    names = [f"{name} ({part['loop'].nunique()})" for name, part in kinds]
    said = [f"{(part['found'] == 'yes').sum()} of {len(part)} found" for _, part in kinds]
    names.append(f"sound loops ({sound['loop'].nunique()})")
    said.append(f"{(sound['found'] == 'yes').sum()} of {len(sound)} reported")
    figure, axes = plt.subplots(figsize=(PAGE, 4.3))
    axes.grid(False)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, text in enumerate(said):
        axes.text(len(checks) - 0.3, row, text, fontsize=6, va="center")
        if row < len(kinds):
            axes.plot(checks.index(kinds[row][0]), row, "o", color="white", markersize=3)
    axes.axhline(len(kinds) - 0.5, color="black", linewidth=0.8)
    axes.set_xticks(range(len(checks)), checks, rotation=60, ha="left", fontsize=6)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.set_ylabel("the check that must find the fault (loops with it)")
    axes.set_title("the check that reports it")
    axes.tick_params(length=0)
    axes.set_xticks(np.arange(len(checks) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    dot = Line2D([], [], marker="o", color="#08306b", markerfacecolor="white", linestyle="", markersize=4)
    label = 'share of audits that say "violated"'
    figure.colorbar(image, ax=axes, location="bottom", label=label, aspect=50, shrink=0.5, pad=0.02)
    axes.legend([dot], ["must find it"], loc="upper left", bbox_to_anchor=(-0.2, 1.2), fontsize=6)
    return figure


_parser, main = command("figures.audit", __doc__, matrix, "audit_zoo", tables=("audit_zoo", "audit_zoo_sound"))

if __name__ == "__main__":
    sys.exit(main())
