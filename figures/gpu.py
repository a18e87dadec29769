"""What a GPU has shown: step time, peak memory, sizes, and the time of each job.

    python -m figures.gpu --rows OUT

OUT is the folder of `benchmarks.gpu`. A panel without rows says that it has none.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.cli import Parser, input_folder, output_folder
from figures.style import FIGURES, PAGE, label_panels, save, series, use_style

BASE = "two-forwards"
METHODS = {
    "rademacher": "DPZero, signs",
    "gaussian": "Gaussian",
    "sphere": "sphere",
    "private-rademacher": "private, signs",
    "four-pass": "MeZO's four passes",
    "adamw": "AdamW",
    "dp-adamw": "DP-AdamW",
}
BESIDE = {"forwards": "two forwards", "mezo": "MeZO", "dpzero": "DPZero"}
TARGET = 1.05
TABLES = ("optimizer_step", "llm_memory_opt", "llm_streamed", "jobs")


def draw(tables: dict[str, pd.DataFrame]) -> Figure:
    """Return the figure of the tables of rows, given by name. A table of `TABLES` that has no rows is left out of
    `tables`."""
    figure, axes = plt.subplots(2, 2, figsize=(PAGE, 5.2))
    steps = tables.get("optimizer_step", pd.DataFrame())
    _ratios(axes[0, 0], steps, "ratio", "step / two forwards")
    _ratios(axes[0, 1], steps, "peak_to_inference", "peak memory / inference")
    _sizes(axes[1, 0], tables)
    _jobs(axes[1, 1], tables.get("jobs", pd.DataFrame()))
    label_panels(axes.flat)
    return figure


def _empty(axis: Axes, rows: pd.DataFrame) -> bool:
    if rows.empty:
        axis.text(0.5, 0.5, "not run yet", ha="center", va="center", transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])
    return rows.empty


def _ratios(axis: Axes, rows: pd.DataFrame, column: str, title: str) -> None:
    """Draw the ratios in `column` of the rows, under this title, in a group for each model with a mark for each method.
    A method that did not fit into memory has no mark."""
    axis.set_title(title)
    rows = rows[rows["method"] != BASE] if len(rows) else rows
    if _empty(axis, rows):
        return
    models = list(dict.fromkeys(rows["size"] + "\n" + rows["dtype"] + ", batch " + rows["batch"].astype(str)))
    present = [method for method in METHODS if method in set(rows["method"])]
    for place, method in enumerate(present):
        part = rows[rows["method"] == method]
        names = part["size"] + "\n" + part["dtype"] + ", batch " + part["batch"].astype(str)
        at = np.array([models.index(name) for name in names]) + (place + 1) / (len(present) + 1) - 0.5
        axis.plot(at, part[column], **series(place).line(linestyle="none", label=METHODS[method]))
    axis.axhline(1, color="black", linewidth=0.6)
    axis.axhline(TARGET, color="black", linewidth=0.6, linestyle=":", label=f"aim: {TARGET}")
    axis.set(xticks=range(len(models)), xticklabels=models, xlim=(-0.5, len(models) - 0.5), yscale="log")
    axis.tick_params(axis="x", labelsize=6)
    ticks = [tick for tick in (0.5, 1, 2, 5, 10, 20, 50) if axis.get_ylim()[0] <= tick <= axis.get_ylim()[1]]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.legend(fontsize=6, loc="upper left")
    low, high = axis.get_ylim()
    axis.set_ylim(low, high * (high / low) ** 0.9)


def _sizes(axis: Axes, tables: dict[str, pd.DataFrame]) -> None:
    axis.set_title("one step against the number of weights")
    rows = tables.get("llm_memory_opt", pd.DataFrame())
    other = tables.get("llm_streamed", pd.DataFrame())
    if _empty(axis, rows if len(rows) else other):
        return
    for place, (method, label) in enumerate(BESIDE.items()):
        for table, name, look in ((rows, label, {}), (other, f"{label}, layers from files", {"fillstyle": "none"})):
            part = table[table["method"] == method].sort_values("d") if len(table) else table
            if len(part):
                style = {**series(place).line(label=name), **look}
                style |= {"linestyle": "none", "markeredgecolor": style["color"]} if look else {}
                axis.plot(part["d"], part["seconds"], **style)
    axis.set(xscale="log", yscale="log", xlabel="weights $d$", ylabel="seconds")
    axis.legend(fontsize=6)


def _jobs(axis: Axes, rows: pd.DataFrame) -> None:
    axis.set_title("seconds of each job")
    if _empty(axis, rows):
        return
    place = np.arange(len(rows))[::-1]
    axis.barh(place, rows["wall_s"], color=series(0).color, height=0.6, label="taken")
    axis.plot(rows["estimate_s"], place, **series(1).line(linestyle="none", label="estimated"))
    axis.set_yticks(place, rows["job"], fontsize=6)
    axis.set(xlabel="seconds", xscale="symlog", ylim=(-0.7, len(rows) + 0.9))
    axis.legend(fontsize=6, loc="upper right", ncols=2)


def _parser() -> Parser:
    parser = Parser("figures.gpu", __doc__)
    parser.add_argument("--rows", type=input_folder(), default=RESULTS / "gpu", help="of benchmarks.gpu")
    parser.add_argument("--out", type=output_folder, default=str(FIGURES))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figure from those tables of the folder `--rows` that exist. Returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    use_style()
    with parser.refusals("--rows"):
        tables = {name: read_rows(options.rows / name) for name in TABLES if _made(options.rows / name)}
        if not tables:
            raise FileNotFoundError(f"no rows of benchmarks.gpu in {options.rows}")
    save(draw(tables), "gpu", options.out)
    return 0


def _made(folder: Path) -> bool:
    return any(folder.glob("rows.csv*"))


if __name__ == "__main__":
    sys.exit(main())
