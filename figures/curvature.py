"""Effective rank against d, and prescriptions beside a grid search.  python -m figures.curvature

(a) r = tr|H|/||H|| with 95% intervals (means over seeds) of the networks of `benchmarks.curvature`, a colour for each
moment of training, with the spectra of the paper's synthetic experiment: 1, 1/sqrt(i) and 1/i. (b) The same for
transformers. (c) For the problem files that `python -m dpzero_theory.curvature` wrote: how many eigenvalues are at
least s ||H|| in size, by stochastic Lanczos quadrature; the area below a curve is r. The second figure shows the loss
that each step size and clip reaches at equal privacy, with standard errors, and what the theory prescribes from
measured constants.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.cli import Parser, input_folder, output_folder
from figures.style import FIGURES, PAGE, label_panels, log_ticks, save, series, use_style

MOMENTS = {"before": ("before training", 0), "during": ("during", 1), "after": ("after", 2)}
NETWORKS = "mlp-digits"
TRANSFORMERS = {
    "roberta-tiny": "random\nRoBERTa",
    "opt-tiny": "random\nOPT",
    "minilm:top-norm": "encoder,\ntop norm",
    "minilm:biases": "encoder,\nbiases",
    "minilm:body": "encoder,\nbody",
}
SPECTRA = {"mlp-digits-16": ("MLP", 3), "minilm-top-norm": ("encoder", 4)}
TASKS = {"digits": "digits, 64 - 16 - 10", "minilm": "SST-2, real encoder"}


def draw_rank(rows: pd.DataFrame, measured: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Return the first figure, of effective ranks. rows has the rows of both folders of `benchmarks.curvature`, and
    measured the contents of problem files by name."""
    figure, axes = plt.subplots(1, 3, figsize=(PAGE, 3.2), width_ratios=(1.4, 1.1, 1))
    networks = rows[rows["model"].str.startswith(NETWORKS)]
    models = [name for name in TRANSFORMERS if name in set(rows["model"])]
    others = rows[rows["model"].isin(models)].assign(place=lambda part: part["model"].map(models.index))
    for index, (moment, (label, look)) in enumerate(MOMENTS.items()):
        _draw_ranks(axes[0], networks[networks["moment"] == moment], "d", look, "-", label=label)
        _draw_ranks(axes[1], others[others["moment"] == moment], "place", look, "none", shift=0.22 * (index - 1))
    _draw_paper(axes[0], float(networks["d"].min()), float(networks["d"].max()))
    for name, content in measured.items():
        _draw_spectrum(axes[2], content, *SPECTRA[name])
    axes[0].set(xscale="log", title="networks on digits", xlabel="dimension $d$", ylabel="effective rank $r$")
    sizes = [f"{TRANSFORMERS[name]}\n{int(others[others['model'] == name]['d'].iloc[0]):,}" for name in models]
    axes[1].set_xticks(range(len(models)), sizes, fontsize=6)
    axes[1].set(title="transformers", xlabel="model and dimension $d$", xlim=(-0.5, len(models) - 0.5))
    axes[1].grid(visible=False, axis="x")
    for axis in axes[:2]:
        axis.set(yscale="log", ylim=(1, 10 * float(rows["rank_high"].max())))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    axes[2].set(xscale="log", yscale="log", xlim=(1e-3, 1), ylim=(0.7, 4e4), title="spectra")
    axes[2].set(xlabel=r"$s$", ylabel=r"eigenvalues with $|\lambda| \geq s\,\|H\|$")
    axes[2].legend(loc="upper right", fontsize=6, handlelength=2, title="$r$, area below", title_fontsize=6)
    label_panels(axes)
    return figure


def _draw_ranks(
    axis: Axes, rows: pd.DataFrame, column: str, look: int, dash: str, *, shift: float = 0.0, label: str = ""
) -> None:
    """Draw the effective rank at each value of `column`: the mean over seeds of the estimates and of the ends of their
    intervals. look is the index of the series' colour and marker, dash its line style, and label its text in the
    legend. shift is by how much the points are moved aside, so that series do not hide each other."""
    part = rows.groupby(column)
    mean, low, high = (part[f"rank_{end}"].mean() for end in ("estimate", "low", "high"))
    style = series(look)
    axis.errorbar(
        mean.index + shift,
        mean,
        yerr=[mean - low, high - mean],
        color=style.color,
        marker=style.marker,
        linestyle=dash,
        markeredgecolor="white",
        markeredgewidth=0.5,
        label=label,
    )


def _draw_paper(axis: Axes, low: float, high: float) -> None:
    """Draw the effective ranks of the paper's three synthetic spectra for dimensions from `low` to `high`."""
    d = np.geomspace(low / 1.5, 2 * high, 50)
    spectra = {
        "paper (a): 1": d,
        r"paper (b): $1/\sqrt{i}$": 2 * np.sqrt(d),
        "paper (c): $1/i$": np.log(d) + np.euler_gamma,
    }
    for text, values in spectra.items():
        axis.plot(d, values, color="0.6", linewidth=0.8, zorder=0)
        seen = values < 2000
        axis.text(
            d[seen][-1],
            values[seen][-1] * (0.4 if "1/i" in text else 1),
            text,
            color="0.4",
            size=7,
            ha="right",
            va="top" if "1/i" in text else "bottom",
        )


def _draw_spectrum(axis: Axes, content: Mapping[str, Any], label: str, index: int) -> None:
    """Draw, from the content of a problem file, the spectra of the Hessian at the first and the last of the points at
    which it was measured, the last one dashed. label and index are the text and the colour of the lines."""
    points = content["measurements"]["points"]
    for point, dash in ((points[0], "-"), (points[-1], "--")):
        sizes = np.abs(point["density"]["points"]) / point["norm"]["estimate"]
        order = np.argsort(sizes)[::-1]
        counts = np.cumsum(np.asarray(point["density"]["weights"])[order])
        r = point["effective_rank"]["estimate"]
        text = f"{label}, {point['gradient_steps']} steps: {r:.2g}"
        axis.step(sizes[order], counts, dash, where="post", color=series(index).color, label=text)


def draw_prescription(tasks: Mapping[str, pd.DataFrame]) -> Figure:
    """Return the second figure, of prescriptions beside a grid search. tasks: the rows of `benchmarks.prescription`
    by task."""
    figure, axes = plt.subplots(1, len(tasks), figsize=(PAGE if len(tasks) > 1 else PAGE / 2, 3.4), squeeze=False)
    for axis, (task, rows) in zip(axes[0], tasks.items(), strict=True):
        _draw_choices(axis, rows)
        first = rows.iloc[0]
        title = rf"{TASKS[task]}: $n$ = {first['n']:,}, $\varepsilon$ = {first['epsilon']:g}, $T$ = {first['steps']:,}"
        axis.set(xscale="log", title=title, xlabel=r"step size $\alpha$", ylabel="training loss at the end")
        axis.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, columnspacing=1.2)
    if len(tasks) > 1:
        label_panels(axes[0])
    return figure


def _draw_choices(axis: Axes, rows: pd.DataFrame) -> None:
    grid = rows[rows["choice"] == "grid"]
    for index, (clip, part) in enumerate(grid.groupby("clip")):
        found = part.groupby("step_size")["loss"].agg(["mean", "sem"])
        axis.errorbar(
            found.index, found["mean"], yerr=found["sem"], **series(index).line(label=f"grid, $C$ = {clip:.3g}")
        )
    for choice, marker in (("theory", "*"), ("theory-estimates", "p")):
        part = rows[rows["choice"] == choice]
        if not part.empty:
            found = part.groupby("step_size")["loss"].agg(["mean", "sem"])
            look: dict[str, Any] = {"color": "black", "markersize": 8, "linestyle": "none", "zorder": 5}
            look |= {"marker": marker, "label": f"{choice.replace('-', ', ')}, $C$ = {part['clip'].iloc[0]:.3g}"}
            axis.errorbar(found.index, found["mean"], yerr=found["sem"], **look)
    start = float(rows["loss_before"].mean())
    axis.axhline(start, color="0.4", linewidth=0.8)
    axis.text(grid["step_size"].min(), start, "before", color="0.4", size=7, va="bottom")
    axis.set_yscale("log")
    log_ticks(axis.yaxis)


def _parser() -> Parser:
    parser = Parser("figures.curvature", __doc__)
    parser.add_argument(
        "--results", "--rows", dest="rows", type=input_folder(), default=RESULTS, help="folder of the rows' folders"
    )
    parser.add_argument("--out", type=output_folder, default=str(FIGURES))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Draw both figures from the rows that the command line names, by default those in benchmarks/results. Returns the
    exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    with parser.refusals("--rows"):
        problems = options.rows / "curvature_problems"
        measured = {name: json.loads((problems / f"{name}.json").read_text()) for name in SPECTRA}
        rows = pd.concat([read_rows(options.rows / name) for name in ("curvature", "curvature_encoder")])
        tasks = {task: read_rows(options.rows / f"prescription_{task}") for task in TASKS}
    use_style()
    save(draw_rank(rows, measured), "curvature_rank", options.out)
    save(draw_prescription(tasks), "curvature_prescription", options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
