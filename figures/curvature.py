"""Effective rank against d, and prescriptions beside a grid search.  python -m figures.curvature

(a) r = tr|H|/||H|| of the networks of `benchmarks.curvature`, with 95% intervals, one line per moment of training (mean
over seeds); the real encoder and the small transformers are points; (b) the two parts of r. In the second figure, the
loss that each step size and clip reaches at equal privacy, with what the theory prescribes from measured constants.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.results import RESULTS, read_rows
from figures.style import FIGURES, PAGE, label_panels, save, series, use_style

__all__ = ["draw_prescription", "draw_rank", "main"]

MOMENTS = {"before": ("before training", 0), "during": ("30 steps of Adam", 1), "after": ("600 steps", 2)}
OTHERS = {"roberta-tiny": ("RoBERTa, random", "P"), "opt-tiny": ("OPT, random", "X")}
ENCODERS = {"minilm-biases": "real encoder, biases and norms", "minilm-body": "real encoder, all but embeddings"}
TASKS = {"digits": "digits, 64 - 16 - 10", "minilm": "SST-2, real encoder"}


def draw_rank(rows: pd.DataFrame, measured: Mapping[str, Mapping[str, Any]]) -> Figure:
    """rows: `benchmarks.curvature`; measured: the contents of problem files by name."""
    figure, axes = plt.subplots(1, 2, figsize=(PAGE, 3.0), width_ratios=(1.5, 1))
    networks = rows[rows["model"].str.startswith("mlp")]
    for moment, (label, index) in MOMENTS.items():
        part = networks[networks["moment"] == moment].groupby("d")
        mean, low, high = (part[f"rank_{end}"].mean() for end in ("estimate", "low", "high"))
        look = series(index)
        axes[0].errorbar(mean.index, mean, yerr=[mean - low, high - mean], **look.line(label=f"MLPs, {label}"))
        for name, filled in (("absolute_trace", True), ("norm", False)):
            values = part[f"{name}_estimate"].mean()
            inside = look.color if filled else "white"
            line = look.line(markerfacecolor=inside, markeredgecolor=look.color, markeredgewidth=0.8)
            axes[1].plot(values.index, values, **line)
    for model in [name for name in OTHERS if name in set(rows["model"])]:
        label, marker = OTHERS[model]
        for moment, (_, index) in MOMENTS.items():
            at = rows[(rows["model"] == model) & (rows["moment"] == moment)]
            named = {"label": label} if moment == "before" else {}
            face = {"color": series(index).color, "linestyle": "none", **named}
            axes[0].plot(at["d"], at["rank_estimate"], marker, **face)
    for index, (name, content) in enumerate(measured.items()):
        rank = [point["effective_rank"] for point in content["measurements"]["points"]]
        d = content["problem"]["d"]
        for number, item in enumerate(rank):
            error = [[item["estimate"] - item["low"]], [item["high"] - item["estimate"]]]
            text = {"label": ENCODERS[name]} if number == 0 else {}
            axes[0].errorbar([d], [item["estimate"]], yerr=error, **series(3 + index).line(linestyle="none", **text))
    axes[0].plot([1, 1e9], [1, 1e9], color="0.4", linewidth=0.8)
    axes[0].text(2e4, 2e4, "r = d  ", color="0.4", ha="right", va="bottom", size=7)
    for axis, title, label in zip(axes, ("effective rank", "its parts"), ("$r$", "curvature"), strict=True):
        axis.set(xscale="log", yscale="log", title=title, xlabel="dimension $d$", ylabel=label)
    largest = max([float(rows["d"].max()), *(content["problem"]["d"] for content in measured.values())])
    axes[0].set(xlim=(100, 3 * largest), ylim=(1, 300 * float(rows["rank_high"].max())))
    axes[0].legend(loc="upper left", fontsize=6)
    axes[1].plot([], [], "o", color="0.3", label=r"tr$|H|$")
    axes[1].plot([], [], "o", color="0.3", markerfacecolor="white", label=r"$\|H\|_2$")
    axes[1].legend(loc="lower left")
    label_panels(axes)
    return figure


def draw_prescription(tasks: Mapping[str, pd.DataFrame]) -> Figure:
    """tasks: the rows of `benchmarks.prescription` by task."""
    figure, axes = plt.subplots(1, len(tasks), figsize=(PAGE if len(tasks) > 1 else PAGE / 2, 2.8), squeeze=False)
    for axis, (task, rows) in zip(axes[0], tasks.items(), strict=True):
        _draw_grid(axis, rows)
        axis.set(xscale="log", title=TASKS[task], xlabel=r"step size $\alpha$", ylabel="training loss at the end")
        axis.legend(fontsize=6)
    if len(tasks) > 1:
        label_panels(axes[0])
    return figure


def _draw_grid(axis: Axes, rows: pd.DataFrame) -> None:
    grid = rows[rows["choice"] == "grid"]
    for index, (clip, part) in enumerate(grid.groupby("clip")):
        mean = part.groupby("step_size")["loss"].mean()
        axis.plot(mean.index, mean, **series(index).line(label=f"grid, $C$ = {clip:.3g}"))
    for choice, marker in (("theory", "*"), ("theory-estimates", "p")):
        part = rows[rows["choice"] == choice]
        if not part.empty:
            label = f"{choice.replace('-', ', ')}, $C$ = {part['clip'].iloc[0]:.3g}"
            axis.plot(
                part["step_size"], part["loss"], marker, color="black", markersize=9, linestyle="none", label=label
            )
    axis.axhline(float(rows["loss_before"].mean()), color="0.4", linewidth=0.8)


def main() -> None:
    """Draw both figures from benchmarks/results."""
    parser = argparse.ArgumentParser(prog="figures.curvature", description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=FIGURES)
    options = parser.parse_args()
    use_style()
    files = {name: options.results / "curvature_problems" / f"{name}.json" for name in ENCODERS}
    measured = {name: json.loads(path.read_text()) for name, path in files.items() if path.exists()}
    save(draw_rank(read_rows(options.results / "curvature"), measured), "curvature_rank", options.out)
    folders = {task: options.results / f"prescription_{task}" for task in TASKS}
    found = {task: read_rows(folder) for task, folder in folders.items() if (folder / "rows.csv").exists()}
    tasks = {task: rows for task, rows in found.items() if (rows["choice"] == "grid").any()}
    if tasks:
        save(draw_prescription(tasks), "curvature_prescription", options.out)


if __name__ == "__main__":
    main()
