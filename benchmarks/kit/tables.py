"""Tables and paragraphs in Markdown, and numbers as rows have them."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose rows are `lines`."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *lines])


def mean_error(values: ArrayLike, mean: str, error: str = ".1g") -> str:
    """The mean over seeds and its standard error, as "mean +- error"; `mean` and `error` are their formats."""
    seen = np.asarray(values, dtype=np.float64)
    return f"{seen.mean():{mean}} +- {seen.std(ddof=1) / np.sqrt(len(seen)):{error}}"


def rounded(value: float, digits: int = 4) -> float:
    """The value to so many significant digits."""
    return float(f"{value:.{digits}g}")


def rounded_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its floats rounded to four significant digits."""
    return {name: rounded(value) if isinstance(value, float) else value for name, value in row.items()}


def paragraphs(*texts: str) -> str:
    """The texts, each filled to the width of the pages."""
    filled = (textwrap.fill(" ".join(text.split()), 120, break_on_hyphens=False) for text in texts)
    return "\n\n".join(filled)
