"""Makes one HTML page, which needs no other file, of the report of an audit."""

from dpzero_theory.audit.finding import HELD, UNTESTED, VIOLATED
from dpzero_theory.audit.plots import plot
from dpzero_theory.audit.report import AuditReport
from dpzero_theory.document import document

_PAGE_MARKS = {HELD: ("", "held"), VIOLATED: ("bad", "VIOLATED"), UNTESTED: ("none", "not tested")}
"""For each status the CSS class of its mark on the page, and the word that it shows."""


def page(report: AuditReport) -> str:
    """Returns an audit's report as an HTML page.

    The page has a summary, the verdict of each check, violated ones first, and plots of the evidence. A verdict says
    how to mend the loop, or what fault the check would have noticed.
    """
    drawn = ((entry.check.name, plot(entry.check.name, entry.verdict.evidence)) for entry in report.entries)
    return document(
        "audit.html",
        title="Audit of a private training loop",
        width=60,
        command="python -m dpzero_theory.audit",
        report=report,
        entries=sorted(report.ordered, key=lambda entry: entry.verdict.status != VIOLATED),
        marks=_PAGE_MARKS,
        figures=[(name, *found) for name, found in drawn if found],
    )
