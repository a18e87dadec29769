"""Checks of a training loop, their verdicts, and the report of an audit as text, as JSON and as an HTML page.

Nothing is run here, and nothing is written: a report is what was found, and its forms are strings.
"""

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
_CORE_UNTESTED = 3  # The exit status where nothing is violated but a core check could not be made
_WIDTH = 116  # The width of the text report, in characters
_MARKS = {HELD: "held", VIOLATED: "VIOLATED", UNTESTED: "not tested"}
_CLASSES = {HELD: "", VIOLATED: "bad", UNTESTED: "none"}  # The CSS class of a status on the page


@dataclass(frozen=True)
class Verdict:
    """The verdict of one check on a training loop.

    Attributes:
        status: "held", "violated" or "could not be tested".
        says: what was seen, or why the check could not be made.
        mend: how to repair the loop, if the check is violated.
        power: the smallest fault that the check would have noticed, in words, if it held.
        p_value: the p-value of the statistic that decided, times the number of tests; None if there is none.
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
        p_value: the p-value of the statistic that decided, times the number of tests; None if there is none.
    """
    return Verdict(HELD, says, power=power, p_value=p_value)


def violated(says: str, mend: str, *, p_value: float | None = None) -> Verdict:
    """Return the verdict that the loop does not do what the check asks for.

    Args:
        says: what was seen.
        mend: how to repair the loop.
        p_value: the p-value of the statistic that decided, times the number of tests; None if there is none.
    """
    return Verdict(VIOLATED, says, mend, p_value=p_value)


def untested(why: str) -> Verdict:
    """Return the verdict that the check could not be made, for the reason `why`."""
    return Verdict(UNTESTED, why)


@dataclass(frozen=True)
class Check:
    """One check that an audit makes of a training loop.

    Attributes:
        name: the check's name on the command line and in the report.
        question: what the check asks, as the report shows it.
        look: a function (lab, level) -> verdict that makes the check by experiments of a `Lab`. It may report a sound
            loop, one that does what it claims, as violated with probability at most `level`.
        core: whether a claim cannot be defended if this check could not be made; the command then has an exit status
            of its own.
        random: whether the check can report a sound loop by chance. The audit's probability of a false alarm is split
            over such checks.
        follows: the names of checks whose faults can violate this check too. If one of them is violated, the report
            lists this check's violation below it, since mending the loop for it may mend both.
    """

    name: str
    question: str
    look: Callable[["Lab", float], Verdict]
    core: bool = False
    random: bool = True
    follows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One check of an audit, with its verdict and cost.

    Attributes:
        check, verdict: the check and its verdict.
        runs, seconds: how often the check ran the loop, and how long the check took.
    """

    check: Check
    verdict: Verdict
    runs: int
    seconds: float


@dataclass(frozen=True)
class AuditReport:
    """The result of auditing one training loop; report["NAME"] is the verdict of the check called NAME.

    Attributes:
        claim, view: what the loop claims, and what an attacker sees.
        entries: the verdict of each check, in the order in which the checks were made.
        runs, seconds: the number of runs and the time of the whole audit.
        false_alarm: an upper bound on the probability that any check here reports a sound loop as violating its claim.
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
        """Return the names of the checks with the status "held", "violated" or "could not be tested"."""
        return [entry.check.name for entry in self.entries if entry.verdict.status == status]

    @property
    def violations(self) -> list[str]:
        """The names of the checks that report a violation of the claim."""
        return self.named(VIOLATED)

    @property
    def causes(self) -> list[str]:
        """The names of the violated checks that no other violated check may have caused: mend these first."""
        return [name for name in self.violations if not self.cause_of(name)]

    def cause_of(self, name: str) -> str:
        """Return the name of the violated check that may have caused the violation of the check called `name`.

        That check's own violation has no such cause. The text is empty if no check may have caused the violation, or if
        the check called `name` is not violated.
        """
        bad = {entry.check.name: entry.check for entry in self.entries if entry.verdict.status == VIOLATED}
        above = [one for one in (bad[name].follows if name in bad else ()) if one in bad]
        return (self.cause_of(above[0]) or above[0]) if above else ""

    @property
    def ordered(self) -> list[Entry]:
        """All entries; a violation that another violation may have caused is directly below that other one."""
        first = [one for one in self.entries if not self.cause_of(one.check.name)]
        return [
            entry
            for one in first
            for entry in (one, *(other for other in self.entries if self.cause_of(other.check.name) == one.check.name))
        ]

    @property
    def core_untested(self) -> list[str]:
        """The names of the checks that could not be made and without which the claim cannot be defended."""
        return [one.check.name for one in self.entries if one.check.core and one.verdict.status == UNTESTED]

    @property
    def exit_code(self) -> int:
        """The exit status of the command: 1 if a check is violated, else 3 if one could not be made without which the
        claim cannot be defended, else 0."""
        return 1 if self.violations else _CORE_UNTESTED if self.core_untested else 0

    @property
    def outcome(self) -> str:
        """The result of the audit in one sentence: what is violated, or what could not be tested, or no fault."""
        if self.violations:
            return f"Violated: {', '.join(self.causes)}."
        if missing := self.core_untested:
            return f"No fault was found, but the claim is not defended: {', '.join(missing)} could not be tested."
        return "No fault was found."

    @property
    def summary(self) -> str:
        """Sentences with the number of checks of each status, the false-alarm probability, runs and seconds."""
        held, violated, rest = (len(self.named(status)) for status in (HELD, VIOLATED, UNTESTED))
        # The checks let a loop show the number of records, in which neighbours differ under add-remove: the report says
        # so
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
        """What the training loop claims of its privacy, in one line."""
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
        """Return the report as the text of a JSON object.

        Its entries are "outcome", a sentence; lists of names of checks, "violated", "causes", "held",
        "could_not_be_tested" and "core_not_tested"; "false_alarm", "runs" and "seconds"; the fields of "claim" and
        "view"; and "checks", a list of objects with "check" (its name), "question", "verdict" (the status), "says",
        "mend", "may_follow_from" (a check's name or ""), "would_have_seen" (the power), "p_value" (or null), "runs" and
        "seconds".
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
        """Return the report as an HTML page that needs no other file.

        Raises:
            ValueError: Jinja, which belongs to this package's optional dependencies `plot`, is not installed.
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
