"""One self-contained HTML page of the results: no scripts to load, no fonts, no images."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from paper_checks.mathml import mathml, readable
from paper_checks.registry import NOT_TESTABLE, REMARK, STATUSES, Claim, Result
from paper_checks.svg import svg

__all__ = ["page"]

_STYLE = """
:root { --text: #1f2328; --faint: #59636e; --line: #d1d9e0; --back: #ffffff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --faint: #9198a1; --line: #3d444d; --back: #0d1117; --card: #151b23; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 54rem; padding: 1rem; color: var(--text); background: var(--back);
       font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0; }
a { color: inherit; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--line); padding-bottom: .3rem; }
p { margin: .4rem 0; }
nav { display: flex; flex-wrap: wrap; gap: .4rem; margin: 1rem 0; position: sticky; top: 0; padding: .5rem 0;
      background: var(--back); }
nav label { border: 1px solid var(--line); border-radius: 1rem; padding: .25rem .8rem; cursor: pointer; }
nav input { position: absolute; opacity: 0; }
nav label:has(:checked) { background: var(--text); color: var(--back); }
nav label:has(:focus-visible) { outline: 2px solid #1f6feb; }
details { border: 1px solid var(--line); border-left-width: .3rem; border-radius: .4rem; margin: .5rem 0;
          background: var(--card); }
summary { cursor: pointer; padding: .55rem .7rem; list-style: none; }
summary::-webkit-details-marker { display: none; }
.head::after { content: "+"; margin-left: auto; color: var(--faint); font-weight: 600; }
details[open] .head::after { content: "\\2212"; }
sup, sub { line-height: 0; }
.holds { font-size: .95rem; }
.verdict { font-size: .8rem; font-weight: 600; }
.where, .id, dt, figcaption { color: var(--faint); font-size: .85rem; }
.head { display: flex; flex-wrap: wrap; gap: .15rem .7rem; align-items: baseline; }
.body { padding: 0 .7rem .7rem; }
.math { overflow-x: auto; padding: .3rem 0; }
math { text-align: left; }
dl { margin: .3rem 0; }
dd { margin: 0 0 .35rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td { border-top: 1px solid var(--line); padding: .2rem .5rem .2rem 0; vertical-align: top; }
td:last-child { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
code { font-size: .85rem; }
figure { margin: .6rem 0; max-width: 30rem; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: var(--faint); }
svg .grid { stroke: var(--line); stroke-width: .7; }
svg .mark { stroke: var(--text); stroke-dasharray: 5 4; }
svg polyline { fill: none; stroke-width: 2; }
.legend { font-size: .85rem; display: flex; flex-wrap: wrap; gap: 0 1rem; }
.verified { border-left-color: #1a7f37; } .verified .verdict { color: #1a7f37; }
.corrected { border-left-color: #bc8c00; } .corrected .verdict { color: #9a6700; }
.contradicted { border-left-color: #d1242f; } .contradicted .verdict { color: #d1242f; }
.remark { border-left-color: #1f6feb; } .remark .verdict { color: #1f6feb; }
.not-testable-here { border-left-color: #818b98; } .not-testable-here .verdict { color: var(--faint); }
.failed { border-left-color: #8250df; } .failed .verdict { color: #8250df; }
@media (prefers-color-scheme: dark) {
  .verified .verdict { color: #3fb950; } .corrected .verdict { color: #d29922; }
  .contradicted .verdict { color: #f85149; } .failed .verdict { color: #ab7df8; }
}
"""


def page(results: Sequence[Result], counts: Mapping[str, int], full: bool, seconds: float) -> str:
    """The whole document. `counts`: number of claims by verdict."""
    present = [status for status in (*STATUSES, REMARK, "failed") if any(r.standing == status for r in results)]
    filters = ["<label><input type=radio name=show id=show-all checked>all</label>"]
    rules = []
    for status in present:
        name = _class(status)
        filters.append(f"<label><input type=radio name=show id=show-{name}>{counts[status]} {status}</label>")
        rules.append(f"body:has(#show-{name}:checked) details:not(.{name}) {{ display: none; }}")
        rules.append(f"body:has(#show-{name}:checked) section:not(:has(.{name})) {{ display: none; }}")
    sections = []
    for title, group in groupby(results, key=lambda result: result.claim.section):
        cards = "\n".join(_card(result) for result in group)
        sections.append(f"<section><h2>{escape(title)}</h2>\n{cards}</section>")
    wrong = counts["disagree"]
    state = "every check agrees with its stated status" if not wrong else f"{wrong} checks disagree with their status"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>DPZero: the paper's claims, checked</title>
<style>{_STYLE}{chr(10).join(rules)}</style>
</head>
<body>
<h1>DPZero: the paper's claims, checked</h1>
<p>{len(results) - counts[REMARK]} claims of "DPZero: Private Fine-Tuning of Language Models without
Backpropagation" and {counts[REMARK]} remarks of ours on it, each with the check that decides it: {state}.
{"Full" if full else "Quick"} run, {seconds:.0f} seconds. Line numbers are those of
the paper's LaTeX source. Tap a claim for the formula, the method and the numbers.</p>
<nav aria-label="Show claims by verdict">{" ".join(filters)}</nav>
{_contradicted(results)}
{chr(10).join(sections)}
</body>
</html>"""


def _contradicted(results: Sequence[Result]) -> str:
    """Links to the claims that do not hold in any form given."""
    wrong = [r.claim for r in results if r.verdict in ("contradicted", "failed")]
    items = "".join(f'<li><a href="#{claim.id}">{readable(claim.claim)}</a></li>' for claim in wrong)
    return f"<p>What does not hold:</p><ul>{items}</ul>" if wrong else ""


def _class(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _card(result: Result) -> str:
    claim = result.claim
    where = ", ".join([claim.label] * bool(claim.label) + [f"line {claim.line}"] * bool(claim.line))
    head = f"<span class=verdict>{result.standing}</span> <span class=where>{escape(where)}</span>"
    opened = " open" if result.verdict in ("contradicted", "failed") else ""
    return (
        f'<details class="{_class(result.standing)}" id="{claim.id}"{opened}><summary><div class=head>{head}</div>'
        f"{readable(claim.claim)}{_shown(claim)}</summary><div class=body>{_body(result)}</div></details>"
    )


def _shown(claim: Claim) -> str:
    """What is seen without opening the claim: its formula, and what holds where it is not what is printed."""
    parts = claim.formula.split(r"\quad") if claim.formula else []
    formula = "".join(f"<div class=math>{mathml(part)}</div>" for part in parts)
    holds = f"<p class=holds><strong>What holds:</strong> {readable(claim.correction)}</p>" if claim.correction else ""
    return formula + holds


def _body(result: Result) -> str:
    claim, parts = result.claim, []
    if result.error:
        parts.append(f"<p><strong>The check failed.</strong> {escape(result.error)}</p>")
    elif not result.agrees:
        parts.append(f"<p><strong>The stated status is {escape(claim.status)}.</strong></p>")
    parts += [f"<p>{readable(text)}</p>" for text in (claim.evidence, claim.reason) if text]
    finding = result.finding
    if finding and finding.numbers:
        parts.append(f"<table>{''.join(_row(*item) for item in finding.numbers.items())}</table>")
    if finding and finding.plot:
        parts.append(svg(finding.plot))
    parts.append(_method(claim))
    if claim.anchor:
        parts.append(f"<p class=where>Line {claim.line}: <code>{escape(claim.anchor)}</code></p>")
    parts.append(f"<p class=id>{claim.id} ({claim.kind})</p>")
    return "".join(parts)


def _method(claim: Claim) -> str:
    if claim.status == NOT_TESTABLE:
        return f"<p>Command: <code>{escape(claim.command)}</code></p>" if claim.command else ""
    return (
        f"<dl><dt>How</dt><dd>{readable(claim.method)}</dd><dt>Threshold</dt><dd>{readable(claim.tolerance)}</dd></dl>"
    )


def _row(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return f"<tr><td>{readable(name)}</td><td>{escape(value)}</td></tr>"
    return f"<tr><td>{readable(name)}</td><td class=number>{_number(value)}</td></tr>"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e7 else f"{value:.4g}"
