"""What the audits find, and what they can see.  python -m figures.audit

The figure audit_zoo has a row for every check that must find a fault of `benchmarks.audit_zoo`, with the number of
loops that have such a fault, and a last row for the sound loops; it has a column for every check. A cell is the share
of the row's audits in which the column's check says "violated". At the right it says in how many of the audits the
fault was found by the check that must find it, and how many audits of sound loops reported anything.

The figure audit_bounds has two panels. (a) Lower bounds on epsilon of the Gaussian mechanism, over its exact epsilon,
against the number of runs, or of canaries in one run (`benchmarks.lower_bounds` at mu = 1/2). They are medians of 200
audits, with bars from their 5% to their 95% quantile; markers of this project's methods are filled, those of
jax_privacy open. What is above the line at 1 is above the truth, where a lower bound may be in 5% of the audits at
most. (b) The number of runs until missing noise is refuted (`benchmarks.audit_power` at mu = 1).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.cli import Parser, output_folder
from figures.style import FIGURES, PAGE, label_panels, save, series, use_style

_OTHERS = ("loop", "repeat", "finds", "found", "said", "violated", "runs", "wall_s", "cpu_s", "status")
BOUNDS = {
    "attack, gdp": "many runs, Clopper-Pearson",
    "sequential, gdp": "many runs, sequential",
    "one run, gdp": "one run, f-DP",
    "jax_privacy gdp": "jax_privacy, many runs",
    "jax_privacy one run, f-dp": "jax_privacy, one run, f-DP",
}
POWERS = {
    "noise-size": "numbers of noise, seen",
    "clopper-pearson": "pairs of runs, Clopper-Pearson",
    "sequential": "pairs of runs, sequential",
}


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


def bounds(axes: Axes, table: pd.DataFrame) -> None:
    """Draw panel (a) from the rows of `benchmarks.lower_bounds`: lower bounds on epsilon over the exact one, against
    the number of runs or canaries."""
    at = table[(table["mechanism"] == "gaussian") & (table["strength"] == 0.5)]
    for k, (method, label) in enumerate(BOUNDS.items()):
        rows = at[at["method"] == method].sort_values("size")
        if rows.empty:
            continue
        low, middle, high = (rows[name] / rows["exact"] for name in ("q05", "median", "q95"))
        look = series(k).line(label=label)
        if method.startswith("jax"):
            look |= {"markerfacecolor": "white", "markeredgecolor": series(k).color, "markeredgewidth": 1.0}
        axes.errorbar(rows["size"] * 1.06 ** (k - 2), middle, yerr=[middle - low, high - middle], **look)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(xscale="log", ylim=(0, None), xlabel="runs, or canaries in one run", ylabel="lower bound / exact epsilon")
    axes.set_title("Gaussian mechanism, mu = 1/2, confidence 95%")
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=2, fontsize=6)


def power(axes: Axes, table: pd.DataFrame) -> None:
    """Draw panel (b) from the rows of `benchmarks.audit_power`: how many runs it takes until missing noise is
    refuted."""
    for k, (method, label) in enumerate(POWERS.items()):
        rows = table[(table["method"] == method) & (table["claimed"] == 1.0)].sort_values("share")
        axes.plot(rows["share"], rows["q95"], **series(k).line(label=label))
    axes.set(yscale="log", xlabel="share of the noise that is there", ylabel="numbers or pairs that refute it")
    axes.set_title("missing noise: mu = 1 claimed, error 1e-6")
    axes.legend(loc="upper left")


def draw(folder: Path, results: Path = RESULTS) -> list[Path]:
    """Draw both figures from the folders of rows below `results`, save them in `folder`, and return their files."""
    use_style()
    paths = save(matrix(read_rows(results / "audit_zoo"), read_rows(results / "audit_zoo_sound")), "audit_zoo", folder)
    figure, axes = plt.subplots(1, 2, figsize=(PAGE, 3.2))
    bounds(axes[0], read_rows(results / "lower_bounds"))
    power(axes[1], read_rows(results / "audit_power"))
    label_panels(axes)
    return paths + save(figure, "audit_bounds", folder)


def _parser() -> Parser:
    parser = Parser("figures.audit", __doc__)
    parser.add_argument("--out", type=output_folder, default=FIGURES)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    draw(_parser().parse_args(argv).out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
