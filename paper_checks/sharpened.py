"""Make the checks of the sharpened theorem (`dpzero_theory/theory/sharp`) claims that the command `python -m
paper_checks --full` runs.

They are not the paper's claims, so they are not in `claims.toml`.
"""

from collections.abc import Callable
from functools import partial

from paper_checks.outcome import Checked
from paper_checks.registry import Claim, Finding, check
from paper_checks.sharp import __main__ as sharp


def register() -> list[Claim]:
    """Register every check of `paper_checks.sharp` under the id `sharp-NAME`. Returns their claims, each with the
    stated status verified."""
    claims = []
    for name, function in sharp.CHECKS.items():
        check(f"sharp-{name}")(partial(_finding, function))
        claims.append(
            Claim(
                id=f"sharp-{name}",
                section="The sharpened theorem (this project's, dpzero_theory/theory/sharp/proof.md)",
                label="",
                line=0,
                anchor="",
                claim=f"Step {name} of the sharpened theorem.",
                kind="remark",
                status="verified",
                method="See paper_checks/sharp.",
                tolerance="fixed in the check",
                evidence="Holds.",
            )
        )
    return claims


def _finding(function: Callable[[], Checked], full: bool) -> Finding:
    outcome = function()
    return Finding(outcome.ok, numbers={outcome.text: outcome.measured, "threshold": outcome.threshold})
