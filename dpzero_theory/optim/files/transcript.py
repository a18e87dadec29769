"""What a run was begun with, what it released, and its checkpoints.

With the initial weights the released numbers rebuild the final ones. All of it is public: of the data set the header
has the number of records and a digest under a secret key (`losses.identity`), and the numbers are private releases. So
a run's file can be published in place of the weights. Files are read here, and `Content.replayed` moves a module.
"""

import json
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from dpzero_theory import check
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.ledger import Account, Ledger, LedgerError

RUN = "run.sqlite"
"""The file of a run in its folder."""
OF_TRAINER = "_dpzero"
"""The folder of a run in a Trainer's output folder; pushes to the hub leave out names that begin with `_`."""
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError, struct.error)
"""The exceptions that reading the content of a file can raise if the file was not written by a run."""
_KEY, _POSITION, _WEIGHTS = "run.key", "run.position", "weights."


class TranscriptError(RuntimeError):
    """Raised if a run's recorded releases cannot be applied to a module's weights, since they do not follow from these.

    The weights are neither the run's initial ones nor a checkpoint's, or the run's file ends before the checkpoint.
    """


@dataclass(frozen=True)
class Header:
    """What a run was begun with.

    Attributes:
        plan: the public settings of the run: what it releases, and how releases move the weights.
        key: the public key of the directions, 32 hexadecimal digits.
        fingerprint: the SHA-256 of the initial weights, 64 hexadecimal digits (`Weights.fingerprint`).
        private: whether noise and batches come from the operating system; if False, they come from a seed.
        isolation: how it was made sure that a record's loss depends on no other record (`isolation.ISOLATIONS`); empty
            if it was not.
        losses: the name of the loss function and a digest of its source (`identity.of_losses`).
        records: the digest of the data set under the run's secret key, 64 hexadecimal digits (`identity.of_records`).
        software: the versions of this package, torch, numpy, scipy and Python with which the run was begun.
        unit: what one record of the data set is: empty for one entry, else a text that begins with "user: "
            (`users.ByUser.unit`).
    """

    plan: Plan
    key: str
    fingerprint: str
    private: bool = True
    isolation: str = ""
    losses: str = ""
    records: str = ""
    software: str = ""
    unit: str = ""

    @property
    def directions(self) -> Directions:
        """A new object that computes the random directions u_0, u_1, ... of the run from its public key and plan."""
        return Directions(bytes.fromhex(self.key), self.plan.direction, self.plan.shape)

    def weights(self, module: nn.Module) -> Weights:
        """Return the trainable weights of a module, to be moved along the directions of the run. Raises ValueError for
        a module whose weights are not supported, such as quantised ones or those on the meta device (`Weights`)."""
        return Weights(module, self.directions)

    def to_json(self) -> str:
        """Return the header as JSON."""
        return json.dumps({**vars(self), "plan": self.plan.settings}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the header that `to_json` wrote. Raises ValueError, TypeError or KeyError for anything else."""
        values = check.entries("the header", json.loads(text), {**check.types_of(cls), "plan": dict})
        header = cls(**{**values, "plan": Plan.from_settings(values["plan"])})
        for name, digits in (("key", 32), ("fingerprint", 64), ("records", 64)):
            if not re.fullmatch(f"[0-9a-f]{{{digits}}}", getattr(header, name)):
                raise ValueError(f"{name} must be {digits} hexadecimal digits")
        return header


class Record(NamedTuple):
    """What one step released, as the run's file records it; elsewhere "record" means an entry of the data set.

    Attributes:
        release: the release's number, from 0.
        sums: one number for each of the step's K directions: the sum over the batch of how fast each record's loss
            changes along the direction, plus noise; a record's K numbers are clipped together, in L2 norm. The sum is
            an integer, in units of clip/levels with the algorithm's `levels`, 2^30 for dpzero. For mezo it is a float,
            without clip and noise.
    """

    release: int
    sums: tuple[float, ...]


class Content(NamedTuple):
    """The content of a run's file.

    Attributes:
        header: what the run was begun with.
        records: what each step released, in order.
        account: the file as `privacy.ledger` reads it: the budget, and how many releases count towards it. Its
            attribute `step` is one release as the accountant counts it (a `Step`), or None for a run that is not
            private, which has no budget.
    """

    header: Header
    records: list[Record]
    account: Account

    @classmethod
    def of(cls, account: Account, path: Path) -> Self:
        """Return the content of a run's file from `account`, the file as `Ledger` has read it.

        `path` is the file's, for messages alone. Raises LedgerError if no run has written the file, or its account is
        of other releases than the run's plan has.
        """
        try:
            header = Header.from_json(account.run)
            plan = header.plan
            records = [Record(number, plan.row.unpack(sums)) for number, sums in account.records]
            if records and records[-1].release >= plan.steps:
                raise ValueError(f"release must be below steps = {plan.steps}; got {records[-1].release}")
            if header.private and (account.step, account.steps) != (plan.release, plan.steps):
                paid = f"{account.steps} releases of {account.step.mechanism}" if account.step else "nothing"
                raise ValueError(
                    f"what is accounted for ({paid}) is not what the plan releases ({plan.steps} of"
                    f" {plan.release.mechanism})"
                )
            if not header.private and account.step is not None:
                raise ValueError("a run from a seed must have no budget")
        except _MALFORMED as error:
            said = check.printable(str(error))
            raise LedgerError(f"{path}: not the file of a run ({said:.200}): put it back") from None
        return cls(header, records, account)

    def replayed(self, module: nn.Module, steps: int | None = None) -> Weights:
        """Move the weights of a module as the run did, and return them.

        Args:
            module: a module with the weights that the run began with.
            steps: releases with a number below this one are replayed; None replays all that were recorded.

        Raises:
            TranscriptError: the module has other weights than the run began with.
            ValueError: the module has weights that are not supported, such as quantised ones (`Weights`).
        """
        header, weights = self.header, self.header.weights(module)
        found = weights.fingerprint()
        if found != header.fingerprint:
            raise TranscriptError(f"weights must have fingerprint {header.fingerprint[:16]}; got {found[:16]}")
        for record in self.records:
            if steps is None or record.release < steps:
                weights.move_(header.plan.moves(*record))
        return weights


def read(path: str | os.PathLike[str]) -> Content:
    """Return the whole content of a run's file; the run may go on meanwhile.

    Args:
        path: the run's folder, its file, or a Trainer's output folder.

    Raises:
        LedgerError: the file is damaged, or no run has written it.
        OSError: there is no file.
    """
    place = Path(path)
    inside = place / OF_TRAINER / RUN
    file = inside if inside.is_file() and not (place / RUN).exists() else place / RUN if place.is_dir() else place
    return Content.of(Ledger.read(file), file)


class Checkpoint(NamedTuple):
    """A checkpoint of a run, which holds released information only; or a module's trainable parameters alone.

    Attributes:
        weights: the trainable weights, by name.
        key: the run's public key, in hexadecimal digits; "" for parameters alone.
        position: how many releases have moved the weights; None for parameters alone.
    """

    weights: Mapping[str, Tensor]
    key: str = ""
    position: int | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return a run's checkpoint as tensors by name, which `torch.save` and safetensors keep.

        The weights have "weights." before their names; "run.key" has the 16 bytes of the key, and "run.position" the
        position. Call it only for a checkpoint with a position: otherwise torch raises.
        """
        return {
            _KEY: torch.tensor(list(bytes.fromhex(self.key)), dtype=torch.uint8),
            _POSITION: torch.tensor(self.position),
            **{_WEIGHTS + name: value for name, value in self.weights.items()},
        }

    @classmethod
    def of(cls, tensors: Mapping[str, Any]) -> Self:
        """Return the checkpoint of which the method `tensors` has returned these tensors by name. Raises ValueError for
        other names or values."""
        if not {_KEY, _POSITION} <= set(tensors) or not all(isinstance(value, Tensor) for value in tensors.values()):
            raise ValueError(f"state must be of a run's state_dict; got the names {sorted(map(str, tensors))[:4]}")
        weights = {name.removeprefix(_WEIGHTS): value for name, value in tensors.items() if name.startswith(_WEIGHTS)}
        return cls(weights, bytes(tensors[_KEY].tolist()).hex(), int(tensors[_POSITION]))
