"""The report as one HTML page that needs nothing else."""

import html

from dpzero_theory.audit.finding import HELD, UNTESTED, VIOLATED
from dpzero_theory.audit.plots import plot
from dpzero_theory.audit.report import Entry, Report

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto; padding: 1rem;
       max-width: 60rem; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { padding: .75rem 1rem; border-left: .4rem solid #0072b2; background: #eef5fa; }
.verdict.bad { border-color: #d55e00; background: #fdf1e8; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid #ddd;
         overflow-wrap: anywhere; }
th { font-weight: 600; width: 11rem; } td.mark { width: 8rem; white-space: nowrap; }
.bad { color: #b34700; font-weight: 600; } .none { color: #666; } small { color: #555; display: block; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem 2rem; }
figure { margin: 0; } figcaption, footer { color: #555; font-size: .9rem; }
svg { display: block; width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; }
"""
_MARKS = {
    HELD: "held",
    VIOLATED: "<span class=bad>VIOLATED</span>",
    UNTESTED: "<span class=none>not tested</span>",
}


def page(report: Report) -> str:
    """Summary, verdicts with how to mend what is violated and what would have been seen, and the evidence plotted."""
    bad = report.violations
    headline = f"Violated: {', '.join(bad)}." if bad else "Nothing is violated that could be tested."
    figures = [
        f"<figure><strong>{entry.check.name}</strong>{picture}</figure>"
        for entry in report.entries
        if (picture := plot(entry.check.name, entry.verdict.evidence))
    ]
    return "\n".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>Audit of a private training loop</title><style>{_STYLE}</style>",
            "<h1>Audit of a private training loop</h1>",
            f"<p class='verdict{' bad' if bad else ''}'><strong>{html.escape(headline)}</strong><br>",
            f"{html.escape(report.claim_line)}<br>{html.escape(report.summary)}</p>",
            "<h2>Verdicts</h2><table>",
            *(_row(entry) for entry in report.entries),
            "</table>",
            *(["<h2>Evidence</h2><div class=plots>", *figures, "</div>"] if figures else []),
            "<footer>Written by python -m dpzero_theory.audit</footer></html>",
        ]
    )


def _row(entry: Entry) -> str:
    verdict = entry.verdict
    more = [verdict.mend and f"Mend: {verdict.mend}.", verdict.power and f"Would have been seen: {verdict.power}."]
    small = "".join(f"<small>{html.escape(text)}</small>" for text in more if text)
    return (
        f"<tr><th>{entry.check.name}<td class=mark>{_MARKS[verdict.status]}"
        f"<td>{html.escape(entry.check.question)} {html.escape(verdict.says)}.{small}"
    )
