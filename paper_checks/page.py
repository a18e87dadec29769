"""Write the results of the checks as one self-contained HTML page, which loads no scripts, fonts or images."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dpzero_theory.document import document
from paper_checks import mathml
from paper_checks.registry import NOT_TESTABLE, REMARK, STATUSES, Result


def page(results: Sequence[Result], counts: Mapping[str, int], full: bool, seconds: float) -> str:
    """Return the page, a whole HTML document, with a section for each of the paper's sections. results: the claims with
    the results of their checks, in order. counts: the number of claims by verdict. full: whether the larger samples
    were used. seconds: the time that all checks took."""
    filters: dict[str, Callable[[Any], str]] = {
        "mathml": lambda latex: Markup(mathml.mathml(latex)),
        "readable": lambda text: Markup(mathml.readable(text)),
        "number": _number,
    }
    return document(
        "claims.html",
        title="DPZero: the paper's claims, checked",
        width=54,
        folder=Path(__file__).parent / "templates",
        filters=filters,
        results=results,
        sections=[(title, list(group)) for title, group in groupby(results, key=lambda result: result.claim.section)],
        present=[status for status in (*STATUSES, REMARK, "failed") if any(r.standing == status for r in results)],
        counts=counts,
        remark=REMARK,
        not_testable=NOT_TESTABLE,
        full=full,
        seconds=seconds,
    )


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e7 else f"{value:.4g}"
