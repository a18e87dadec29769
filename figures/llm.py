"""The language-model runs: accuracy of every method, and clip against step size.  python -m figures.llm

The figure llm_accuracy has the test accuracy of the small encoder, mean and standard error over seeds, as in the
paper's tab:dpzero-mezo; the paper's own numbers, of another and larger model, are in grey.

The figure llm_clip_lr shows DPZero as the paper's fig:clip_lr does. (a) The loss on the development set along the run
for several clips (the paper shows the training loss, which the runs never compute). (b) and (c) Test loss and accuracy
over clip and step size, with the best step size of each clip in a frame.
"""

import sys
import tomllib
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.cli import Parser, input_folder, output_folder
from figures.style import FIGURES, PAGE, label_panels, log_ticks, save, series, use_style

PAPER = FIGURES.parent / "paper_checks" / "tables.toml"
METHODS = {
    "zero-shot": "Zero-Shot", "dpgd-0th": "DPGD-0th", "dpzero": "DPZero", "mezo": "MeZO",
    "dp-lora": "DP-LoRA", "lora": "LoRA", "dp-adamw": "DP-AdamW", "adamw": "AdamW",
}  # fmt: skip
TASKS = {"trec": "TREC", "sst2": "SST-2", "sst5": "SST-5", "rte": "RTE"}
LOOKS = {"2": (1, -0.13, r"$\varepsilon = 2$"), "6": (0, 0.13, r"$\varepsilon = 6$"), "none": (2, 0.0, "not private")}
"""For each epsilon, as the rows write it: the index of its colour and marker, the vertical offset of its points
within a method's line, and its text in the legend."""
FRAME = "#D55E00"


def accuracy(rows: pd.DataFrame) -> Figure:
    """Return the figure of accuracies, with a panel for each task and a line for each method. rows is the summary that
    `benchmarks.llm.table tab:dpzero-mezo` writes."""
    cells = rows.assign(error=rows["error"].fillna(0.0), epsilon=rows["epsilon"].astype(str))
    tasks = [name for name in TASKS if name in set(cells["task"])]
    methods = [name for name in METHODS if name in set(cells["method"])]
    paper = tomllib.loads(PAPER.read_text())["tab:dpzero-mezo"]
    figure, axes = plt.subplots(1, len(tasks), figsize=(PAGE, 2.7), sharey=True, squeeze=False)
    grey = {"linestyle": "none", "color": "0.75", "markersize": 3.2, "zorder": 1}
    for axis, name in zip(axes[0], tasks, strict=True):
        part = cells[cells["task"] == name]
        column = paper["columns"].index(TASKS[name])
        for epsilon, (look, shift, label) in LOOKS.items():
            line = part[part["epsilon"] == epsilon]
            places = [methods.index(method) + shift for method in line["method"]]
            style = series(look).line(linestyle="none", label=label)
            axis.errorbar(line["mean"], places, xerr=line["error"], **style)
            suffix = "" if epsilon == "none" else f" ({epsilon})"
            for method, place in zip(line["method"], places, strict=True):
                if METHODS[method] + suffix in paper:
                    axis.plot(paper[METHODS[method] + suffix][column], place, **series(look).line(**grey))
        for start in part[part["method"] == "zero-shot"]["mean"]:
            axis.axvline(float(start), color="0.5", linewidth=0.8, linestyle=":", zorder=0)
        axis.set(title=TASKS[name], xlabel="test accuracy (%)")
        axis.set_yticks(range(len(methods)), [METHODS[method] for method in methods])
        axis.margins(y=0.08)
    handles, labels = axes[0][0].get_legend_handles_labels()
    another = tuple(Line2D([], [], **series(look).line(**grey)) for look, _, _ in LOOKS.values())
    start = Line2D([], [], color="0.5", linewidth=0.8, linestyle=":")
    every: list[Any] = [*handles, another, start]
    figure.legend(
        every,
        [*labels, "grey: the paper's, RoBERTa-large", "our zero-shot"],
        handler_map={tuple: HandlerTuple(ndivide=None)},
        loc="outside lower center",
        ncols=5,
        columnspacing=1.2,
    )
    return figure


def clip_step_size(rows: pd.DataFrame) -> Figure:
    """Return the figure of clips and step sizes. rows has those that `benchmarks.llm.table fig:clip_lr` writes."""
    figure, axes = plt.subplots(1, 3, figsize=(PAGE, 2.5), width_ratios=(1.1, 1, 1))
    rows = rows.astype({"clip": float, "step_size": float})
    ends = rows[rows["test_metric"].notna()]
    chosen = float(ends.sort_values("dev_loss", kind="stable")["step_size"].iloc[0])
    curves = rows[rows["step_size"] == chosen]
    for index, (clip, curve) in enumerate(curves.groupby("clip")):
        line = curve.sort_values("step")
        axes[0].plot(line["step"], line["dev_loss"], **series(index).line(label=f"C = {clip:g}", markersize=3))
    axes[0].set(title=rf"dev loss, $\alpha$ = {chosen:g}", xlabel="step", yscale="log")
    axes[0].set_ylim(top=3 * curves["dev_loss"].max())
    axes[0].legend(ncols=2, handlelength=2.2, columnspacing=1.0, loc="upper center")
    log_ticks(axes[0].yaxis)
    _heat(axes[1], _grid(ends, "test_loss"), "test loss", "viridis_r", ".2f")
    _heat(axes[2], 100 * _grid(ends, "test_metric"), "test accuracy (%)", "viridis", ".0f")
    label_panels(axes)
    first = rows.iloc[0]
    text = rf"{TASKS[first['task']]}, $\varepsilon$ = {float(first['epsilon']):g}, one seed; "
    frame = Rectangle((0, 0), 1, 1, fill=False, edgecolor=FRAME, linewidth=1.3)
    figure.legend([frame], [text + "frame: the best step size of each clip"], loc="outside lower center")
    return figure


def _grid(ends: pd.DataFrame, column: str) -> pd.DataFrame:
    return ends.pivot(index="step_size", columns="clip", values=column)


def _heat(axis: Axes, grid: pd.DataFrame, title: str, colours: str, number: str) -> None:
    """Draw a heat map of the grid, which has a row for each step size and a column for each clip, under this title.
    Light colours are good: small losses, on a logarithmic scale, or large accuracies. colours is the name of the colour
    map, and number the format of the numbers in the cells."""
    values = grid.to_numpy()
    loss = colours.endswith("_r")
    scale = (LogNorm if loss else Normalize)(np.nanmin(values), np.nanmax(values))
    axis.imshow(values, origin="lower", aspect="auto", cmap=colours, norm=scale)
    axis.set(title=title, xlabel="clip C", ylabel=r"step size $\alpha$")
    axis.set_xticks(range(grid.shape[1]), [f"{value:g}" for value in grid.columns])
    axis.set_yticks(range(grid.shape[0]), [f"{value:g}" for value in grid.index])
    axis.grid(False)
    for (i, j), value in np.ndenumerate(values):
        light = (float(scale(value)) < 0.5) == loss
        axis.text(
            j, i, format(value, number), ha="center", va="center", color="black" if light else "white", fontsize=6
        )
    for j, i in enumerate((np.nanargmin if loss else np.nanargmax)(values, axis=0)):
        axis.add_patch(Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, edgecolor=FRAME, linewidth=1.3))


def _parser() -> Parser:
    parser = Parser("figures.llm", __doc__)
    parser.add_argument("--accuracy", type=input_folder(), default=RESULTS / "llm_dpzero_mezo_summary")
    parser.add_argument("--clip-lr", type=input_folder(), default=RESULTS / "llm_clip_lr")
    parser.add_argument("--out", type=output_folder, default=str(FIGURES))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Draw both figures from the rows that the command line names, by default those in benchmarks/results. Returns the
    exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    with parser.refusals("--accuracy"):
        table = read_rows(options.accuracy)
    with parser.refusals("--clip-lr"):
        grid = read_rows(options.clip_lr)
    use_style()
    save(accuracy(table), "llm_accuracy", options.out)
    save(clip_step_size(grid), "llm_clip_lr", options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
