"""The privacy statement of a run, made from the content of its file: what is guaranteed, and under which assumptions.

`optim.verify` prints the statement, and model cards contain it.
"""

import hashlib
import textwrap
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any, NamedTuple

from dpzero_theory.check import printable
from dpzero_theory.optim.files.transcript import Content
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certificate import privacy_certificate
from dpzero_theory.privacy.ledger import LedgerError
from dpzero_theory.privacy.risk import advantage, true_positive_rate
from dpzero_theory.privacy.step import Step

_DELTAS = (1e-8, 1e-6, 1e-4)
"""The values of delta for which a statement gives epsilon, in addition to the delta of the run's budget."""
_FALSE_POSITIVE_RATE = 0.01
"""The false positive rate at which a statement bounds the true positive rate of membership inference attacks."""
_LOOKS = 3
"""At how many values of epsilon the function delta(epsilon) is computed to bound an attack's true positive rate."""
_ASSUMED = (
    "the run was made by this software, unchanged, and nothing but the files of the folder (data.key apart), the"
    " weights and what is computed from them was shown: no losses, batches or timings",
    "each record is one entry of the data set, and its loss depends on it alone; whoever has several records is"
    " covered for each of them, not for all together",
    "n, the clip and all other settings do not depend on the records; runs that were made to choose them count too",
    "the operating system's entropy cannot be foreseen",
    "the run's file was not rolled back, and no copy of the folder went on elsewhere",
)
_OF_USERS = (
    "each record is all that one user has in the data set, and its loss depends on it alone; every entry has one owner,"
    " who is named rightly; metrics on other entries of these users are not covered"
)
"""Replaces the second of `_ASSUMED`, on what a record is, if a record is all that one user has in the data set."""


_OF_A_SHAPE = (
    "the directions' shape was measured on public records, of which none is among the n, and not from anything that"
    " depends on these"
)
"""The assumption that is added if directions are longer along some weights than along others (`Plan.shape`)."""


class Statement(NamedTuple):
    """The privacy statement of a run.

    Attributes:
        claim: a sentence that says that what was released is (epsilon, delta)-differentially private, with the numbers
            and the neighbouring relation.
        facts: the run's settings and counts, as strings by name, such as "sampling" and "steps made".
        costs: for each delta, bounds (lower, upper) on the epsilon of all planned steps, whether they were made or not.
            The deltas are that of the budget, which comes first, 1e-8, 1e-6, 1e-4, and 0 if the noise is Laplace.
        attack: three numbers on membership inference against one record: `advantage`, an upper bound on true minus
            false positive rate; and `true_positive_rate`, an upper bound on the true positive rate if the false
            positive rate is at most `false_positive_rate` (0.01).
        assumed: the assumptions of the guarantee, as sentences.
        history: all planned releases, as a tuple of one `Step`, which `dpzero_theory.epsilon` takes.
        unit: what the guarantee protects: "record" for one entry of the data set, or "user".
    """

    claim: str
    facts: dict[str, str]
    costs: dict[float, Bracket]
    attack: dict[str, float]
    assumed: tuple[str, ...]
    history: tuple[Step, ...]
    unit: str

    @property
    def certificate(self) -> dict[str, Any] | None:
        """A privacy certificate, a JSON object with the planned steps and an epsilon that they do not exceed at the
        budget's delta: the upper bound in `costs` plus 0.1%, at least 1e-3. `python -m dpzero_theory.privacy.checker
        FILE` confirms it by a computation of its own.

        None unless batches are full, Poisson or cyclic Poisson; noise is `gaussian`, `discrete-gaussian` or `laplace`,
        with a multiplier in (1/16, 1e6]; 1e-30 < delta <= 1/2; and epsilon <= 1000.
        """
        try:
            return privacy_certificate(self.history, next(iter(self.costs)))
        except ValueError:
            return None

    @property
    def rows(self) -> list[tuple[str, str]]:
        """For each delta in `costs`, a pair of strings: delta, and the bounds of epsilon, such as ("1e-06", "1.99 to
        2"), rounded outwards to six significant digits. If both bounds round to the same number, it is given once."""
        return [(f"{delta:g}", _rounded_outwards(cost)) for delta, cost in self.costs.items()]

    @property
    def attack_text(self) -> str:
        """The bound on an attack's true positive rate as a string, such as "true positive rate at most 0.05 at 1% false
        positives"."""
        highest = _rounded(self.attack["true_positive_rate"])
        return f"true positive rate at most {highest} at {100 * _FALSE_POSITIVE_RATE:g}% false positives"

    def text(self) -> str:
        """Return the whole statement as a string of several lines, wrapped at 100 characters."""
        facts = [
            line
            for name, value in self.facts.items()
            for line in textwrap.wrap(f"{name:22}{value}", 100, subsequent_indent=" " * 22)
        ]
        assumed = (textwrap.wrap(f"- {said}", 100, subsequent_indent="  ") for said in self.assumed)
        return "\n".join(
            [
                *(self.claim, "", *facts, "", "epsilon, from below and from above"),
                f"{'delta':10}epsilon of the whole plan",
                *(f"{delta:10}{cost}" for delta, cost in self.rows),
                *("", f"the best attack on one {self.unit}, which knows all others and sees all that is shown"),
                f"true minus false positive rate at most {_rounded(self.attack['advantage'])}",
                self.attack_text,
                *("", "assumed", *(line for lines in assumed for line in lines)),
            ]
        )


def _rounded_outwards(bracket: Bracket) -> str:
    high = _rounded(bracket.upper)
    return high if f"{bracket.lower:.6g}" == f"{bracket.upper:.6g}" else f"{_rounded(bracket.lower, -1)} to {high}"


def _rounded(value: float, side: int = 1) -> str:
    # Returns `value` with six significant digits, rounded up, or down if `side` is -1, so that a bound stays a bound.
    near = f"{value:.6g}"
    rounding = ROUND_CEILING if side > 0 else ROUND_FLOOR
    outside = Context(prec=6, rounding=rounding).create_decimal_from_float(value)
    return near if side * (float(near) - value) >= 0 else f"{float(outside):.6g}"


def statement(content: Content) -> Statement:
    """Return the privacy statement of a run from its file's content. Raises LedgerError if its noise comes from a
    seed."""
    header, plan, account = content.header, content.header.plan, content.account
    if not header.private:
        raise LedgerError("a run from a seed is not private: whoever has the seed redraws its noise")
    release, law = plan.release, plan.law
    assert law is not None
    record = printable(header.unit or "one entry of the data set")
    unit = record.partition(":")[0] if header.unit else "record"  # header.unit is "" or "user: mean of ..."
    meanings = [release.relation.meaning, plan.sampling.meaning(plan.n)]
    relation, sampling = (f" ({said.replace('record', unit)})" if said else "" for said in meanings)
    numbers = f"{plan.directions_per_step} numbers, clipped together" if plan.directions_per_step > 1 else "one number"
    digest = hashlib.sha256(plan.shape.encode()).hexdigest()[:16]
    shape = f", of the public shape with digest {digest}" if plan.shape else ""
    on_lattice = f", drawn with parameter {plan.scale}" if plan.rule.levels else ""
    facts = {
        "relation": plan.relation + relation,
        "sampling": plan.sampling.word + sampling,
        "n": f"{plan.n} {unit}s",
        "record": record,
        "algorithm": f"{plan.algorithm}: a step releases {numbers}",
        "mechanism": f"{law.name}: {law.exactness}",
        "isolation": header.isolation or "not looked at",
        "clip": f"{plan.clip:g} on what a {unit} adds, in L2 norm",
        "lattice": f"{plan.rule.levels} steps between 0 and the clip" if plan.rule.levels else "none",
        "noise": f"{release.noise:.8g} times the clip on each sum{on_lattice}",
        "steps planned": str(account.steps),
        "steps paid for": f"{account.spent}, {account.block} at a time",
        "steps made": f"{len(content.records)} recorded",
        "directions": f"{plan.direction}, {plan.directions_per_step} a step{shape}",
        "differences": f"{plan.difference}, smoothing {plan.smoothing:g}",
        "software": f"{header.software or 'not recorded'} when the run was begun",
        "run": f"{header.key}, files {account.digest[:16]}, {account.moves} times moved to another disk",
    }
    pure = (0.0,) if law.noise == "laplace" else ()
    costs = {delta: plan.epsilon(delta) for delta in (account.target_delta, *pure, *_DELTAS)}
    pair = f"({_rounded(costs[account.target_delta].upper)}, {account.target_delta:g})"
    whom = f" for each {unit}" if header.unit else ""
    history, rate = replace(release, steps=plan.steps), _FALSE_POSITIVE_RATE
    most = true_positive_rate(history, rate, looks=_LOOKS).upper
    return Statement(
        f"What was released is {pair}-differentially private{whom} under {facts['relation']}.",
        {name: printable(value) for name, value in facts.items()},
        costs,
        {"advantage": advantage(history).upper, "true_positive_rate": most, "false_positive_rate": rate},
        (_ASSUMED[0], _OF_USERS if header.unit else _ASSUMED[1], *_ASSUMED[2:], *([_OF_A_SHAPE] if shape else [])),
        (history,),
        unit,
    )
