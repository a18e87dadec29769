"""Tables in Markdown."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose rows are `lines`."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *lines])


def mean_error(values: ArrayLike, mean: str, error: str = ".1g") -> str:
    """The mean over seeds and its standard error, as "mean +- error"; `mean` and `error` are their formats."""
    seen = np.asarray(values, dtype=np.float64)
    return f"{seen.mean():{mean}} +- {seen.std(ddof=1) / np.sqrt(len(seen)):{error}}"
