"""Write tables and paragraphs in Markdown, and round numbers as rows have them."""

import math
import re
import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import t as student


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with this header and these lines."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *lines])


def shortened(text: str, columns: Sequence[str], lines: str) -> str:
    """Return a part of the first table in a Markdown text, as `markdown` writes it: the columns with these names, in
    this order (of two columns with one name the first), and the lines in whose cells, joined by " | ", the regular
    expression `lines` is found. Raises ValueError where a column is not in the table, or no line is kept."""
    table, _, _ = text[text.index("| ") :].partition("\n\n")
    header, _, *cells = (line[2:-2].split(" | ") for line in table.splitlines())
    for name in columns:
        if name not in header:
            raise ValueError(f"columns must be names of columns of the table; got {name!r}")
    at = [header.index(name) for name in columns]
    found = [line for line in cells if re.search(lines, " | ".join(line))]
    if not found:
        raise ValueError(f"lines must match a line of the table; got {lines!r}")
    return markdown(columns, [[line[i] for i in at] for line in found])


def mean_error(values: ArrayLike, mean: str) -> str:
    """Return the mean of the values (one per seed) and its standard error, of one digit, as text "mean +- error", for
    two values or more. `mean` is the format specification of the mean, such as ".1f"."""
    seen = np.asarray(values, dtype=np.float64)
    return f"{seen.mean():{mean}} +- {seen.std(ddof=1) / np.sqrt(len(seen)):.1g}"


def rounded(value: float, digits: int = 4) -> float:
    """Return the value rounded to this many significant digits."""
    return float(f"{value:.{digits}g}")


def paragraphs(*texts: str) -> str:
    """Return the texts as paragraphs, with lines broken at the width of the documentation pages."""
    filled = (textwrap.fill(" ".join(text.split()), 120, break_on_hyphens=False) for text in texts)
    return "\n\n".join(filled)


def half_width(values: ArrayLike) -> float:
    """Return half of the 95% interval of the values' mean, by Student's t; NaN for a single value."""
    seen = np.asarray(values, dtype=np.float64)
    if len(seen) < 2:
        return math.nan
    return float(student.ppf(0.975, len(seen) - 1)) * float(np.std(seen, ddof=1)) / float(np.sqrt(len(seen)))


def percent(shares: "pd.Series[float]") -> str:
    """Return the mean of the shares (numbers from 0 to 1) in percent as text; if there are two or more, " +- " follows
    with half the width of the mean's 95% interval by Student's t, in percentage points."""
    values = 100 * shares
    return f"{values.mean():.1f}" + (f" +- {half_width(values):.1f}" if len(values) > 1 else "")
