"""Privacy certificates, confirmed and refused by the checker: python -m benchmarks checked

100 random histories of one to three parts, drawn once and kept in the committed rows, with Gaussian, discrete Gaussian
or Laplace noise and full, Poisson or cyclic Poisson batches. For each history two certificates go to
`dpzero_theory.privacy.checker`. The first is as the accountant writes it, and must be confirmed. In the second one
number is altered so that the history costs more than is stated (less noise, more steps, a larger sample rate, a smaller
delta or epsilon, or another relation), and it must be refused. That it is false is known from the accountant's
certified lower end, which must exceed the stated epsilon. Times are processor seconds."""

import json
import time
from argparse import Namespace
from typing import Any

from benchmarks.kit.asked import asked_again, remake
from benchmarks.kit.experiment import Cell
from benchmarks.kit.rows import read_rows
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.certificate import privacy_certificate
from dpzero_theory.privacy.step import Step, step_of

OF_SETTING = ("setting", "history", "delta", "altered", "by")
_WORDS = ("sampling", "relation", "sample_rate", "mechanism")


def _history(parts: list[dict[str, Any]]) -> list[Step]:
    return [step_of(part["noise_multiplier"], part["steps"], **{word: part[word] for word in _WORDS}) for part in parts]


def alter(certificate: dict[str, Any], altered: str, by: float) -> dict[str, Any]:
    """Return a certificate whose history costs more than it states, or which states less.

    altered: the name of the number that is changed, in every part of the history or in the statement. by: a
    number above 1 that says how much. A stated epsilon is divided by it, a stated delta by its tenth power, and a noise
    multiplier by it; a sample rate is multiplied by it, up to 0.25, and a number of steps by its square, plus 1. A
    relation becomes replace-one, whatever the number is.
    """
    changed: dict[str, Any] = json.loads(json.dumps(certificate))
    statement = changed["statement"]
    if altered in statement:
        statement[altered] /= by if altered == "epsilon" else by**10
    for part in changed["history"]:
        if altered == "relation":
            part["relation"] = "replace-one"
        elif altered == "steps":
            part["steps"] = int(part["steps"] * by * by) + 1
        elif altered == "sample_rate" and part["sampling"] != "full":
            part["sample_rate"] = min(part["sample_rate"] * by, 0.25)
        elif altered == "noise_multiplier":
            part["noise_multiplier"] /= by
    return changed


def _checked(certificate: dict[str, Any]) -> tuple[str, float]:
    """Return what the checker says of a certificate, "confirmed" or why not, and the processor seconds it takes."""
    from dpzero_theory.privacy.checker import Refused, confirm

    begun = time.process_time()
    try:
        confirm(json.dumps(certificate))
        said = "confirmed"
    except Refused as error:
        said = str(error)
    return said, float(f"{time.process_time() - begun:.3g}")


def measure(cell: Cell) -> dict[str, Any]:
    """Write the certificate of the history in `cell`, alter it, let the checker look at both, and return the row: what
    the checker says of each and its processor seconds, and the accountant's lower end for the altered history."""
    certificate = privacy_certificate(_history(json.loads(cell["history"])), cell["delta"])
    false = alter(certificate, cell["altered"], cell["by"])
    statement = false["statement"]
    lower = epsilon_of_history(_history(false["history"]), statement["delta"]).lower
    confirmed, seconds = _checked(certificate)
    refused, refused_s = _checked(false)
    return cell | {
        "epsilon": certificate["statement"]["epsilon"],
        "confirmed": confirmed,
        "confirmed_s": seconds,
        "altered_epsilon": statement["epsilon"],
        "altered_lower": lower,
        "refused": refused,
        "refused_s": refused_s,
    }


def _summary(options: Namespace) -> None:
    rows = read_rows(options.out)
    false = rows[rows["altered_lower"] > rows["altered_epsilon"]]
    print(
        f"{(rows['confirmed'] == 'confirmed').sum()} of {len(rows)} certificates confirmed, in"
        f" {rows['confirmed_s'].median():.2g} s (median, at most {rows['confirmed_s'].max():.2g});"
        f" {(false['refused'] != 'confirmed').sum()} of {len(false)} that are false refused"
    )


FIELDS = ("epsilon", "confirmed", "confirmed_s", "altered_epsilon", "altered_lower", "refused", "refused_s")
# brackets, as wide as that at most
REMAKES = {"checked": remake(OF_SETTING, measure, ("confirmed_s", "refused_s"), 1e-3)}
EXPERIMENT = asked_again("checked", "checked", __doc__, OF_SETTING, measure, FIELDS, _summary)
