"""The privacy statement of a run, from its file: what is claimed, of what, and what is assumed.

`optim.verify` prints it after checking every number of it; a model card carries the same text.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpzero_theory.check import printable
from dpzero_theory.optim.files.transcript import Content, read
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certificate import privacy_certificate
from dpzero_theory.privacy.ledger import STOPPING, counted
from dpzero_theory.privacy.risk import attack
from dpzero_theory.privacy.step import Step

DELTAS = (1e-4, 1e-6, 1e-8)
"""The values of delta for which a statement gives epsilon, beside the delta of the run's budget."""
FALSE_POSITIVE_RATE = 0.01
"""The false positive rate at which a statement says how often the best attack is right of a record that was used."""
_LOOKS = 3
"""The number of values of epsilon at which delta is computed, to bound what the best attack achieves."""
_ENTRY = "one entry of the data set"
_ASSUMED = (
    "the run was made by this software, unchanged, and nothing but the files of the folder (data.key apart), the"
    " weights and what is computed from them was shown: no losses, batches or timings",
    "each record is one entry of the data set, and its loss depends on it alone; whoever has several records is"
    " covered for each of them, not for all together",
    "n, the clip and all other settings do not depend on the records; runs that were made to choose them count too",
    "the operating system's entropy cannot be foreseen",
    "the run's file was not rolled back, and no copy of the folder went on elsewhere",
)


@dataclass(frozen=True)
class Cost:
    """Brackets of epsilon at one delta: of what may be claimed now, `paid`, and of the whole plan, `planned`. They are
    the same unless the run's `stopping` says otherwise."""

    delta: float
    paid: Bracket
    planned: Bracket


@dataclass(frozen=True)
class Statement:
    """The privacy statement of a run.

    Attributes:
        facts: the run's settings and counts as texts, by name.
        costs: epsilon at the target's delta first, then at other values of delta.
        assumed: sentences that say what the statement rests on.
        relation: which data sets are neighbours.
        history: the releases whose cost is claimed, at least those that are paid for.
        advantage: a certified upper bound on how far an attack's true positive rate exceeds its false positive rate.
        true_positive_rate: a certified upper bound on an attack's true positive rate where its false positive rate is
            at most `FALSE_POSITIVE_RATE` (`risk.attack`).
    """

    facts: dict[str, str]
    costs: tuple[Cost, ...]
    assumed: tuple[str, ...]
    relation: str
    history: tuple[Step, ...]
    advantage: float
    true_positive_rate: float

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The certificate of the claimed epsilon (`privacy.certificate`); None where none can be made."""
        try:
            return privacy_certificate(self.history, self.costs[0].delta)
        except ValueError:
            return None

    @property
    def claim(self) -> str:
        """The claim in one sentence."""
        first, facts = self.costs[0], self.facts
        pair = f"({rounded_up(first.paid.upper)}, {first.delta:g})"
        whom = f" for each {self.unit}" if self.unit != "record" else ""
        return f"What was released is {pair}-differentially private{whom} under {facts['relation']}."

    @property
    def unit(self) -> str:
        """Whom the guarantee protects, in one word: "record" for one entry of the data set, or "user"."""
        return _word(self.facts["record"])

    def text(self) -> str:
        """The whole statement as text of several lines, wrapped at 100 characters."""
        at = f"{100 * FALSE_POSITIVE_RATE:g}% false positives"
        facts = [
            line
            for name, value in self.facts.items()
            for line in textwrap.wrap(f"{name:22}{value}", 100, subsequent_indent=" " * 22)
        ]
        return "\n".join(
            [
                *(self.claim, "", *facts, "", "epsilon, from below and from above"),
                f"{'delta':10}{'claimed':30}of the whole plan",
                *(f"{c.delta:<10g}{shown(c.paid):30}{shown(c.planned)}" for c in self.costs),
                *("", f"the best attack on one {self.unit}, which knows all others and sees all that is shown"),
                f"true minus false positive rate at most {rounded_up(self.advantage)}",
                f"true positive rate at most {rounded_up(self.true_positive_rate)} at {at}",
                *("", "assumed", *bullets(self.assumed)),
            ]
        )


def bullets(sentences: Sequence[str]) -> list[str]:
    """Return lines of at most 100 characters with one dash before each sentence."""
    return [line for said in sentences for line in textwrap.wrap(f"- {said}", 100, subsequent_indent="  ")]


def shown(bracket: Bracket) -> str:
    """Return both ends of a bracket as text, rounded outwards to six significant digits; the upper end alone where the
    two agree to six digits."""
    high = rounded_up(bracket.upper)
    return high if f"{bracket.lower:.6g}" == f"{bracket.upper:.6g}" else f"{_rounded(bracket.lower, -1)} to {high}"


def rounded_up(epsilon: float) -> str:
    """Return epsilon, rounded up to six significant digits, as text."""
    return _rounded(epsilon, 1)


def _rounded(value: float, side: int) -> str:
    near = f"{value:.6g}"
    rounding = ROUND_CEILING if side > 0 else ROUND_FLOOR
    outside = Context(prec=6, rounding=rounding).create_decimal_from_float(value)
    return near if side * (float(near) - value) >= 0 else f"{float(outside):.6g}"


_OF_USERS = (
    "each record is all that one user has in the data set, and its loss depends on it alone; every entry has one owner,"
    " who is named rightly; metrics on other entries of these users are not covered"
)
"""What is assumed of a record in place of `_ASSUMED[1]` where a record is a user."""


def statement_of_folder(folder: Path) -> Statement:
    """Return the privacy statement of the run in a folder; the run may be going on.

    Raises LedgerError where its file is damaged, and OSError where it cannot be read.
    """
    return statement(read(folder, private=True))


def statement(content: Content) -> Statement:
    """Return the privacy statement of a private run. content: of its file."""
    header, plan, account = content.header, content.header.plan, content.account
    release = plan.release
    law = plan.law
    assert law is not None
    unit = _word(header.unit or _ENTRY)
    meanings = [release.relation.meaning, plan.sampling.meaning(plan.n)]
    relation, sampling = (f" ({said.replace('record', unit)})" if said else "" for said in meanings)
    vectors = "a vector, one number a weight" if not plan.scalars else "one number"
    if plan.scalars > 1:
        vectors = f"{plan.scalars} numbers, clipped together"
    on_lattice = f", drawn with parameter {plan.scale}" if plan.rule.levels else ""
    facts = {
        "relation": plan.relation + relation,
        "sampling": plan.sampling.word + sampling,
        "n": f"{plan.n} {unit}s",
        "record": header.unit or _ENTRY,
        "algorithm": f"{plan.algorithm}: a step releases {vectors}",
        "mechanism": f"{law.name}: {law.exactness}",
        "isolation": header.isolation or "not looked at",
        "clip": f"{plan.clip:g} on what a {unit} adds, in L2 norm",
        "lattice": f"{plan.rule.levels} steps between 0 and the clip" if plan.rule.levels else "none",
        "noise": f"{release.noise:.8g} times the clip on each sum{on_lattice}",
        "steps planned": str(account.steps),
        "steps paid for": f"{account.spent}, {account.block} at a time",
        "steps made": f"{len(content.records)} recorded",
        "stopping": STOPPING[plan.stopping],
        "directions": f"{plan.direction}, {plan.directions_per_step} a step",
        "differences": f"{plan.difference}, smoothing {plan.smoothing:g}",
        "software": f"{header.software or 'not recorded'} when the run was begun",
        "run": f"{header.key}, files {account.digest[:16]}, {account.moves} times moved to another disk",
    }
    pure = [0.0] if law.noise == "laplace" else []
    deltas = dict.fromkeys([account.target_delta, *sorted({*pure, *DELTAS})])
    counts = [counted(account.spent, account.steps, d, plan.stopping) for d in deltas]
    costs = [
        Cost(d, _cost(release, count, d), _cost(release, account.steps, d))
        for d, count in zip(deltas, counts, strict=True)
    ]
    history = (replace(release, steps=counts[0]),) if counts[0] else ()
    return Statement(
        {name: printable(value) for name, value in facts.items()},
        tuple(costs),
        (_ASSUMED[0], _OF_USERS, *_ASSUMED[2:]) if header.unit else _ASSUMED,
        plan.relation,
        history,
        *_attack(release, max(counts)),
    )


def _word(unit: str) -> str:
    """Return "record" or "user". unit: what the run's file says a record is, such as "user: mean of ..."."""
    return "record" if unit == _ENTRY else unit.partition(":")[0]


@lru_cache(256)
def _attack(release: Step, count: int) -> tuple[float, float]:
    """Return `Statement.advantage` and `Statement.true_positive_rate` after `count` releases.

    The bounds come from delta at `_LOOKS` values of epsilon.
    """
    if not count:
        return 0.0, FALSE_POSITIVE_RATE
    found = attack(replace(release, steps=count), FALSE_POSITIVE_RATE, looks=_LOOKS)
    return found.advantage.upper, found.true_positive_rate.upper


@lru_cache(256)
def _cost(release: Step, count: int, delta: float) -> Bracket:
    """Return a bracket of epsilon at `delta` of `count` releases, which can take a second."""
    return epsilon_of_history(replace(release, steps=count) if count else [], delta)
