"""What a run was begun with, and what it released: with the initial weights these numbers rebuild the final ones.

All of it is public. Of the data set the header has its number n of records and a digest under a secret key
(`losses.identity`), and the numbers are private releases. So a run's file can be published in place of the weights.
"""

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from dpzero_theory import check
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.weights.precision import PRECISIONS
from dpzero_theory.privacy.ledger import Account, LedgerError, Rows, rows

RUN = "run.sqlite"
"""The file of a run in its folder."""


class TranscriptError(RuntimeError):
    """Raised where a run belongs to other weights, or cannot do what is asked at this moment."""


@dataclass(frozen=True)
class Header:
    """What a run was begun with.

    plan: the public settings of the run: what it releases, and how releases move the weights.
    key: the public key of the directions, 32 hexadecimal digits.
    fingerprint: the SHA-256 of the initial weights, 64 hexadecimal digits (`Weights.fingerprint`).
    precision: how half-precision weights are rounded when they move, a name in `precision.PRECISIONS`.
    private: whether noise and batches come from the operating system, and not from a seed.
    isolation: how it was made sure that a record's loss depends on no other record (`ISOLATIONS`); empty if not at all.
    layout, losses, records: digests of the parameters, the loss function and the data set, see `losses.identity`.
    software: the versions with which the run was begun.
    unit: what a record is, where it is not one entry of the data set, see `losses.users`.
    """

    plan: Plan
    key: str
    fingerprint: str
    precision: str
    private: bool = True
    isolation: str = ""
    layout: str = ""
    losses: str = ""
    records: str = ""
    software: str = ""
    unit: str = ""

    def to_json(self) -> str:
        return json.dumps({**vars(self), "plan": json.loads(self.plan.to_json())}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the header that `to_json` wrote. Raises ValueError, TypeError or KeyError for anything else."""
        values = check.entries("the header", json.loads(text), {**check.types_of(cls), "plan": dict})
        header = cls(**{**values, "plan": Plan.from_json(json.dumps(values["plan"]))})
        for name, digits in (("key", 32), ("fingerprint", 64), ("records", 64)):
            word = getattr(header, name)
            if not re.fullmatch(f"[0-9a-f]{{{digits}}}", word) and (name, word) != ("records", ""):
                raise ValueError(f"{name} must be {digits} hexadecimal digits")
        check.choice("precision", header.precision, PRECISIONS)
        return header


class Record(NamedTuple):
    """What one step released: its number in the ledger, counted from 0, and the K noisy sums; no sums where a release
    is a vector."""

    release: int
    sums: tuple[float, ...]


class Content(NamedTuple):
    """The content of a run's file. digest: the SHA-256 of all that the run was begun with."""

    header: Header
    records: list[Record]
    digest: str


def layout(plan: Plan) -> struct.Struct:
    """Return how the K sums of a release are kept: little-endian, int64, or float64 for MeZO."""
    return struct.Struct(f"<{plan.scalars}{'q' if plan.rule.levels else 'd'}")


def unpacked(found: list[tuple[int, bytes]], plan: Plan) -> list[Record]:
    """Return the records of a run with this plan. found: their numbers and bytes."""
    kept = layout(plan)
    return [Record(number, kept.unpack(sums)) for number, sums in found]


def parsed(found: Rows, path: Path) -> Content:
    """Return the content of the rows of a run's file. Raises LedgerError for rows that no run has written, or whose
    payments are not for the run's plan. path: the file's, for the message."""
    try:
        header = Header.from_json(found.run)
        records = unpacked(found.records, header.plan)
        if records and records[-1].release >= header.plan.steps:
            raise ValueError(f"release must be below steps = {header.plan.steps}; got {records[-1].release}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError, struct.error) as error:
        said = check.printable(str(error))
        raise LedgerError(f"{path}: not the file of a run ({said:.200}): put it back") from None
    _require_plan(found.account, header, path)
    return Content(header, records, found.digest)


def contents(path: Path) -> tuple[Content, Account | None]:
    """Return the whole content of a run's folder, or of its file alone, and what is paid for; the run may go on.

    The account is None for a run from a seed, which pays for nothing. Raises LedgerError for a damaged file, and
    OSError.
    """
    file = path / RUN if path.is_dir() else path
    found = rows(file)
    return parsed(found, file), found.account


def read(path: Path) -> tuple[Header, list[Record]]:
    """Return the header and the records of a run's folder, or of its file alone. Raises what `contents` raises."""
    found, _ = contents(path)
    return found.header, found.records


def _require_plan(account: Account | None, header: Header, path: Path) -> None:
    if (account is None) == header.private:
        raise LedgerError(f"{path}: a private run must have a budget, and no other one: put the file back")
    if account is None:
        return
    paid, planned = account.settings, header.plan.settings
    if (paid, account.steps, account.unit) != (planned, header.plan.steps, header.unit):
        raise LedgerError(
            f"{path}: what is accounted for ({account.steps} releases of {paid.mechanism}) is not what the plan"
            f" releases ({header.plan.steps} of {planned.mechanism}): what the run costs is not what the file says"
        )
