"""Write the results of the checks as a table, as JSON, or as an HTML page."""

import json
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from dpzero_theory.document import document
from paper_checks.registry import NOT_TESTABLE, REMARK, STATUSES, Result

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


def as_html(results: Sequence[Result], full: bool, seconds: float) -> str:
    """Return the results as one self-contained HTML page, which loads no scripts, fonts or images, with a section for
    each of the paper's sections. The arguments are those of `table`."""
    return document(
        "claims.html",
        title="DPZero: the paper's claims, checked",
        width=54,
        folder=Path(__file__).parent / "templates",
        filters={"number": _number},
        results=results,
        sections=[(title, list(group)) for title, group in groupby(results, key=lambda result: result.claim.section)],
        present=[status for status in (*STATUSES, REMARK, "failed") if any(r.standing == status for r in results)],
        counts=summary(results),
        remark=REMARK,
        not_testable=NOT_TESTABLE,
        full=full,
        seconds=seconds,
    )


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e7 else f"{value:.4g}"


FORMATS: Mapping[str, Callable[[Sequence[Result], bool, float], str]] = {
    "table": table,
    "json": as_json,
    "html": as_html,
}
