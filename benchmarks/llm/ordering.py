"""The order of the methods in the paper's accuracy table, checked on our rows.

The order is zero-shot < DPZero (2) <= DPZero (6) <= MeZO, and DPGD-0th below DPZero at equal epsilon. With m and s the
mean and the standard error of a cell, the difference m_b - m_a has the standard error sqrt(s_a^2 + s_b^2), because runs
of different methods are independent given the records. a < b holds where the difference is above one standard error,
and a <= b where it is above minus one.
"""

import itertools
import math
from typing import NamedTuple

import pandas as pd

from benchmarks.llm.grids import Row
from benchmarks.llm.tasks import task


class Claim(NamedTuple):
    """A claim about two rows of the table, given as METHOD or METHOD:EPSILON: the accuracy of `lower` is below that of
    `upper`; if not `strictly`, it may also be equal."""

    lower: str
    upper: str
    strictly: bool


CLAIMS = (
    Claim("zero-shot", "dpzero:2", True),
    Claim("dpzero:2", "dpzero:6", False),
    Claim("dpzero:6", "mezo", False),
    Claim("dpgd-0th:2", "dpzero:2", True),
    Claim("dpgd-0th:6", "dpzero:6", True),
)
_COLUMNS = ("row", "task", "mean", "error")
_ABSENT = (math.nan, math.nan)


def ordering(lines: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each claim on each task, and on the mean of the tasks (task `all`): the `difference`, its
    standard `error`, and whether the claim `holds`.

    lines: those of `report.summary`, for one model. Claims about cells that have not run, or have no standard error,
    are left out; the mean is over the tasks that are left.
    """
    cells = {(row, name): (mean, error) for row, name, mean, error in zip(*(lines[c] for c in _COLUMNS), strict=True)}
    found = []
    for claim in CLAIMS:
        lower, upper = Row(claim.lower).label, Row(claim.upper).label
        differences = {}
        for name in lines["task"].unique():
            low, low_error = cells.get((lower, name), _ABSENT)
            high, high_error = cells.get((upper, name), _ABSENT)
            difference = high - low, math.hypot(low_error, high_error)
            if not math.isnan(difference[1]):
                differences[name] = difference
        if len(differences) > 1:
            each, errors = zip(*differences.values(), strict=True)
            differences["all"] = sum(each) / len(each), math.hypot(*errors) / len(errors)
        for name, (value, error) in differences.items():
            holds = value > error if claim.strictly else value >= -error
            found.append((f"{lower} {'<' if claim.strictly else '<='} {upper}", name, value, error, holds))
    return pd.DataFrame(found, columns=["claim", "task", "difference", "error", "holds"])


def turned_round(lines: pd.DataFrame) -> str:
    """Return a text that names every pair of rows whose order is not the paper's by more than a standard error of
    ours. It is empty where no pair is, or where the paper has no two numbers to compare. lines: those of
    `report.summary`."""
    parts, pairs = [], 0
    for name, group in lines[lines["paper"].notna()].groupby("task", sort=False):
        found = []
        columns = ([str(row) for row in group["row"]], *(group[c].astype(float) for c in ("mean", "error", "paper")))
        for a, b in itertools.permutations(zip(*columns, strict=True), 2):
            (one, mean, error, theirs), (other, less, its, above) = a, b
            pairs += 1
            if mean - less > math.hypot(error, its) and theirs < above:
                found.append(f"{one} over {other}")
        if found:
            parts.append(f"{task(str(name)).title} {', '.join(found)}")
    count = sum(part.count(" over ") for part in parts)
    if not pairs:
        return ""
    of = f"{count} of {pairs // 2} pairs stand in the other order than the paper's by more than a standard error"
    return of + (": " if parts else "") + "; ".join(parts)


def sentences(lines: pd.DataFrame) -> list[str]:
    """Return a line of text for each claim on `lines`: the difference on every task, marked where the claim does not
    hold."""
    parts: dict[str, list[str]] = {}
    for claim, name, difference, error, holds in ordering(lines).itertuples(index=False):
        title = "mean" if name == "all" else task(name).title
        cell = f"{title} {difference:+.1f} +- {error:.1f}" + ("" if holds else " (does not hold)")
        parts.setdefault(claim, []).append(cell)
    return [f"{claim}: " + ", ".join(cells) for claim, cells in parts.items()]
