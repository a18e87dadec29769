"""The short forms of tables, for pages; the tables stand in full in a NOTES.md beside their rows."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    """What the short form of a table keeps, in the words of `benchmarks.kit.tables.shortened`."""

    columns: Mapping[str, str] | None = None
    lines: str = ""
    below: bool = False


KEPT: Mapping[str, Kept] = {
    "certificates": Kept(
        {
            "problem": "problem",
            "n": "n",
            "d": "d",
            "epsilon": "epsilon",
            "K = 1 certified": "sharpened: certified",
            "K = 1 measured": "measured",
            "paper certified": "Theorem 3: certified",
            "paper measured": "measured",
        },
        r"\(a\)|\(b\)|200 \| 2 |2,000|100,000 \| 8|digits|sst2",
        below=True,
    ),
    "differences": Kept(lines="sphere"),
    "gradient_moment": Kept(
        {
            "n": "n",
            "m": "m",
            "B": "B",
            "part of mu^2": "part of the budget",
            "certificate": "certified, moment released",
            "moment known": "moment known",
            "L = B": "L = B in place of a moment",
        },
        r"^10,000 \| . \| (2|5|20) ",
    ),
}
"""By the name of the table. The short form has the name and `_short`."""
