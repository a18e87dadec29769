"""The report as one HTML page that needs nothing else."""

from dpzero_theory.audit.finding import HELD, UNTESTED, VIOLATED
from dpzero_theory.audit.plots import plot
from dpzero_theory.audit.report import Report
from dpzero_theory.document import document

_MARKS = {HELD: ("", "held"), VIOLATED: ("bad", "VIOLATED"), UNTESTED: ("none", "not tested")}
"""For each verdict the class of its mark, and its words."""


def page(report: Report) -> str:
    """Summary, verdicts with how to mend what is violated and what would have been seen, and the evidence plotted.

    What is violated comes first.
    """
    drawn = ((entry.check.name, plot(entry.check.name, entry.verdict.evidence)) for entry in report.entries)
    return document(
        "audit.html",
        title="Audit of a private training loop",
        width=60,
        command="python -m dpzero_theory.audit",
        report=report,
        entries=sorted(report.entries, key=lambda entry: entry.verdict.status != VIOLATED),
        marks=_MARKS,
        figures=[(name, *found) for name, found in drawn if found],
    )
