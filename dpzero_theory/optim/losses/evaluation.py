"""The losses of some records, and the sum over a batch of what its records contribute.

In floating point the bits of a record's loss can depend on the shapes of the batch that it is computed in, since
kernels round by shape. Where a shape is prescribed, every batch has it: it is filled up with copies of its first
record, whose losses are left out, and a batch of another shape is refused.
"""

import math
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from dpzero_theory.check import Array
from dpzero_theory.optim.losses.records import Fetch
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.algorithm import Sums
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.schedule import Indices

Losses = Callable[[nn.Module, Any], object]
"""A function (module, batch) -> a tensor of shape (batch,), whose entry i is the loss of record i alone.

`losses.isolation` says how a run tests that no other record changes this loss. The batch comes as it was collated; the
function must bring it to the module's device. Where the module is sharded, each process evaluates its own
micro-batches, and the function must make the same number of forwards for each."""


_STEP: ContextVar[int] = ContextVar("step", default=0)


def step_now() -> int:
    """Return the number of the step, from 0, for which losses are being evaluated; 0 outside of a step.

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

    Args:
        losses: gives one loss for each record of a batch.
        fetch: makes the batch of some records, from their numbers.
        shape: the prescribed shape; None if batches may have any.
    """

    def __init__(self, losses: Losses, fetch: Fetch, shape: Shape | None = None) -> None:
        self._losses, self._fetch, self.shape = losses, fetch, shape

    def batch(self, records: Indices, moment: bytes = b"") -> Batch:
        """Read and collate records, and fill the batch up where a shape is prescribed.

        Args:
            records: the numbers of the records.
            moment: see `records.Fetch`.

        Raises:
            ValueError: a batch of another shape than the prescribed one.
        """
        count = len(records)
        if self.shape is None:
            return Batch(self._fetch(records, moment), count, count)
        content = self._fetch(np.concatenate([records, np.repeat(records[:1], self.shape.rows - count)]), moment)
        if shape_of(content) != self.shape.text:
            raise ValueError(
                "batches must have one shape where isolation is 'exact', with records padded and cut to one length;"
                " got another one"
            )
        return Batch(content, count, self.shape.rows)

    def losses(self, module: nn.Module, copies: int = 1, *, batch: Batch) -> Tensor:
        """Return the losses of the records of a batch: float64, of shape (meant,), on their device.

        With several `copies` the batch is repeated so often, and the result has the losses of one copy after the other;
        no record may then fill the batch up.

        Raises ValueError where the loss function does not return one number for each record.
        """
        if copies > 1:
            return per_record(self._losses(module, repeated(batch, copies)), copies * batch.rows)
        return per_record(self._losses(module, batch.content), batch.rows)[: batch.meant]

    def differentiable(self, module: nn.Module, batch: Batch) -> bool:
        """Whether the losses of a batch, computed with `module`, have derivatives, as 0-1 losses have not."""
        with torch.enable_grad():
            losses = self._losses(module, batch.content)
        return isinstance(losses, Tensor) and losses.requires_grad


def repeated(batch: Batch, copies: int) -> Any:
    """Return what `batch` holds, with its records repeated `copies` times: tensors along their first axis, where that
    has as many entries as the batch has records. What is not a tensor stays as it is."""

    def of(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim and len(value) == batch.rows:
            return value.repeat(copies, *[1] * (value.ndim - 1))
        if isinstance(value, UserDict):  # such as the batches of transformers' tokenizers
            return type(value)({name: of(part) for name, part in value.items()})
        return value

    return _pytree.tree_map(of, batch.content)


def per_record(losses: object, batch: int) -> Tensor:
    """Return a copy of the losses of a batch in float64, of shape (batch,), on their device.

    Raises:
        ValueError: `losses` is no float32 or float64 tensor of shape (batch,). A loss that is reduced over records
            could only be clipped for the batch, which bounds no record, and half precision cannot show a difference.
    """
    if not isinstance(losses, Tensor) or losses.shape != (batch,):
        found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
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
    tensors = [f"{tuple(x.shape)} {x.dtype}" if isinstance(x, Tensor) else repr(x) for x in leaves]
    return f"{', '.join(tensors)} in {structure}"


class BatchSum:
    """Evaluates the records of a batch at the points of the plan's difference rule, and sums their clipped differences.

    Args:
        plan: says which points, and how differences are clipped.
        weights: those of the module that is evaluated.
        evaluation: reads records and gives their losses.
        ranks: the processes, among which micro-batches are dealt out.
        micro_batch: how many records are evaluated at a time.
        points_at_once: how many of the points in one pass.
        secret: bytes from which a data set draws its records anew in each step (`records.DrawnData`); else b"".
    """

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        evaluation: Evaluation,
        ranks: Ranks,
        micro_batch: int,
        points_at_once: int,
        secret: bytes = b"",
    ) -> None:
        self._plan, self._weights, self._evaluation, self._ranks = plan, weights, evaluation, ranks
        self._micro_batch, self._points_at_once, self._secret = micro_batch, points_at_once, secret

    def total(self, release: int, batch: Indices) -> Sums:
        """Return the sum of what the records of a batch contribute to a release, shape (K,), on every rank.

        Noise is not added here. A record whose loss or reading raises counts as 0: where something raises, the records
        are evaluated one by one, so that nobody sees the error and no other record is left out.

        Args:
            release: the release's number, which determines its K directions.
            batch: the numbers of the records.
        """
        parts = [batch[first : first + self._micro_batch] for first in range(0, len(batch), self._micro_batch)]
        plan, rule, weights = self._plan, self._plan.rule, self._weights
        norm = 0 if plan.scalars else weights.squared_norm(release)
        slots: Sums = np.zeros((len(parts), plan.directions_per_step), rule.dtype)
        # Where a forward needs all ranks, those without a micro-batch left evaluate one again and leave out its result.
        idle = -len(parts) % self._ranks.count if weights.collective else 0
        for index in range(self._ranks.rank, len(parts) + idle, self._ranks.count):
            records = parts[index % len(parts)]
            try:
                differences = self.differences(release, records, self._points_at_once)
            except Exception:
                if weights.collective:  # a rank that ends a forward early would leave the others waiting
                    raise
                differences = self._one_by_one(release, records)
            if index < len(parts):
                slots[index] = rule.contributions(differences, plan.clip, weights.d, norm)
        self._ranks.every(weights.untrained.require_unwritten)
        slots = self._ranks.add(slots)
        if rule.levels:
            total: Sums = slots.sum(axis=0)
            return total
        return np.array([math.fsum(column) for column in slots.T])

    def differences(self, release: int, records: Indices, points_at_once: int = 1) -> Array:
        """Return how fast the losses of some records change along the K directions of a release, shape (records, K).

        They are found by the plan's difference rule, and not clipped. Raises what the losses, or the reading, raise.
        """
        rule, smoothing, count = self._plan.difference_rule, self._plan.smoothing, self._plan.directions_per_step
        points = rule.at(range(release * count, (release + 1) * count), smoothing)
        moment = self._secret + release.to_bytes(8, "little") if self._secret else b""
        with in_step(release):
            batch = self._evaluation.batch(records, moment)
            ask = partial(self._evaluation.losses, batch=batch)
            return rule.combine(on_host(self._weights.evaluated(points, ask, points_at_once, batch.rows)), smoothing)

    def _one_by_one(self, release: int, records: Indices) -> Array:
        """Return the differences of some records, shape (records, K); 0 for a record whose loss or reading raises."""
        found = np.zeros((len(records), self._plan.directions_per_step))
        for row, record in zip(found, records, strict=True):
            with suppress(Exception):
                row[:] = self.differences(release, np.array([record]))[0]
        return found
