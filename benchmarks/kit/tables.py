"""Write tables and paragraphs in Markdown, and round numbers as rows have them."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import t as student


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with this header and these lines."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *lines])


def shortened(text: str, columns: Mapping[str, str] | None = None, lines: str = "", below: bool = False) -> str:
    """Return a part of the first table in a Markdown text.

    Args:
        text: Markdown that has a table as `markdown` writes it.
        columns: the columns to keep, in this order: the name of each in `text`, and its name in the part. All where
            None. A name that two columns have is the first of them.
        lines: a regular expression. A line is kept where it is found in the line's cells, joined by " | ".
        below: whether the paragraphs below the table are kept too.

    Raises ValueError where a column is not in the table, or no line is kept.
    """
    table, _, rest = text[text.index("| ") :].partition("\n\n")
    header, _, *cells = (line[2:-2].split(" | ") for line in table.splitlines())
    kept = {name: name for name in header} if columns is None else columns
    for name in kept:
        if name not in header:
            raise ValueError(f"columns must be names of columns of the table; got {name!r}")
    at = [header.index(name) for name in kept]
    found = [line for line in cells if re.search(lines, " | ".join(line))]
    if not found:
        raise ValueError(f"lines must match a line of the table; got {lines!r}")
    part = markdown(list(kept.values()), [[line[i] for i in at] for line in found])
    return f"{part}\n\n{rest}" if below and rest else part


def mean_error(values: ArrayLike, mean: str, error: str = ".1g") -> str:
    """Return the mean of the values (one per seed) and its standard error as text "mean +- error", for two values or
    more. `mean` and `error` are the format specifications of the two numbers, such as ".1f"."""
    seen = np.asarray(values, dtype=np.float64)
    return f"{seen.mean():{mean}} +- {seen.std(ddof=1) / np.sqrt(len(seen)):{error}}"


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
    return mean_interval(100 * shares, ".1f", ".1f")


def mean_interval(values: "pd.Series[float]", mean: str, half: str) -> str:
    """Return the mean of the values as text; if there are two or more, " +- " follows with half the width of the mean's
    95% interval by Student's t. `mean` and `half` are the format specifications of the two numbers, such as ".1f"."""
    return f"{values.mean():{mean}}" + (f" +- {half_width(values):{half}}" if len(values) > 1 else "")
