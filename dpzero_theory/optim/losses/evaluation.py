"""The losses of some records: a batch is made of them, and each gets one number.

In floating point the bits of a record's loss can depend on the shapes of the batch that it is computed in, which is a
property of the kernels. Where shapes are given, every batch has one of them: it is filled up with copies of a record of
its own, whose losses are left out, and one of another shape is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from dpzero_theory.check import Array
from dpzero_theory.optim.losses.records import Fetch
from dpzero_theory.optim.step.contributions import per_record
from dpzero_theory.privacy.schedule import Indices

Losses = Callable[[nn.Module, Any], object]
"""(module, batch) -> a tensor of shape (batch,): entry i the loss of record i, and of no other record (`isolation`).

The batch comes as it was collated: to bring it to the module's device is the function's business. Where the module is
sharded, each process evaluates its own micro-batches, and the function must make as many forwards for each."""


class Batch(NamedTuple):
    """Records as they were collated: the first `meant` of them are asked for, the others fill up to `rows`."""

    content: Any
    meant: int
    rows: int


class Evaluation:
    """A loss function on batches of a data set.

    shapes: of `shape_of` the batches that may be evaluated, by their rows; without any, batches are as they come.
    """

    def __init__(self, losses: Losses, fetch: Fetch, shapes: Mapping[int, str] | None = None) -> None:
        self._losses, self._fetch, self._shapes = losses, fetch, dict(shapes or {})

    def batch(self, records: Indices) -> Batch:
        """The batch of some records. Raises ValueError where shapes are given and it has another one."""
        count = len(records)
        rows = min((rows for rows in self._shapes if rows >= count), default=count)
        content = self._fetch(np.concatenate([records, np.repeat(records[:1], rows - count)]))
        if self._shapes and shape_of(content) != self._shapes[rows]:
            raise ValueError(
                "batches must have one shape where isolation is 'exact', with records padded and cut to one length;"
                " got another one"
            )
        return Batch(content, count, rows)

    def losses(self, module: nn.Module, batch: Batch) -> Array:
        """One number each for the records that are meant. Raises ValueError."""
        values: Array = on_host([self.where_they_are(module, batch)])[0]
        return values

    def where_they_are(self, module: nn.Module, batch: Batch) -> Tensor:
        """As `losses`, on the device that has them: the host waits for it when it reads them."""
        return per_record(self._losses(module, batch.content), batch.rows)[: batch.meant]


def on_host(losses: Sequence[Tensor]) -> Array:
    """The losses of several evaluations, shape (evaluations, records): a device is waited for once."""
    values: Array = torch.stack(list(losses)).to("cpu").numpy()
    return values


def shape_of(content: Any) -> str:
    """All of a collated batch but what its tensors hold: structure, shapes, types."""
    leaves, structure = _pytree.tree_flatten(content)
    tensors = [f"{tuple(x.shape)} {x.dtype}" if isinstance(x, torch.Tensor) else repr(x) for x in leaves]
    return f"{', '.join(tensors)} in {structure}"
