"""The content of a run's file (its settings and what it released) and the checkpoints of a run.

With the initial weights, the released numbers rebuild the final weights. Nothing here is secret: of the private records
the file has only their number, a digest under a secret key (`losses.identity`), and the noisy releases.
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
"""The name of a run's file in its folder."""
OF_TRAINER = "_dpzero"
"""The name of a run's folder in a Trainer's output folder. Names that begin with `_` are not pushed to the hub."""
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError, struct.error)
"""The exceptions that reading a file can raise if the file was not written by a run."""
_KEY, _POSITION, _WEIGHTS = "run.key", "run.position", "weights."


class TranscriptError(RuntimeError):
    """Raised if recorded releases cannot be applied to a module, because its weights are neither the run's initial
    weights nor those of a checkpoint, or because the run's file ends before the checkpoint."""


@dataclass(frozen=True)
class Header:
    """The settings with which a run was begun, as its file holds them.

    Attributes:
        plan: the public settings: what a step releases, and how a release changes the weights.
        key: the public key from which the random directions follow, 32 hexadecimal digits.
        fingerprint: the SHA-256 of the initial weights, 64 hexadecimal digits (`Weights.fingerprint`).
        private: whether noise and batches come from the operating system's random generator. If False, they follow from
            a seed.
        isolation: how the loss of a record was kept independent of other records: one of `isolation.ISOLATIONS`, or ""
            if this was not tested.
        losses: the name of the loss function and a digest of its source code (`identity.of_losses`).
        records: the digest of the data set under the run's secret key, 64 hexadecimal digits (`identity.of_records`).
        software: the versions of this package, torch, numpy, scipy and Python with which the run was begun.
        unit: what a record is: "" for one entry of the data set, or a string that begins with "user: "
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
        """A new object that computes the run's random directions u_0, u_1, ... from its public key and its plan."""
        return Directions(bytes.fromhex(self.key), self.plan.direction, self.plan.shape)

    def weights(self, module: nn.Module) -> Weights:
        """Return the trainable weights of a module as an object that shifts and moves them along the run's directions.
        Raises ValueError for weights that are not supported, such as quantised ones or those on the meta device."""
        return Weights(module, self.directions)

    def to_json(self) -> str:
        """Return the header as a JSON string."""
        return json.dumps({**vars(self), "plan": self.plan.settings}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the header from a string made by `to_json`. Raises ValueError, TypeError or KeyError for other
        strings."""
        values = check.entries("the header", json.loads(text), {**check.types_of(cls), "plan": dict})
        header = cls(**{**values, "plan": Plan.from_settings(values["plan"])})
        for name, digits in (("key", 32), ("fingerprint", 64), ("records", 64)):
            if not re.fullmatch(f"[0-9a-f]{{{digits}}}", getattr(header, name)):
                raise ValueError(f"{name} must be {digits} hexadecimal digits")
        return header


class Record(NamedTuple):
    """What one step released. In other modules "record" means an entry of the data set.

    Attributes:
        release: the number of the step, from 0.
        sums: one number for each of the step's K random directions: the sum over the batch of each record's loss
            difference along the direction, plus noise. A record's K differences are clipped together in L2 norm. Sums
            are integers in units of clip/levels, where `levels` is an attribute of the algorithm (2^30 for dpzero). For
            mezo they are floats without clipping and noise.
    """

    release: int
    sums: tuple[float, ...]


class Content(NamedTuple):
    """The content of a run's file.

    Attributes:
        header: the settings of the run.
        records: what each step released, in order.
        account: the budget, and the number of releases that count towards it. `account.step` is one release as a `Step`
            for the privacy accountant, or None for a run that is not private, which has no budget.
    """

    header: Header
    records: list[Record]
    account: Account

    @classmethod
    def of(cls, account: Account, path: Path) -> Self:
        """Return the content of a run's file from the `Account` that `Ledger.read` has returned for it.

        `path` is used in messages only. Raises LedgerError if the file was not written by a run, or if the account
        counts other releases, or another number of them, than the run's plan has.
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
        """Move the trainable weights of a module as the run did, and return them.

        Args:
            module: a module with the initial weights of the run. It is changed.
            steps: steps with a number below this one, counted from 0, are replayed; None for all that were recorded.

        Raises:
            TranscriptError: the module does not have the initial weights of the run.
            ValueError: the module has weights that are not supported, such as quantised ones.
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
    """Return the content of a run's file. A process may be writing the file meanwhile.

    Args:
        path: the run's folder, the file in it, or the output folder of a Trainer.

    Raises:
        LedgerError: the file is damaged, or was not written by a run.
        OSError: there is no file.
    """
    place = Path(path)
    inside = place / OF_TRAINER / RUN
    file = inside if inside.is_file() and not (place / RUN).exists() else place / RUN if place.is_dir() else place
    return Content.of(Ledger.read(file), file)


class Checkpoint(NamedTuple):
    """A checkpoint of a run, which holds released information only; or a module's trainable parameters alone.

    Attributes:
        weights: the trainable parameters, by name.
        key: the run's public key, 32 hexadecimal digits; "" for parameters alone.
        position: how many steps have changed the weights; None for parameters alone.
    """

    weights: Mapping[str, Tensor]
    key: str = ""
    position: int | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return a run's checkpoint as a dictionary of tensors, which `torch.save` and safetensors can write.

        The names of weights get the prefix "weights.". "run.key" holds the 16 bytes of the key, and "run.position" the
        number of steps that have changed the weights (`position`, which must not be None).
        """
        return {
            _KEY: torch.tensor(list(bytes.fromhex(self.key)), dtype=torch.uint8),
            _POSITION: torch.tensor(self.position),
            **{_WEIGHTS + name: value for name, value in self.weights.items()},
        }

    @classmethod
    def of(cls, tensors: Mapping[str, Any]) -> Self:
        """Return the checkpoint from a dictionary that `tensors` has returned. Raises ValueError for any other
        dictionary."""
        if not {_KEY, _POSITION} <= set(tensors) or not all(isinstance(value, Tensor) for value in tensors.values()):
            raise ValueError(f"state must be of a run's state_dict; got the names {sorted(map(str, tensors))[:4]}")
        weights = {name.removeprefix(_WEIGHTS): value for name, value in tensors.items() if name.startswith(_WEIGHTS)}
        return cls(weights, bytes(tensors[_KEY].tolist()).hex(), int(tensors[_POSITION]))
