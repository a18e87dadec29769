"""Claims of the paper, the checks that decide them, and the rule that compares the two.

A claim is an entry of `claims.toml`. A check is a function registered under the claim's id; it computes a `Finding` and
never reads the stated status. The verdict follows from the finding alone:

    verified       the statement as printed holds;
    corrected      it does not, and the correction given with the claim does;
    contradicted   neither does.

What must hold for the first verdict is the claim's text, for the second its correction: a check repeats neither.

A claim of kind 'remark' is no sentence of the paper but a remark of this project about the passage at its line. It is
written so that it holds, so its status is 'verified', and it is counted apart.

A claim with status 'not testable here' has no check. It has a reason instead, and a command that would test it if there
is one. A check that compares the library with the paper raises `Disagreement` when they differ, which is a failure
whatever the verdict.
"""

import dataclasses
import math
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

NOT_TESTABLE = "not testable here"
STATUSES = ("verified", "corrected", "contradicted", NOT_TESTABLE)
REMARK = "remark"
KINDS = ("definition", "identity", "bound", "rate", "privacy", "parameter", "table arithmetic", "experiment", REMARK)
_NUMBERED = {
    "Table": """tab:compare tab:dpzero-mezo tab:dpero-dpgd tab:opt-cls tab:opt-gen tab:toy-param tab:noise tab:llm-param
        tab:others tab:opt-param tab:opt-memory""",
    "Figure": "fig:toy_grad fig:toy_loss fig:clip_lr",
    "Theorem": "thm:d-dependent thm:d-dependent-rank thm:d-free",
    "Corollary": "cor:pl-d cor:pl-d-rank cor:pl-free",
    "Algorithm": "algo:d-dependent algo:d-free",
}
PRINTED = {
    label: f"{kind} {number}"
    for kind, labels in _NUMBERED.items()
    for number, label in enumerate(labels.split(), start=1)
}
"""The names under which the paper prints what its source labels, such as "Table 2" for tab:dpzero-mezo: LaTeX numbers
each kind in the order of the source."""
CLAIMS = Path(__file__).with_name("claims.toml")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of the paper, or a remark of this project on it.

    Attributes:
        id: name of the claim and of its check.
        section: heading it is listed under.
        label: the paper's label nearest to it ('' if there is none).
        line: line of the paper's source.
        anchor: a fragment of that line, as printed.
        claim: what the paper says, in our words; for a remark, what we say.
        formula: the statement in LaTeX ('' if words suffice).
        kind: one of KINDS.
        status: one of STATUSES.
        method: how the check decides.
        tolerance: threshold, fixed beforehand.
        evidence: what was found, in a sentence or two.
        correction: the statement that does hold (status 'corrected').
        reason: why it cannot be tested here (status 'not testable here').
        command: the command that would test it ('' if there is none).
    """

    id: str
    section: str
    label: str = ""
    line: int
    anchor: str
    claim: str
    formula: str = ""
    kind: str
    status: str
    method: str = ""
    tolerance: str = ""
    evidence: str = ""
    correction: str = ""
    reason: str = ""
    command: str = ""

    @property
    def where(self) -> str:
        """The paper's label, and what it is printed as if it has a number: "Table 2, tab:dpzero-mezo"."""
        printed = PRINTED.get(self.label)
        return f"{printed}, {self.label}" if printed else self.label

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.status not in STATUSES:
            raise ValueError(f"claim {self.id}: unknown kind {self.kind!r} or status {self.status!r}")
        if self.kind == REMARK and self.status != "verified":
            raise ValueError(f"claim {self.id}: a remark of ours must be 'verified'; got {self.status!r}")
        needed = ["reason"] if self.status == NOT_TESTABLE else ["method", "tolerance", "evidence"]
        if self.status == "corrected":
            needed.append("correction")
        for name in needed:
            if not getattr(self, name):
                raise ValueError(f"claim {self.id}: {name} must not be empty with status {self.status!r}")


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        stated: whether the statement as printed holds.
        repaired: whether the correction holds (only used if the statement as printed does not).
        numbers: the measured or computed values worth showing, by name.
    """

    stated: bool
    repaired: bool = False
    numbers: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if self.stated:
            return "verified"
        return "corrected" if self.repaired else "contradicted"


@dataclass(frozen=True)
class Result:
    """A claim with the result of its check and the seconds of wall time that the check took. `finding` is None if the
    claim has no check or the check raised an exception; `error` is then the last line of that exception, otherwise
    ''."""

    claim: Claim
    finding: Finding | None
    error: str
    seconds: float

    @property
    def verdict(self) -> str:
        if self.error:
            return "failed"
        return self.finding.verdict if self.finding else NOT_TESTABLE

    @property
    def standing(self) -> str:
        """How the claim is counted: by its verdict, or as 'remark' for a remark of this project that holds."""
        return REMARK if self.claim.kind == REMARK and self.verdict == "verified" else self.verdict

    @property
    def agrees(self) -> bool:
        return self.verdict == self.claim.status


class Disagreement(AssertionError):
    """The error that a check raises if the library's number and the paper's formula differ."""


Check = Callable[[bool], Finding]
_CHECKS: dict[str, Check] = {}


def check(id: str) -> Callable[[Check], Check]:
    """Return a decorator that registers a function as the check of the claim `id`. It raises ValueError if there is one
    already.

    The function takes `full`: False asks for the fast version (`--quick`), True for larger samples and grids. Most
    checks are exact or quick and ignore it. What it changes is said in the claim's method, or in the docstring of a
    helper that the check calls or of its module.
    """

    def register(function: Check) -> Check:
        if id in _CHECKS:
            raise ValueError(f"two checks for the claim {id}")
        _CHECKS[id] = function
        return function

    return register


def registered() -> Mapping[str, Check]:
    """Return the checks by the id of their claim, in the order in which they were registered. Only the checks of
    modules that have been imported are registered."""
    return dict(_CHECKS)


def load_claims(path: Path = CLAIMS) -> list[Claim]:
    """Read the claims from the TOML file at `path`, in its order. Raises ValueError for an unknown field, kind or
    status, a text that the claim's status needs and that is empty, or an id that is used twice, and TypeError for a
    field that every claim must have and that is missing."""
    names = {f.name for f in dataclasses.fields(Claim)}
    with path.open("rb") as file:
        entries = tomllib.load(file)["claim"]
    claims = []
    for entry in entries:
        if unknown := set(entry) - names:
            raise ValueError(f"claim {entry.get('id')}: unknown fields {sorted(unknown)}")
        claims.append(Claim(**entry))
    ids = [claim.id for claim in claims]
    if len(set(ids)) < len(ids):
        raise ValueError(f"ids used twice: {sorted({i for i in ids if ids.count(i) > 1})}")
    return claims


def run(claims: Sequence[Claim], full: bool) -> Iterator[Result]:
    """Run the check of each claim in order, and yield its result. If a check raises an exception, the result's `error`
    has the exception's last line. `full` says whether the checks use larger samples and grids."""
    for claim in claims:
        start = time.perf_counter()
        finding, error = None, ""
        if claim.status != NOT_TESTABLE:
            try:
                finding = _CHECKS[claim.id](full)
            except KeyError as missing:
                error = f"no check for this claim ({missing})" if claim.id not in _CHECKS else _last_line()
            except Exception:
                error = _last_line()
        yield Result(claim, finding, error, time.perf_counter() - start)


def _last_line() -> str:
    return traceback.format_exc(limit=-1).strip().splitlines()[-1]


def agree(name: str, library: ArrayLike, paper: ArrayLike, tolerance: float = 1e-10) -> None:
    """Raise Disagreement unless `library` and `paper` have the same shape and differ, in every entry, by at most
    `tolerance` times the largest absolute value in `paper`. A NaN disagrees. `library` has the library's values,
    `paper` those of the paper's formula, and `name` is the library's function, for the message."""
    ours, theirs = np.asarray(library, dtype=float), np.asarray(paper, dtype=float)
    scale = max(float(np.max(np.abs(theirs), initial=0)), math.ulp(0.0))
    worst = float(np.max(np.abs(ours - theirs), initial=0)) if ours.shape == theirs.shape else math.inf
    if not worst <= tolerance * scale:
        shown = np.array2string(ours, threshold=4), np.array2string(theirs, threshold=4)
        raise Disagreement(f"{name}: the library gives {shown[0]}, the paper's formula {shown[1]}")
