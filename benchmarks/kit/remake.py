"""Committed rows made again: what a benchmark offers for it, and when a row counts as come back.

A benchmark whose rows can be made again one by one has `REMAKES`: for each folder of its results a `Remake`. A row
comes back if every column but those that vary is equal, or as near as the `Remake` says.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Row = dict[str, Any]
STANDARD_ERRORS = 6.0
"""Of the difference between two draws of the operating system's noise."""
FOUR_DIGITS, SIX_DIGITS = 1.001e-3, 1.001e-5
"""Relative difference of rows that are written to so many digits where the last of them is another."""
_ELSEWHERE = 1e-9
"""Relative difference allowed on another `arithmetic` than the rows', where a benchmark says nothing else."""


@dataclass(frozen=True)
class Difference:
    """A column of a committed row and of the same row made again; near: as near as may be."""

    column: str
    committed: Any
    again: Any
    near: bool

    def __str__(self) -> str:
        return f"{self.column} {self.committed}, made again {self.again}"


@dataclass(frozen=True)
class Remake:
    """How the rows of a folder are made again.

    Attributes:
        key: the columns that tell rows apart.
        make: from a committed row, rows of which one is that row made anew.
        varies: columns of times and memory, which are not compared.
        tolerance: relative difference that is allowed, and why there is one.
        errors: the standard errors of the columns of a row that rest on the operating system's noise.
        elsewhere: relative difference that is allowed on another `arithmetic` than the rows', which the benchmark's
            iterations and runs make of the libraries' last digits.
        upset: whether rounding grows along the run that a row is of, so that its digits come back on the arithmetic
            only that made them.
    """

    key: Sequence[str]
    make: Callable[[Row], Iterable[Mapping[str, Any]]]
    varies: Sequence[str] = ()
    tolerance: float = 0.0
    why: str = ""
    errors: Callable[[Row], Mapping[str, float]] = lambda row: {}
    elsewhere: float = _ELSEWHERE
    upset: Callable[[Row], bool] = lambda row: False

    def differences(self, row: Row, elsewhere: bool = False) -> list[Difference]:
        """The columns that are not equal when a row is made again; elsewhere: on another arithmetic than the row's."""
        again = self._again(row)
        if again is None:
            return [Difference("key", "of the row", None, near=False)]
        errors, tolerance = self.errors(row), self.allowed(elsewhere)
        compared = [(name, value, again.get(name)) for name, value in row.items() if name not in self.varies]
        return [
            Difference(name, value, made, near=_near(value, made, tolerance, errors.get(name)))
            for name, value, made in compared
            if not _near(value, made)
        ]

    def allowed(self, elsewhere: bool) -> float:
        """The relative difference that counts as come back."""
        return max(self.tolerance, self.elsewhere) if elsewhere else self.tolerance

    def reason(self, elsewhere: bool) -> str:
        """Why a row that is near has come back."""
        return "; ".join(filter(None, [self.why, f"within {self.elsewhere:g} elsewhere" if elsewhere else ""]))

    def _again(self, row: Row) -> Row | None:
        for made in self.make(row):
            found = plain({"status": "ok", **made})
            if all(_near(row[name], found.get(name), 1e-12) for name in self.key):
                return found
        return None


def plain(row: Mapping[Any, Any]) -> Row:
    """A row with Python's own values, None where one is missing: an empty word is, in a file of rows."""
    values = {str(name): value.item() if isinstance(value, np.generic) else value for name, value in row.items()}
    return {name: None if v == "" or (isinstance(v, float) and math.isnan(v)) else v for name, v in values.items()}


def _near(value: Any, other: Any, tolerance: float = 0.0, error: float | None = None) -> bool:
    """Whether two columns are equal, numbers up to a tolerance or standard error; a missing one is near no other."""
    if value is None or other is None:
        return value is other
    try:
        numbers = float(value), float(other)
    except (TypeError, ValueError):
        return " ".join(str(value).split()) == " ".join(str(other).split())
    if error is not None:
        return abs(numbers[0] - numbers[1]) <= STANDARD_ERRORS * math.sqrt(2) * error
    return math.isclose(*numbers, rel_tol=tolerance, abs_tol=0.0)
