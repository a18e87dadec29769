"""Checks of a training loop, their verdicts, and the report of an audit as text, JSON or an HTML page."""

import json
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.document import document
from dpzero_theory.privacy.relation import Relation

if TYPE_CHECKING:
    from dpzero_theory.audit.lab import Lab

HELD, VIOLATED, UNTESTED = "held", "violated", "could not be tested"
_CORE_UNTESTED = 3  # The exit status if no check is violated, but a core check could not be made
_WIDTH = 116  # The width of the text report, in characters
_MARKS = {HELD: "held", VIOLATED: "VIOLATED", UNTESTED: "not tested"}
_CLASSES = {HELD: "", VIOLATED: "bad", UNTESTED: "none"}  # The CSS class of a status on the page


@dataclass(frozen=True)
class Verdict:
    """The verdict of one check on a training loop.

    Attributes:
        status: "held", "violated" or "could not be tested".
        says: what was seen, or why the check could not be made.
        mend: how to repair the loop, if the check is violated; else "".
        power: the smallest fault that the check would have noticed, in words; "" if it did not hold or this is not
            known.
        p_value: the p-value of the decisive statistic, times the number of tests; None if there is none.
    """

    status: str
    says: str
    mend: str = ""
    power: str = ""
    p_value: float | None = None


def held(says: str, *, power: str = "", p_value: float | None = None) -> Verdict:
    """Return the verdict that the loop does what the check asks for.

    Args:
        says: what was seen.
        power: the smallest fault that the check would have noticed, in words.
        p_value: the p-value of the decisive statistic, times the number of tests; None if there is none.
    """
    return Verdict(HELD, says, power=power, p_value=p_value)


def violated(says: str, mend: str, *, p_value: float | None = None) -> Verdict:
    """Return the verdict that the loop does not do what the check asks for.

    Args:
        says: what was seen.
        mend: how to repair the loop.
        p_value: the p-value of the decisive statistic, times the number of tests; None if there is none.
    """
    return Verdict(VIOLATED, says, mend, p_value=p_value)


def untested(why: str) -> Verdict:
    """Return the verdict that the check could not be made, with the reason `why`."""
    return Verdict(UNTESTED, why)


@dataclass(frozen=True)
class Check:
    """One check that an audit makes of a training loop.

    Attributes:
        name: the name of the check on the command line and in the report.
        question: what the check asks, as the report shows it.
        look: a function (lab, level) -> verdict, which makes the check by experiments of a `Lab`. For a loop that does
            what it claims, it returns a violation with probability at most `level`.
        core: whether this check is needed to defend a claim. If it could not be made, the command's exit status is not
            0.
        random: whether the check can report a violation by chance. The audit splits its probability of a false alarm
            over such checks.
        follows: names of checks whose faults can also violate this check. If one of them is violated too, the report
            lists this violation below it, since one repair may mend both.
    """

    name: str
    question: str
    look: Callable[["Lab", float], Verdict]
    core: bool = False
    random: bool = True
    follows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One check of an audit, with its verdict and its cost.

    Attributes:
        check: the check.
        verdict: its verdict.
        runs: how often the check ran the loop.
        seconds: how long the check took.
    """

    check: Check
    verdict: Verdict
    runs: int
    seconds: float


@dataclass(frozen=True)
class AuditReport:
    """The result of auditing one training loop. report[name] is the `Verdict` of the check with this name.

    Attributes:
        claim, view: what the loop's author claims, and what an attacker sees.
        entries: each check with its verdict, in the order in which the checks were made.
        runs, seconds: the number of runs, and the time in seconds, of the whole audit.
        false_alarm: an upper bound on the probability that any check reports a violation, if the loop does what it
            claims.
    """

    claim: Claim
    view: View
    entries: tuple[Entry, ...]
    runs: int
    seconds: float
    false_alarm: float

    def __getitem__(self, name: str) -> Verdict:
        return next(entry.verdict for entry in self.entries if entry.check.name == name)

    def named(self, status: str) -> list[str]:
        """Return the names of the checks whose status is "held", "violated" or "could not be tested"."""
        return [entry.check.name for entry in self.entries if entry.verdict.status == status]

    @property
    def violations(self) -> list[str]:
        """The names of the violated checks."""
        return self.named(VIOLATED)

    @property
    def causes(self) -> list[str]:
        """The names of the violated checks that do not follow from another violated check. Repair these first."""
        return [name for name in self.violations if not self.cause_of(name)]

    def cause_of(self, name: str) -> str:
        """Return the name of a violated check from which a violation of `name` may follow (`Check.follows`).

        If that violation may follow from another one in turn, the first of the chain is returned. Returns "" if `name`
        is not violated, or its violation follows from no other.
        """
        bad = {entry.check.name: entry.check for entry in self.entries if entry.verdict.status == VIOLATED}
        above = [one for one in (bad[name].follows if name in bad else ()) if one in bad]
        return (self.cause_of(above[0]) or above[0]) if above else ""

    @property
    def ordered(self) -> list[Entry]:
        """All entries, with each violation that may follow from another one directly below that one."""
        first = [one for one in self.entries if not self.cause_of(one.check.name)]
        return [
            entry
            for one in first
            for entry in (one, *(other for other in self.entries if self.cause_of(other.check.name) == one.check.name))
        ]

    @property
    def core_untested(self) -> list[str]:
        """The names of the checks that are needed to defend the claim, but could not be made."""
        return [one.check.name for one in self.entries if one.check.core and one.verdict.status == UNTESTED]

    @property
    def exit_code(self) -> int:
        """The command's exit status: 1 if a check is violated, else 3 if a check that is needed to defend the claim
        could not be made, else 0."""
        return 1 if self.violations else _CORE_UNTESTED if self.core_untested else 0

    @property
    def outcome(self) -> str:
        """The result of the audit in one sentence: the violated checks to repair first (`causes`), else the checks that
        are needed to defend the claim but could not be made, else "No fault was found"."""
        if self.violations:
            return f"Violated: {', '.join(self.causes)}."
        if missing := self.core_untested:
            return f"No fault was found, but the claim is not defended: {', '.join(missing)} could not be tested."
        return "No fault was found."

    @property
    def summary(self) -> str:
        """A few sentences with the number of checks of each status, the probability of a false alarm, the runs and the
        time."""
        held, violated, rest = (len(self.named(status)) for status in (HELD, VIOLATED, UNTESTED))
        # Neighbours under add-remove differ in the number of records, which the checks let a loop show
        number = " The number of records is taken to be public." if self.claim.relation == Relation.ADD_REMOVE else ""
        missing = f" Not tested, and needed to defend the claim: {', '.join(self.core_untested)}."
        return (
            f"{held} checks held, {violated} violated, {rest} could not be tested; a loop that does as claimed is"
            f" reported with probability at most {self.false_alarm:g}. {self.runs} runs, {self.seconds:.1f} s."
            + number
            + (missing if self.core_untested else "")
        )

    @property
    def claim_line(self) -> str:
        """The claim of the training loop in one line."""
        c = self.claim
        mechanism = (
            f"{c.sampling} batches of {c.batch:g} of {c.n}, {c.steps} steps, noise multiplier {c.noise_multiplier:g}"
        )
        known = f"seed {self.view.seed}, records {self.view.records}"
        return f"claimed: ({c.epsilon:g}, {c.delta:g})-DP, {c.relation}, {mechanism}, clip {c.clip:g}; {known}"

    def text(self) -> str:
        """Return the report as text: the outcome, the claim, a table of verdicts, and the summary."""
        lines = [*textwrap.wrap(self.outcome, _WIDTH), self.claim_line, ""]
        for entry in self.ordered:
            verdict, cause = entry.verdict, self.cause_of(entry.check.name)
            said = verdict.says + (f" [would have seen: {verdict.power}]" if verdict.power else "")
            name = f"  {entry.check.name}" if cause else entry.check.name
            first = f"{name:22} {_MARKS[verdict.status]:12}"
            lines += textwrap.wrap(first + said, _WIDTH, subsequent_indent=" " * 35)
            if cause:
                lines.append(f"{'':35}may follow from {cause}: mend that first, then audit again")
            elif verdict.mend:
                lines += textwrap.wrap(f"{'':35}mend: {verdict.mend}", _WIDTH, subsequent_indent=" " * 41)
        return "\n".join([*lines, "", self.summary])

    def as_json(self) -> str:
        """Return the report as a JSON string, an object with these entries:

        "outcome", a sentence; lists of names of checks: "violated", "causes" (violated, but not as a result of another
        one), "held", "could_not_be_tested" and "core_not_tested" (not tested, but needed to defend the claim);
        "false_alarm", "runs" and "seconds"; "claim" and "view", objects with their fields; and "checks", a list of
        objects with "check" (the name), "question", "verdict" (the status), "says", "mend", "may_follow_from" (the name
        of a check or ""), "would_have_seen" (the power), "p_value" (or null), "runs" and "seconds".
        """
        content = {
            "outcome": self.outcome,
            "violated": self.violations,
            "causes": self.causes,
            "held": self.named(HELD),
            "could_not_be_tested": self.named(UNTESTED),
            "core_not_tested": self.core_untested,
            "false_alarm": self.false_alarm,
            "runs": self.runs,
            "seconds": round(self.seconds, 3),
            "claim": asdict(self.claim),
            "view": asdict(self.view),
            "checks": [
                {
                    "check": entry.check.name,
                    "question": entry.check.question,
                    "verdict": entry.verdict.status,
                    "says": entry.verdict.says,
                    "mend": entry.verdict.mend,
                    "may_follow_from": self.cause_of(entry.check.name),
                    "would_have_seen": entry.verdict.power,
                    "p_value": entry.verdict.p_value,
                    "runs": entry.runs,
                    "seconds": round(entry.seconds, 3),
                }
                for entry in self.entries
            ],
        }
        return json.dumps(content, indent=2, allow_nan=False)

    def html(self) -> str:
        """Return the report as a self-contained HTML page.

        Raises:
            ValueError: Jinja is not installed (the extra `plot` of this package).
        """
        return document(
            "audit.html",
            title="Audit of a private training loop",
            width=60,
            command="python -m dpzero_theory.audit",
            report=self,
            entries=sorted(self.ordered, key=lambda entry: entry.verdict.status != VIOLATED),
            marks={status: (_CLASSES[status], word) for status, word in _MARKS.items()},
        )
