"""Write the results of the checks as a table, as JSON, or as an HTML page."""

import json
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from paper_checks.page import page
from paper_checks.registry import REMARK, STATUSES, Result

_WIDTH = 118


def summary(results: Sequence[Result]) -> dict[str, int]:
    """Return how many results there are of each kind: the paper's claims by verdict, in the order of STATUSES; then
    this project's own remarks, the checks that 'failed' with an error (if any), and those that 'disagree' with the
    stated status."""
    counts = Counter(result.standing for result in results)
    numbers = {status: counts[status] for status in (*STATUSES, REMARK)}
    if counts["failed"]:
        numbers["failed"] = counts["failed"]
    numbers["disagree"] = sum(not result.agrees for result in results)
    return numbers


def table(results: Sequence[Result], full: bool, seconds: float) -> str:
    """Return the results as plain text by section, each with its verdict, id and claim. For any verdict but 'verified'
    the correction follows, or the reason why the claim is not tested here. `full` says whether the larger samples were
    used, and seconds is the time that all checks took."""
    lines = []
    for section, group in groupby(results, key=lambda result: result.claim.section):
        lines += ["", section, "-" * len(section)]
        for result in group:
            claim = result.claim
            where = f" (line {claim.line})" if claim.line else ""
            mark = "  " if result.agrees else "! "
            lines += _wrapped(f"{mark}{result.standing:17} {claim.id}: {claim.claim}{where}", 20)
            if result.error:
                lines += _wrapped(f"{result.error}", 20, first=20)
            elif not result.agrees:
                lines += _wrapped(f"the claim's stated status is {claim.status!r}", 20, first=20)
            if claim.correction:
                lines += _wrapped(f"-> {claim.correction}", 23, first=20)
            if claim.reason:
                lines += _wrapped(claim.reason, 20, first=20)
                lines += _wrapped(f"$ {claim.command}", 22, first=20) if claim.command else []
    counts = ", ".join(f"{number} {name}" for name, number in summary(results).items())
    mode = "full" if full else "quick"
    total = f"{len(results)} claims and remarks ({mode}, {seconds:.0f} s): {counts}."
    return "\n".join([*lines, "", total]).lstrip("\n")


def _wrapped(text: str, hang: int, first: int = 0) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=" " * first, subsequent_indent=" " * hang)


def as_json(results: Sequence[Result], full: bool, seconds: float) -> str:
    """Return the results as one JSON object: mode (full or quick), seconds, summary, and the list of claims with
    verdict, numbers and error."""
    claims = [_entry(result) for result in results]
    document = {
        "mode": "full" if full else "quick",
        "seconds": round(seconds, 1),
        "summary": summary(results),
        "claims": claims,
    }
    return json.dumps(document, indent=1, default=float)


def _entry(result: Result) -> dict[str, Any]:
    numbers: Mapping[str, float | str] = result.finding.numbers if result.finding else {}
    return {
        **asdict(result.claim),
        "verdict": result.verdict,
        "agrees": result.agrees,
        "numbers": dict(numbers),
        "error": result.error,
        "seconds": round(result.seconds, 2),
    }


def _html(results: Sequence[Result], full: bool, seconds: float) -> str:
    return page(results, summary(results), full, seconds)


FORMATS: Mapping[str, Callable[[Sequence[Result], bool, float], str]] = {
    "table": table,
    "json": as_json,
    "html": _html,
}
