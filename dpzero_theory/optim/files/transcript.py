"""The released numbers of a run on disk. With the initial weights they rebuild the final ones, bit for bit (`replay`).

A file is one line of JSON (the `Header`) and then records of a fixed size, little-endian, each of

    release number (4 bytes), K released numbers (8 bytes each: int64, or float64 for MeZO), check (8 bytes)

where the check is the first 8 bytes of SHA-256(check of the record before, this record); in place of a check before the
first record stands the SHA-256 of the header line. With K = 1 that is 20 bytes a step. Everything in the file is
public. Of the data set the header has its number n of records, which is public, and a digest under a secret key
(`losses.identity`), and the numbers are private releases. So the file can be published instead of the weights.

`append` returns when the record is written, and on request when it is on disk. A crash can leave the last record torn,
that is, shorter than a whole record; the next one is written over it. Any other damage is refused. (The checks find
accidents. They are no signature.)
"""

import hashlib
import json
import os
import re
import struct
from bisect import bisect_left
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from dpzero_theory import check
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.contributions import Sums
from dpzero_theory.optim.weights.precision import PRECISIONS
from dpzero_theory.privacy.journal import Journal, content

_TRANSCRIPT_FORMAT = "dpzero-transcript-3"
_CHECK = 8
"""The bytes of a record's check."""


class TranscriptError(RuntimeError):
    """Raised where a transcript is damaged or belongs to other weights, and where a run cannot do what is asked at this
    moment, as in the middle of a step."""


class DamagedRecordError(TranscriptError):
    """A record of the transcript at `path` does not match its check.

    whole: how many records before it do match theirs. size: the byte of the file at which the last of these ends.
    """

    def __init__(self, path: Path, whole: int, size: int) -> None:
        super().__init__(f"{path}: record {whole} does not match its check: put the file back")
        self.whole, self.size = whole, size


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

    @property
    def digest(self) -> str:
        """The SHA-256 of the header line, by which a ledger names its run."""
        return hashlib.sha256(self.line()).hexdigest()

    def line(self) -> bytes:
        known = {name: value for name, value in asdict(self).items() if value or name != "unit"}
        return (json.dumps({"format": _TRANSCRIPT_FORMAT, **known}, allow_nan=False) + "\n").encode()

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Return the header that is written in a line of JSON, as the method `line` writes it, without the line's end.

        Raises ValueError, TypeError or KeyError for anything else.
        """
        values = json.loads(line)
        if json.dumps(values, allow_nan=False).encode() != line:
            raise ValueError("the line must be as this software writes it: no name twice, no other spaces")
        later = ("private", "isolation", "layout", "losses", "records", "software", "unit")
        check.entries("the header", values, {"format": str, **check.types_of(cls), "plan": dict}, later)
        check.choice("format", values.pop("format"), (_TRANSCRIPT_FORMAT,))
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
    """The content of a transcript. checks: the SHA-256 of the header line, then the check of each record. size: the
    byte of the file at which the next record is written."""

    header: Header
    records: list[Record]
    checks: list[bytes]
    size: int

    @property
    def digest(self) -> str:
        """The SHA-256 of the header line as it stands in the file, which `Header.digest` was when it was written."""
        return self.checks[0].hex()

    def state_before(self, release: int) -> str:
        """Return what `Transcript.state` was when all releases with numbers below `release` had been made and no
        other."""
        count = bisect_left(self.records, release, key=lambda record: record.release)
        return _state(count, self.checks[count])


class Transcript:
    """A transcript open for appending, by one process; a context manager. `create` starts one, `open` resumes one."""

    def __init__(self, journal: Journal, header: Header, count: int, check: bytes) -> None:
        self.path, self.header = journal.path, header
        self._journal, self._count, self._check = journal, count, check

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: Header) -> Self:
        """Start a transcript at `path` with this header, and return it open. Raises FileExistsError if it is there."""
        journal, line = Journal.create(path, TranscriptError), header.line()
        journal.append(line)
        return cls(journal, header, 0, hashlib.sha256(line).digest())

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Resume the transcript at `path`, every check verified; nothing is written.

        Raises TranscriptError for a damaged file or one that another process has open, and OSError.
        """
        journal = Journal.open(path, TranscriptError)
        try:
            found = _parse(journal.path, journal.content)
            journal.keep(found.size)  # the next record is written over a torn one
            return cls(journal, found.header, len(found.records), found.checks[-1])
        except BaseException:
            journal.close()
            raise

    @property
    def state(self) -> str:
        """The number of records and the last record's check, as the text COUNT:CHECK, which a ledger keeps beside each
        payment."""
        return _state(self._count, self._check)

    def require_writable(self) -> None:
        """Raise TranscriptError if nothing can be written.

        That is so after `close`, a fork, or an interrupted write, and where something else moved or changed the file.
        """
        self._journal.require_writable()

    def append(self, release: int, sums: Sums, *, sync: bool = True) -> None:
        """Append a record. It returns when the record is on disk; without `sync`, when the record is written.

        release: the release's number. sums: its K released numbers, or none where a release is a vector.
        """
        body = _layout(self.header.plan).pack(release, *sums.tolist())
        with self._journal.mutex:
            check = _next_check(self._check, body)

            def written() -> None:
                self._count, self._check = self._count + 1, check

            self._journal.append(body + check, written, sync=sync)

    def sync(self) -> None:
        """Wait until all records that were appended are on disk."""
        self._journal.sync()

    def records(self) -> list[Record]:
        """Return all records that were appended, read from the file."""
        return read(self.path)[1]

    def close(self) -> None:
        """Close the file. Safe to repeat."""
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: str | os.PathLike[str]) -> tuple[Header, list[Record]]:
    """Return the header and the whole records of the transcript at `path`, which another process may be writing.

    Raises TranscriptError for a damaged file, and OSError.
    """
    found = contents(path)
    return found.header, found.records


def contents(path: str | os.PathLike[str]) -> Content:
    """Return the whole content of the transcript at `path`, with its checks; another process may be writing it.

    Raises TranscriptError for a damaged file, and OSError.
    """
    return _parse(Path(path), content(path))


def _layout(plan: Plan) -> struct.Struct:
    return struct.Struct(f"<I{plan.scalars}{'q' if plan.rule.lattice else 'd'}")


def _next_check(check: bytes, body: bytes) -> bytes:
    return hashlib.sha256(check + body).digest()[:_CHECK]


def _state(count: int, check: bytes) -> str:
    return f"{count}:{check[:_CHECK].hex()}"


def seen(state: str) -> int:
    """Return the number of records in a text of `Transcript.state`, COUNT:CHECK; 0 for any other text."""
    found = re.match(r"(\d{1,18}):", state, re.ASCII)
    return int(found[1]) if found else 0


def _parse(path: Path, text: bytes) -> Content:
    line, end, _ = text.partition(b"\n")
    try:
        header = Header.parse(line)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError) as error:
        said = check.printable(str(error))
        raise TranscriptError(f"{path}: no header of a transcript ({said:.200}): put the file back") from None
    layout, start = _layout(header.plan), len(line) + len(end)
    checks, size = [hashlib.sha256(text[:start]).digest()], layout.size + _CHECK
    records: list[Record] = []
    for offset in range(start, len(text) - size + 1, size):
        body = text[offset : offset + layout.size]
        checks.append(_next_check(checks[-1], body))
        release, *sums = layout.unpack(body)
        after = records[-1].release if records else -1
        if checks[-1] != text[offset + layout.size : offset + size] or not after < release < header.plan.steps:
            raise DamagedRecordError(path, len(records), offset)
        records.append(Record(release, tuple(sums)))
    return Content(header, records, checks, start + len(records) * size)
