"""The rate against the dimension, of the rows of `benchmarks.demo`, which calls this.  python -m figures.demo"""

import sys
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.kit.rows import read_rows
from dpzero_theory.cli import Parser, input_folder, output_folder
from figures.style import PAGE, save, series, use_style

__all__ = ["draw", "main"]

MODES = {"a": "eigenvalues 1: r = d", "c": "eigenvalues 1/i: r = O(log d)"}


def draw(rows: pd.DataFrame) -> Figure:
    """One panel a mode, one line a method, with its slope on logarithmic axes."""
    figure, panels = plt.subplots(1, 2, figsize=(PAGE, 2.8), sharey=True)
    for panel, (mode, title) in zip(panels, MODES.items(), strict=True):
        for i, method in enumerate(rows["method"].unique()):
            line = rows[(rows["mode"] == mode) & (rows["method"] == method)]
            slope = np.polyfit(np.log(line["d"]), np.log(line["gradient_norm"]), 1)[0]
            panel.plot(line["d"], line["gradient_norm"], label=f"{method} (slope {slope:.2f})", **series(i).line())
        panel.set(xscale="log", yscale="log", xlabel="dimension d", title=title)
        dimensions = sorted(rows["d"].unique())
        panel.set_xticks(dimensions, [str(d) for d in dimensions])
        panel.set_xticks([], minor=True)
        panel.legend()
    panels[0].set_ylabel("best gradient norm, last iterate")
    return figure


def _parser() -> Parser:
    parser = Parser("figures.demo", __doc__)
    parser.add_argument("--rows", type=input_folder(), default="out/demo", help="folder of the rows")
    parser.add_argument("--out", type=output_folder, default="out/demo", help="folder of the picture")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the picture."""
    parser = _parser()
    options = parser.parse_args(argv)
    with parser.refusals("--rows"):
        rows = read_rows(options.rows)
    use_style()
    save(draw(rows), "rate_vs_dimension", options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
