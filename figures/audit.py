"""What the audits find, and what they can see.  python -m figures.audit

The figure audit_zoo has a row for every faulty loop of `benchmarks.audit_zoo` and a column for every check. A cell is
orange if the check says "violated" in the first audit, with a dot if it is the check that must find this fault; light
blue if it says "held"; white if it could not test. Below the line are the sound loops. At the right it says in how many
of its audits a fault was found by that check, or a sound loop was reported by any check.

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
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.cli import Parser, output_folder
from figures.style import FIGURES, PAGE, label_panels, save, series, use_style

VIOLATED, HELD, UNTESTED = "#E69F00", "#cfe6f5", "#ffffff"
CODES = {"untested": 0, "held": 1, "VIOLATED": 2}
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
    """Return the figure of the verdict of every check on every loop, those with a fault above and the sound ones
    below."""
    checks = [name for name in faults.columns if name not in _OTHERS]
    by_check = faults.sort_values("finds", key=lambda c: c.map(checks.index), kind="stable")
    kinds = [each.groupby("loop", sort=False) for each in (by_check, sound)]
    table = pd.concat([each.head(1) for each in kinds])
    counts = pd.concat([each["found"].agg(lambda found: f"{(found == 'yes').sum()} of {len(found)}") for each in kinds])
    cells = table[checks].replace(CODES).to_numpy(dtype=float)
    figure, axes = plt.subplots(figsize=(PAGE, 0.115 * len(table) + 1.4))
    axes.grid(False)
    axes.imshow(cells, cmap=ListedColormap([UNTESTED, HELD, VIOLATED]), vmin=0, vmax=2, aspect="auto")
    for row, finds in enumerate(table["finds"].fillna("")):
        axes.text(len(checks) - 0.3, row, counts.iloc[row], fontsize=4.5, va="center")
        if finds:
            axes.plot(checks.index(finds), row, "o", color="black", markersize=2.6)
    axes.axhline(len(kinds[0]) - 0.5, color="black", linewidth=0.8)
    axes.set_xticks(range(len(checks)), checks, rotation=60, ha="left", fontsize=6)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(table)), table["loop"], fontsize=5)
    axes.tick_params(length=0)
    axes.set_xticks(np.arange(len(checks) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(table) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    marks = [
        Patch(facecolor=VIOLATED, label="violated"),
        Patch(facecolor=HELD, label="held"),
        Patch(facecolor=UNTESTED, edgecolor="#bbbbbb", label="could not be tested"),
        Line2D([], [], marker="o", color="black", linestyle="", markersize=3, label="the check that must find it"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=4)
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
    axes.set(yscale="log", xlabel="share of the noise that is there", ylabel="needed with probability 95%")
    axes.set_title("mu = 1 claimed of a run, error 1e-6")
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
