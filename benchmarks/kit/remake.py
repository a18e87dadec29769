"""Committed rows made again: what an experiment offers for it, and when a row counts as having come back.

The module of an experiment whose rows can be made again one by one has a dictionary `REMAKES`, with a `Remake` for each
of its folders of rows. A row has come back if every column is equal to the committed one, or as near to it as the
`Remake` allows; columns of times and memory are not compared.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Row = dict[str, Any]
STANDARD_ERRORS = 6.0
"""A value that depends on the operating system's random noise has come back if it differs from the committed one by
at most this many standard errors."""
FOUR_DIGITS, SIX_DIGITS = 1.001e-3, 1.001e-5
"""The relative difference allowed between numbers that are written to four or six digits: one unit of the last digit.
"""
_OF_WIDTH = 0.05
"""The ends of a bracket may differ from the committed ones by this share of the bracket's width."""
_ELSEWHERE = 1e-9
"""The relative difference that is allowed, if an experiment says nothing else, on a machine whose libraries compute in
another way (`kit.arithmetic`) than on the machine that made the rows."""


@dataclass(frozen=True)
class Difference:
    """A column of a committed row whose value is not the same in the row made again. `committed` and `again` are the
    two values, and `near` says whether they differ by no more than the `Remake` allows."""

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
        make: makes rows from a committed row; one of them is that row, made anew.
        varies: columns of times and memory, which are not compared.
        tolerance, why: the relative difference that is allowed, and the reason for it.
        width: the column with a bracket's relative width. The bracket's ends may move by a twentieth of it, as a search
            may end elsewhere inside the bracket.
        errors: the standard errors of those columns of a row that depend on the operating system's noise.
        elsewhere: the relative difference that is allowed on a machine whose libraries compute in another way
            (`kit.arithmetic`), where iterations enlarge differences in the last digits.
        upset: whether a row is of a run that enlarges rounding errors so much that its digits come back only where
            libraries compute as on the machine that made them.
    """

    key: Sequence[str]
    make: Callable[[Row], Iterable[Mapping[str, Any]]]
    varies: Sequence[str] = ()
    tolerance: float = 0.0
    why: str = ""
    width: str = ""
    errors: Callable[[Row], Mapping[str, float]] = lambda row: {}
    elsewhere: float = _ELSEWHERE
    upset: Callable[[Row], bool] = lambda row: False

    def differences(self, row: Row, elsewhere: bool = False) -> list[Difference]:
        """Make a row again and return a `Difference` for each column whose value is not exactly the same, those within
        the allowed difference included. If no row with the same key comes out, one `Difference` of a column named "key"
        says so.

        row: the committed row, None for a missing value. elsewhere: whether this machine's libraries compute in another
        way (`kit.arithmetic`) than those of the machine that made the row.
        """
        again = self._again(row)
        if again is None:
            return [Difference("key", "of the row", None, near=False)]
        errors, tolerance = self.errors(row), self.allowed(row, elsewhere)
        compared = [(name, value, again.get(name)) for name, value in row.items() if name not in self.varies]
        return [
            Difference(name, value, made, near=_near(value, made, tolerance, errors.get(name)))
            for name, value, made in compared
            if not _near(value, made)
        ]

    def allowed(self, row: Row, elsewhere: bool) -> float:
        """Return the largest relative difference at which a number made again still counts as the committed one. It is
        the largest of `tolerance`, a twentieth of the relative width in the column `width` (if there is one), and
        `self.elsewhere` if the argument `elsewhere` says that this machine's libraries compute in another way than
        those of the machine that made the row."""
        inside = _OF_WIDTH * float(row[self.width]) if self.width else 0.0
        return max(self.tolerance, inside, self.elsewhere if elsewhere else 0.0)

    def reason(self, elsewhere: bool) -> str:
        """Return the reason why a row that is near the committed one, but not equal, counts as having come back: `why`,
        and the allowed relative difference if the argument `elsewhere` says that this machine's libraries compute in
        another way than those of the machine that made the row."""
        return "; ".join(filter(None, [self.why, f"within {self.elsewhere:g} elsewhere" if elsewhere else ""]))

    def _again(self, row: Row) -> Row | None:
        for made in self.make(row):
            found = plain({"status": "ok", **made})
            if all(_near(row[name], found.get(name), 1e-12) for name in self.key):
                return found
        return None


def plain(row: Mapping[Any, Any]) -> Row:
    """Return the row with Python's own types in place of numpy's, and with None for missing values and empty texts."""
    values = {str(name): value.item() if isinstance(value, np.generic) else value for name, value in row.items()}
    return {name: None if v == "" or (isinstance(v, float) and math.isnan(v)) else v for name, v in values.items()}


def _near(value: Any, other: Any, tolerance: float = 0.0, error: float | None = None) -> bool:
    """Return whether `value` and `other` agree. Two numbers agree if they differ by at most the share `tolerance` of
    the larger one; or, if `error` is given, which is the standard error of either, by at most STANDARD_ERRORS standard
    errors of their difference, sqrt(2) `error`. Texts agree if they are equal up to white space. A missing value (None)
    agrees only with another one."""
    if value is None or other is None:
        return value is other
    try:
        numbers = float(value), float(other)
    except (TypeError, ValueError):
        return " ".join(str(value).split()) == " ".join(str(other).split())
    if error is not None:
        return abs(numbers[0] - numbers[1]) <= STANDARD_ERRORS * math.sqrt(2) * error
    return math.isclose(*numbers, rel_tol=tolerance, abs_tol=0.0)
