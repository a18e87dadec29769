"""The common look of the figures: sizes for print, colours safe for colour-blind readers, reproducible files.

The colours are those of Okabe and Ito (Color Universal Design, 2008). Each series also has its own marker and dash, so
that a figure can be read in grey. `save` writes PNG without dates, so that the same rows give the same bytes.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.kit.rows import shown

FIGURES = Path(__file__).parent
COLUMN = 3.4
PAGE = 7.0
"""The width in inches of the text block of a two-column paper. COLUMN is the width of one of its columns."""
CAP = 1.05
"""If the last value of a grid is better than the one before it by at most this ratio, the grid's edge counts as a limit
that is reached."""
RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 7.5,
    "markerfacecolor": "none",
    "markeredgecolor": "black",
    "markeredgewidth": 0.5,
}
"""The style of the ring around points whose parameters are on an edge of their grid that costs more than the ratio CAP
(see `benchmarks/slopes.py`)."""


@dataclass(frozen=True)
class Series:
    """How one series of points is drawn: its colour, marker and dash, none of which another series has."""

    color: str
    marker: str
    dash: str | tuple[float, tuple[float, ...]]

    def line(self, **changes: Any) -> dict[str, Any]:
        """Return the keyword arguments that give `Axes.plot` and `Axes.errorbar` this look; `changes` replaces or
        adds some."""
        style = {"color": self.color, "marker": self.marker, "linestyle": self.dash}
        return {**style, "markeredgecolor": "white", "markeredgewidth": 0.5, **changes}


SERIES = (
    Series("#0072B2", "o", "-"),
    Series("#D55E00", "s", (0, (5, 1.5))),
    Series("#009E73", "^", (0, (3, 1, 1, 1))),
    Series("#CC79A7", "D", (0, (1, 1))),
    Series("#E69F00", "v", (0, (5, 1, 1, 1, 1, 1))),
    Series("#56B4E9", "P", (0, (2, 1))),
    Series("#000000", "X", (0, (7, 2))),
)


def series(index: int) -> Series:
    """Return the look of the series with this index, from 0. Raises ValueError beyond the seven that can be told
    apart."""
    if not 0 <= index < len(SERIES):
        raise ValueError(f"index must be an integer with 0 <= index < {len(SERIES)}; got {index}")
    return SERIES[index]


def use_style() -> None:
    """Set matplotlib's defaults for all figures of this project. Every figure's `main` calls this before it draws."""
    mpl.use("Agg")
    mpl.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": 8,
            "axes.titlesize": 8.5,
            "axes.labelsize": 8,
            "xtick.labelsize": 7,
            "ytick.labelsize": 7,
            "legend.fontsize": 7,
            "legend.frameon": False,
            "legend.handlelength": 2.8,
            "figure.titlesize": 9.5,
            "figure.constrained_layout.use": True,
            "figure.dpi": 100,
            "savefig.dpi": 300,
            "lines.linewidth": 1.3,
            "lines.markersize": 4.5,
            "errorbar.capsize": 2,
            "axes.linewidth": 0.6,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.linewidth": 0.4,
            "grid.color": "#d9d9d9",
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "xtick.minor.width": 0.4,
            "ytick.minor.width": 0.4,
        }
    )


def label_panels(axes: Any, start: str = "a") -> None:
    """Put (a), (b), ... before the titles of these axes, beginning with the letter `start`."""
    for index, axis in enumerate(axes):
        axis.set_title(f"({chr(ord(start) + index)}) {axis.get_title()}", loc="left")
        axis.set_title("")


def log_ticks(axis: Axis) -> None:
    """Label a logarithmic axis without crowding: powers of ten, or, if the axis spans few of them, 1, 2 and 5 times
    powers of ten."""
    low, high = axis.get_view_interval()
    axis.set_minor_formatter(NullFormatter())
    if high < low * 10**1.5 or math.floor(math.log10(high)) == math.ceil(math.log10(low)):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def save(figure: Figure, name: str, folder: Path = FIGURES) -> Path:
    """Save the figure as NAME.png in `folder`, which is made if it is not there, and return the path. The same figure
    gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path, metadata={"Software": None})
    print(f"figure: {shown(path)}", flush=True)
    return path
