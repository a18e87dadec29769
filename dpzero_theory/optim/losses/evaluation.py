"""The losses of some records: they are collated to a batch, and each gets one number.

In floating point the bits of a record's loss can depend on the shapes of the batch that it is computed in, since
kernels round by shape. Where a shape is prescribed, every batch has it: it is filled up with copies of its first
record, whose losses are left out, and a batch of another shape is refused.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from dpzero_theory.check import Array
from dpzero_theory.optim.losses.records import Fetch
from dpzero_theory.privacy.schedule import Indices

Losses = Callable[[nn.Module, Any], object]
"""A function (module, batch) -> a tensor of shape (batch,), whose entry i is the loss of record i alone.

`losses.isolation` says how a run tests that no other record changes this loss. The batch comes as it was collated; the
function must bring it to the module's device. Where the module is sharded, each process evaluates its own
micro-batches, and the function must make the same number of forwards for each."""


_STEP: ContextVar[int] = ContextVar("step", default=0)


def step_now() -> int:
    """Returns the number of the step, from 0, for which losses are being evaluated; 0 outside of a step.

    Losses and collate functions that draw at random can seed their draws with it and with what is the record's own.
    They then draw alike at all points of a step, as they must, and differently in another step.
    """
    return _STEP.get()


@contextmanager
def in_step(step: int) -> Iterator[None]:
    """A context manager in whose block `step_now` returns `step`."""
    token = _STEP.set(step)
    try:
        yield
    finally:
        _STEP.reset(token)


class Batch(NamedTuple):
    """A collated batch, `content`, of `rows` records. Losses are wanted of the first `meant` of them; the others are
    copies that fill the batch up to a prescribed shape."""

    content: Any
    meant: int
    rows: int


class Shape(NamedTuple):
    """The shape that all batches have: their number of rows, and the text that `shape_of` returns for them."""

    rows: int
    text: str


class Evaluation:
    """Evaluates a loss function on batches of a data set.

    losses: gives one loss for each record of a batch. fetch: makes the batch of some records, from their numbers.
    shape: the prescribed shape; None if batches may have any.
    """

    def __init__(self, losses: Losses, fetch: Fetch, shape: Shape | None = None) -> None:
        self._losses, self._fetch, self._shape = losses, fetch, shape

    def batch(self, records: Indices, moment: bytes = b"") -> Batch:
        """Read and collate the records with these numbers, and return their batch.

        Where a shape is prescribed, the batch is filled up to its number of rows with copies of the first record.
        moment: see `records.Fetch`. Raises ValueError if its shape is not the prescribed one.
        """
        count = len(records)
        rows = count if self._shape is None else self._shape.rows
        content = self._fetch(np.concatenate([records, np.repeat(records[:1], rows - count)]), moment)
        if self._shape is not None and shape_of(content) != self._shape.text:
            raise ValueError(
                "batches must have one shape where isolation is 'exact', with records padded and cut to one length;"
                " got another one"
            )
        return Batch(content, count, rows)

    def losses(self, module: nn.Module, batch: Batch) -> Array:
        """Return the losses of the records of a batch, computed with `module`, in host memory: float64 of shape
        (meant,), without those of the records that fill the batch up.

        Raises ValueError where the loss function does not return one number for each record.
        """
        values: Array = on_host([self.where_they_are(module, batch)])[0]
        return values

    def where_they_are(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the losses of the records of a batch, computed with `module`, as a tensor of shape (meant,) where the
        loss function left them, such as on a GPU.

        The host then need not wait for the device. Raises ValueError as `losses` does.
        """
        return per_record(self._losses(module, batch.content), batch.rows)[: batch.meant]

    def differentiable(self, module: nn.Module, batch: Batch) -> bool:
        """Whether the losses of a batch, computed with `module`, have derivatives, as 0-1 losses have not."""
        with torch.enable_grad():
            losses = self._losses(module, batch.content)
        return isinstance(losses, Tensor) and losses.requires_grad


def per_record(losses: object, batch: int) -> torch.Tensor:
    """Return a copy of the losses of a batch in float64, of shape (batch,), on their device.

    Args:
        losses: a float32 or float64 tensor of shape (batch,).
        batch: how many records the batch has.

    Raises:
        ValueError: anything else. A loss that is reduced over records could only be clipped for the batch, which bounds
            no record, and half precision cannot show a difference.
    """
    if not isinstance(losses, torch.Tensor) or losses.shape != (batch,):
        found = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise ValueError(f"losses must be a tensor of shape (batch,) = ({batch},), one loss per record; got {found}")
    if losses.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"losses must be float32 or float64, also of a module in half precision; got {losses.dtype}")
    with torch.no_grad():  # `detach` would also drop the losses' forward derivatives
        return losses.to(torch.float64, copy=True)


def on_host(losses: Sequence[Tensor]) -> Array:
    """Copy the losses of several evaluations, each of shape (records,), to host memory, and wait for the device once.
    Returns an array of shape (evaluations, records)."""
    values: Array = torch.stack(list(losses)).to("cpu").numpy()
    return values


def shape_of(content: Any) -> str:
    """Return a text that describes the collated batch `content` but for the numbers in its tensors: its structure,
    their shapes and types, and what is no tensor."""
    leaves, structure = _pytree.tree_flatten(content)
    tensors = [f"{tuple(x.shape)} {x.dtype}" if isinstance(x, torch.Tensor) else repr(x) for x in leaves]
    return f"{', '.join(tensors)} in {structure}"
