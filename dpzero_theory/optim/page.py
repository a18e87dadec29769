"""A run's report as one HTML page that needs nothing else: the claim, the checks, the spending curve, the statement."""

import html
from collections.abc import Sequence

from dpzero_theory.document import document
from dpzero_theory.optim.statement import Statement, shown

Curve = Sequence[tuple[int, float]]
_STYLE = """
th { width: 9.5rem; } thead th { width: auto; } thead + tbody td:first-child { white-space: nowrap; }
td.mark { width: 7rem; } svg { max-width: 36rem; }
@media (max-width: 34rem) { .facts th, .facts td { display: block; width: auto; padding-right: 0; }
  .facts th { border: 0; padding-bottom: 0; } .facts td + td { border: 0; } .facts td.mark { padding-top: 0; }
  .facts td { border: 0; } .facts tr { display: block; border-bottom: 1px solid #ddd; } }
"""
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 380, 230, 44, 14, 14, 40


def page(
    statement: Statement | None, checks: Sequence[tuple[str, str, bool | None]], curve: Curve, spent: int, target: float
) -> str:
    """The page. checks: name, value, and whether it holds (None: only said). target: epsilon of the budget."""
    holds = all(mark is not False for _, _, mark in checks)
    claim = statement.claim if statement else "Nothing can be said of this run."
    verdict = "Every number was computed again and holds." if holds else "Something does not fit; see below."
    parts = [
        f"<p class='verdict{'' if holds else ' bad'}'><strong>{_text(verdict)}</strong><br>{_text(claim)}</p>",
        "<h2>Checks</h2><table class=facts>",
        *(
            f"<tr><th>{_text(name)}<td>{_text(value)}<td class=mark>{_mark(mark)}"
            for name, value, mark in checks
            if mark is not None
        ),
        "</table>",
    ]
    if statement:
        if curve:
            parts += ["<h2>What was spent</h2>", _figure(curve, spent, target, statement.costs[0].delta)]
        parts += [
            "<table><thead><tr><th>delta<th>epsilon of what is paid for<th>of the whole plan<tbody>",
            *(f"<tr><td>{c.delta:g}<td>{shown(c.paid)}<td>{shown(c.planned)}" for c in statement.costs),
            "</table><h2>What is claimed, and of what</h2><table class=facts>",
            *(f"<tr><th>{_text(name)}<td>{_text(value)}" for name, value in statement.facts.items()),
            "</table><h2>What is assumed</h2><ul>",
            *(f"<li>{_text(sentence)}" for sentence in statement.assumed),
            "</ul>",
        ]
    command = "python -m dpzero_theory.optim.verify"
    return document("Privacy statement of a run", parts, command=command, width=46, style=_STYLE)


def _figure(curve: Curve, spent: int, target: float, delta: float) -> str:
    """epsilon against releases: a line up to what is paid for, dashes up to the plan's end, the budget above."""
    steps, top = max(curve[-1][0], 1), max(target, curve[-1][1]) * 1.12

    def x(count: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * count / steps

    def y(epsilon: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * epsilon / top

    def line(points: Curve, style: str) -> str:
        places = " ".join(f"{x(count):.1f},{y(epsilon):.1f}" for count, epsilon in points)
        return f"<polyline fill=none stroke-width=2 {style} points='{places}'/>"

    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    reached = dict(curve)[spent]
    late = x(spent) > right - 90
    return "".join(
        [
            f"<figure><svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img aria-label='epsilon against releases paid for'>",
            f"<path fill=none stroke='#888' d='M{_LEFT} {_TOP}V{bottom}H{right}'/>",
            *(
                f"<text x={x(count):.1f} y={bottom + 15} text-anchor={anchor}>{count:,}</text>"
                for count, anchor in ((0, "middle"), (steps, "end"))
            ),
            *(
                f"<text x={_LEFT - 5} y={y(value) + 4:.1f} text-anchor=end>{value:.3g}</text>"
                for value in (0.0, target / 2, target)
            ),
            f"<text x={(_LEFT + right) / 2} y={_HEIGHT - 6} text-anchor=middle>releases paid for</text>",
            f"<text x={_LEFT + 5} y={_TOP + 2}>epsilon at delta = {delta:g}</text>",
            f"<path stroke='#d55e00' stroke-dasharray='1 4' d='M{_LEFT} {y(target):.1f}H{right}'/>",
            line([point for point in curve if point[0] >= spent], "stroke='#0072b2' stroke-dasharray='5 4'"),
            line([point for point in curve if point[0] <= spent], "stroke='#0072b2'"),
            f"<circle cx={x(spent):.1f} cy={y(reached):.1f} r=4 fill='#0072b2'/>",
            f"<text x={x(spent) + (0 if late else 8):.1f} y={min(y(reached) + (36 if late else 18), bottom - 5):.1f}"
            f" text-anchor={'end' if late else 'start'}>{reached:.3g} for {spent:,}</text>",
            "</svg><figcaption>Blue line: upper bound on epsilon of what is paid for so far (dot); blue dashes: of the"
            f" rest of the plan; orange dots: the budget, {target:.4g}.</figcaption></figure>",
        ]
    )


def _mark(holds: bool) -> str:
    return "holds" if holds else "<span class=bad>DOES NOT HOLD</span>"


def _text(text: str) -> str:
    return html.escape(text)
