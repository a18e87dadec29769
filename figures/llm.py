"""The language-model runs: accuracy of every method, and clip against step size.  python -m figures.llm

llm_accuracy: test accuracy of the small encoder, mean and standard error over seeds, as the paper's tab:dpzero-mezo.
llm_clip_lr: DPZero as in the paper's fig:clip_lr, (a) dev loss along the run for several clips (the paper shows the
training loss, which our runs never look at), (b) and (c) test loss and accuracy over clip and step size.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.results import RESULTS, read_rows
from figures.style import FIGURES, PAGE, label_panels, save, series, use_style

__all__ = ["accuracy", "best_rows", "clip_step_size", "main"]

METHODS = {
    "zero-shot": "zero-shot", "dpgd-0th": "DPGD-0th", "dpzero": "DPZero", "mezo": "MeZO",
    "dp-lora": "DP-LoRA", "lora": "LoRA", "dp-adamw": "DP-AdamW", "adamw": "AdamW",
}  # fmt: skip
TASKS = {"sst2": "SST-2", "sst5": "SST-5", "rte": "RTE", "trec": "TREC"}
LOOKS = {"2.0": (1, r"$\varepsilon = 2$"), "6.0": (0, r"$\varepsilon = 6$"), "none": (2, "not private")}


def best_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each task, method, epsilon and seed, the row with the best dev metric (of equals, the smallest dev loss)."""
    last = rows[rows["test_metric"].notna()].copy()
    last["epsilon"] = last["epsilon"].map(lambda value: value if value == "none" else str(float(value)))
    order = last.sort_values(["dev_metric", "dev_loss"], ascending=[False, True])
    return order.groupby(["task", "method", "epsilon", "seed"], sort=False).head(1)


def accuracy(rows: pd.DataFrame) -> Figure:
    """One panel a task, one line a method; rows: `benchmarks.llm.table tab:dpzero-mezo`."""
    found = best_rows(rows)
    found["percent"] = 100 * found["test_metric"]
    cells = found.groupby(["task", "method", "epsilon"])["percent"].agg(["mean", "sem", "count"]).reset_index()
    tasks = [name for name in TASKS if name in set(cells["task"])]
    methods = [name for name in METHODS if name in set(cells["method"])]
    figure, axes = plt.subplots(1, len(tasks), figsize=(PAGE, 2.6), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], tasks, strict=True):
        part = cells[cells["task"] == name]
        for epsilon, (look, label) in LOOKS.items():
            line = part[part["epsilon"] == epsilon]
            places = [methods.index(method) for method in line["method"]]
            style = series(look).line(linestyle="none", label=label)
            axis.errorbar(line["mean"], places, xerr=line["sem"].fillna(0.0), **style)
        start = part[part["method"] == "zero-shot"]["mean"]
        if len(start):
            axis.axvline(float(start.mean()), color="0.5", linewidth=0.8, linestyle=":")
        axis.set(title=f"{TASKS[name]} ({part['count'].max()} seeds)", xlabel="test accuracy (%)")
        axis.set_yticks(range(len(methods)), [METHODS[method] for method in methods])
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def clip_step_size(rows: pd.DataFrame) -> Figure:
    """rows: `benchmarks.llm.table fig:clip_lr`."""
    figure, axes = plt.subplots(1, 3, figsize=(PAGE, 2.5))
    ends = rows[rows["test_metric"].notna()].astype({"clip": float, "step_size": float})
    chosen = float(ends.sort_values("dev_loss")["step_size"].iloc[0])
    curves = rows[rows["step_size"].astype(float) == chosen]
    for index, (clip, curve) in enumerate(curves.groupby(curves["clip"].astype(float))):
        line = curve.sort_values("step")
        axes[0].plot(line["step"], line["dev_loss"], **series(index).line(label=f"C = {clip:g}"))
    axes[0].set(title=rf"dev loss, $\alpha$ = {chosen:g}", xlabel="step")
    axes[0].legend()
    for axis, column, title, factor, colours in (
        (axes[1], "test_loss", "test loss", 1, "viridis_r"),
        (axes[2], "test_metric", "test accuracy (%)", 100, "viridis"),
    ):
        grid = ends.pivot_table(index="step_size", columns="clip", values=column) * factor
        axis.imshow(grid, origin="lower", aspect="auto", cmap=colours)
        axis.set(title=title, xlabel="clip C", ylabel=r"step size $\alpha$")
        axis.set_xticks(range(grid.shape[1]), [f"{value:g}" for value in grid.columns])
        axis.set_yticks(range(grid.shape[0]), [f"{value:g}" for value in grid.index])
        axis.grid(False)
        middle = np.nanmean([np.nanmin(grid), np.nanmax(grid)])
        dark_above = colours == "viridis_r"
        for (i, j), value in np.ndenumerate(grid.to_numpy()):
            light = (value > middle) == dark_above
            text = f"{value:.2f}" if factor == 1 else f"{value:.1f}"
            axis.text(j, i, text, ha="center", va="center", color="white" if light else "black", fontsize=6.5)
    label_panels(axes)
    return figure


def main() -> None:
    """Draw both figures from benchmarks/results."""
    parser = argparse.ArgumentParser(prog="figures.llm", description=__doc__.splitlines()[0])
    parser.add_argument("--accuracy", type=Path, default=RESULTS / "llm-dpzero-mezo")
    parser.add_argument("--clip-lr", type=Path, default=RESULTS / "llm-clip_lr")
    parser.add_argument("--out", type=Path, default=FIGURES)
    options = parser.parse_args()
    use_style()
    save(accuracy(read_rows(options.accuracy)), "llm_accuracy", options.out)
    save(clip_step_size(read_rows(options.clip_lr)), "llm_clip_lr", options.out)


if __name__ == "__main__":
    main()
