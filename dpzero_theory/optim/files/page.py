"""A run's report as one self-contained HTML page: the claim, the checks, the spending curve, the statement."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpzero_theory.document import BLUE, ORANGE, document, picture
from dpzero_theory.optim.files.statement import Statement, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Sequence[tuple[int, float]]
"""Pairs (number of releases, upper bound on epsilon of so many)."""


def page(
    statement: Statement | None,
    checks: Sequence[tuple[str, str, bool | None]],
    curve: Curve,
    spent: int,
    target: float,
    untold: Sequence[str] = (),
) -> str:
    """Write the page, and return it as HTML text.

    Args:
        statement: the run's claim; None where nothing can be said of it.
        checks: for each check a triple (name, value as text, whether it holds; None where the value is only told).
        curve: pairs (number of releases, upper bound on epsilon of so many), up to the plan's last release.
        spent: how many releases are paid for.
        target: the budget's epsilon, which is drawn as a line.
        untold: what the checks cannot tell, one sentence each.
    """
    figure = ""
    if statement and curve:
        delta = statement.costs[0].delta
        figure = picture(
            lambda axes: _draw(axes, curve, spent, target, delta), label="epsilon against releases paid for"
        )
    return document(
        "statement.html",
        title="Privacy statement of a run",
        width=46,
        command="python -m dpzero_theory.optim.verify",
        filters={"bracket": shown},
        holds=all(mark is not False for _, _, mark in checks),
        statement=statement,
        checks=checks,
        figure=figure,
        target=target,
        untold=untold,
    )


def _draw(axes: "Axes", curve: Curve, spent: int, target: float, delta: float) -> None:
    """Draw the curve: solid up to what is paid for, dashed up to the plan's end, with the budget as a dotted line.

    axes: matplotlib's. spent: the number of releases paid for. target: the budget's epsilon. delta: for the label.
    """
    paid = [point for point in curve if point[0] <= spent]
    axes.plot(*zip(*paid, strict=True), color=BLUE)
    axes.plot(*zip(*(point for point in curve if point[0] >= spent), strict=True), color=BLUE, linestyle="--")
    axes.axhline(target, color=ORANGE, linestyle=":")
    axes.plot(*paid[-1], "o", color=BLUE)
    axes.annotate(
        f"{paid[-1][1]:.3g} for {spent:,}",
        paid[-1],
        xytext=(-8, -32) if spent > 0.7 * curve[-1][0] else (8, -10),
        textcoords="offset points",
        ha="right" if spent > 0.7 * curve[-1][0] else "left",
    )
    axes.set(xlabel="releases paid for", ylabel=f"epsilon at delta = {delta:g}", ylim=(0, None))
