"""Committed rows made again: what an experiment offers for it, and when a row counts as having come back.

The module of an experiment whose rows can be made again one by one has a dictionary `REMAKES`, with a `Remake` for each
of its folders of rows; `python -m benchmarks reproduce` makes random rows again.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Row = dict[str, Any]


@dataclass(frozen=True)
class Remake:
    """How the rows of a folder are made again.

    Attributes:
        key: the columns that tell rows apart.
        make: makes rows from a committed row, in which a missing value is None; one of them is that row, made anew.
        varies: columns of times and memory, which are not compared.
        tolerance: the relative difference at which a number counts as the committed one. Libraries of another processor
            compute the last digits in another way, so it is never 0.
    """

    key: Sequence[str]
    make: Callable[[Row], Iterable[Mapping[str, Any]]]
    varies: Sequence[str] = ()
    tolerance: float = 1e-9

    def differences(self, row: Row) -> list[str]:
        """Make a row again and return what differs by more than the tolerance, an empty list if nothing does."""
        for made in self.make(row):
            found = plain({"status": "ok", **made})
            if all(_near(row[name], found.get(name), 1e-12) for name in self.key):
                return [
                    f"{name} {value}, made again {found.get(name)}"
                    for name, value in row.items()
                    if name not in self.varies and not _near(value, found.get(name), self.tolerance)
                ]
        return ["no row with its key was made again"]


def plain(row: Mapping[Any, Any]) -> Row:
    """Return the row with Python's own types in place of numpy's, and with None for missing values and empty texts."""
    values = {str(name): value.item() if isinstance(value, np.generic) else value for name, value in row.items()}
    return {name: None if v == "" or (isinstance(v, float) and math.isnan(v)) else v for name, v in values.items()}


def _near(value: Any, other: Any, tolerance: float) -> bool:
    """Return whether two values agree: numbers, also those among the words of a text, if they differ by at most the
    share `tolerance` of the larger one, other words if they are equal. A missing value (None) agrees only with another
    one."""
    if value is None or other is None:
        return value is other
    words, others = str(value).split(), str(other).split()
    return len(words) == len(others) and all(_alike(*pair, tolerance) for pair in zip(words, others, strict=True))


def _alike(word: str, other: str, tolerance: float) -> bool:
    if word == other:
        return True
    try:
        return math.isclose(float(word.rstrip(",")), float(other.rstrip(",")), rel_tol=tolerance, abs_tol=0.0)
    except ValueError:
        return False
