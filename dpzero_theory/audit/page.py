"""The report as one HTML page that needs nothing else."""

import html
import re

from dpzero_theory.audit.finding import HELD, UNTESTED, VIOLATED
from dpzero_theory.audit.plots import plot
from dpzero_theory.audit.report import Entry, Report
from dpzero_theory.document import document

_STYLE = """
th { width: 11rem; } td.mark { width: 8rem; white-space: nowrap; } .none { color: #666; }
small { color: #555; display: block; } .asked { color: #555; display: block; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem 2rem; }
@media (max-width: 34rem) { th, td, td.mark { display: block; width: auto; border: 0; padding: 0 0 .2rem; }
  tr { display: block; border-bottom: 1px solid #ddd; padding: .4rem 0; } }
"""
_MARKS = {
    HELD: "held",
    VIOLATED: "<span class=bad>VIOLATED</span>",
    UNTESTED: "<span class=none>not tested</span>",
}


def page(report: Report) -> str:
    """Summary, verdicts with how to mend what is violated and what would have been seen, and the evidence plotted.

    What is violated comes first.
    """
    bad = report.violations
    headline = f"Violated: {', '.join(bad)}." if bad else "Nothing is violated that could be tested."
    figures = [
        f"<figure><strong>{entry.check.name}</strong>{picture}</figure>"
        for entry in report.entries
        if (picture := plot(entry.check.name, entry.verdict.evidence))
    ]
    parts = [
        f"<p class='verdict{' bad' if bad else ''}'><strong>{html.escape(headline)}</strong><br>",
        f"{html.escape(report.claim_line)}<br>{html.escape(report.summary)}</p>",
        "<h2>Verdicts</h2><table>",
        *(_row(entry) for entry in sorted(report.entries, key=lambda entry: entry.verdict.status != VIOLATED)),
        "</table>",
        *(["<h2>Evidence</h2><div class=plots>", *figures, "</div>"] if figures else []),
    ]
    command = "python -m dpzero_theory.audit"
    return document("Audit of a private training loop", parts, command=command, width=60, style=_STYLE)


def _row(entry: Entry) -> str:
    verdict = entry.verdict
    more = [verdict.mend and f"Mend: {verdict.mend}.", verdict.power and f"Would have been seen: {verdict.power}."]
    small = "".join(f"<small>{_marked(text)}</small>" for text in more if text)
    return (
        f"<tr><th>{entry.check.name}<td class=mark>{_MARKS[verdict.status]}"
        f"<td><span class=asked>{_marked(entry.check.question)}</span>"
        f"{_marked(verdict.says[:1].upper() + verdict.says[1:])}.{small}"
    )


def _marked(text: str) -> str:
    """As HTML, what is between backticks as code."""
    return re.sub("`(.+?)`", r"<code>\1</code>", html.escape(text))
