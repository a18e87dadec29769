"""The losses of some records, and the sum over a batch of what its records contribute.

A record's differences are how fast its loss changes along each of a step's K random directions, from its losses at
some points: the weights, shifted along a direction. Data sets are read, weights are not written, and nothing of a
record is kept: `BatchSum` hands out a sum of clipped differences. It also sets the number that `step_now` returns.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate

from dpzero_theory.check import Array
from dpzero_theory.difference import Point
from dpzero_theory.optim.engines.engine import Engine, trained
from dpzero_theory.optim.losses.records import Collate, Data, read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.algorithm import Sums
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.optim.weights.recorded import Recorded, each_tensor
from dpzero_theory.privacy.schedule import Indices

Losses = Callable[[nn.Module, Any], object]
"""A function (module, batch) -> a tensor of shape (batch,), whose entry i is the loss of record i alone.

`losses.isolation` says how a run tests that no other record changes this loss. The batch comes as it was collated; the
function must bring it to the module's device. Where the module is sharded, each process evaluates its own
micro-batches, and the function must make the same number of forwards for each."""

_STEP: ContextVar[int] = ContextVar("step", default=0)
_ASKED = [0]
"""How often `step_now` was called. Losses that call it may draw numbers by the step, and are not recorded as CUDA
graphs."""
_FEWEST = 8
"""A batch whose evaluation is recorded (`weights.recorded`) is filled with copies up to at least this many rows."""


def step_now() -> int:
    """Return the number of the step, from 0, for which losses are being evaluated; 0 outside of a step.

    A loss or collate function that draws at random must draw alike at all points of a step. To draw differently in the
    next step, it can seed its draws with this number and with what is the record's own.
    """
    _ASKED[0] += 1
    return _STEP.get()


class Batch(NamedTuple):
    """What `collate` returned, `content`, for a batch of `rows` records, of which the first `meant` are wanted. The
    others, copies of the first one, fill the batch up to a power of two: CUDA graphs are recorded for few sizes."""

    content: Any
    rows: int
    meant: int


class Evaluation:
    """Reads batches of a data set, and evaluates a loss function on them.

    Args:
        losses: a function (module, batch) -> one loss for each record of the batch.
        data: the records.
        collate: a function from a list of records to a batch; torch's default_collate if None.
    """

    def __init__(self, losses: Losses, data: Data, collate: Collate = None) -> None:
        self._losses, self._data, self._join = losses, data, default_collate if collate is None else collate
        self._whole = type(data) is TensorDataset and collate is None
        self._recorded: Recorded | None = None

    def record(self, weights: Weights) -> None:
        """Record the evaluation of later batches as CUDA graphs (`optim.weights.recorded`), one for each batch shape.

        Nothing changes if the weights are on no GPU, cannot be recorded (`Weights.recorder`), or if the losses come
        from a server in place of a loss function (`engines.engine.Engine`).
        """
        recorder = None if isinstance(self._losses, Engine) else weights.recorder()
        self._recorded = None if recorder is None else Recorded(weights, recorder, lambda: _ASKED[0])

    def batch(self, records: Indices, moment: bytes = b"", *, alike: bool = False, most: int = 0) -> Batch:
        """Read and collate records, and return the batch. Raises what the data set and the collate function raise.

        Args:
            records: the numbers of the records, shape (rows,), at least one.
            moment: bytes that tell one release of one run from all others, from which a `records.DrawnData` draws; b""
                outside a run.
            alike: whether a record reads the same each time though the data set draws at random (`records.read`), so
                that two evaluations of it can be compared. What `collate` draws stays random, since `losses.isolation`
                refuses a collate function whose draws change a record's loss from batch to batch: equal draws would
                hide it.
            most: 0, the default, adds no copies. If evaluations are recorded as CUDA graphs, copies of the first record
                fill the batch up to the next power of two (8 at least), but not beyond `most` rows.
        """
        meant = rows = len(records)
        if most and self._recorded is not None and not self._recorded.refused:
            rows = max(meant, min(most, max(_FEWEST, 1 << (meant - 1).bit_length())))
            records = np.concatenate([records, np.repeat(records[:1], rows - meant)])
        if self._whole:
            return Batch(self._data[torch.from_numpy(records)], rows, meant)
        return Batch(self._join(read(self._data, records.tolist(), moment, alike=alike)), rows, meant)

    def losses(self, module: nn.Module, copies: int = 1, *, batch: Batch) -> Tensor:
        """Return the losses of the records of a batch: float64, of shape (copies * batch.rows,), on their device.

        The loss function gets the module and `batch.content` with all `batch.rows` records, or `copies` copies of them,
        one after the other, for a module that has other weights for each copy. Raises ValueError unless it returns one
        float32 or float64 number for each record.
        """
        content = batch.content if copies == 1 else _repeated(batch, copies)
        return per_record(self._losses(module, content), copies * batch.rows)

    def at(self, weights: Weights, points: Sequence[Point], batch: Batch, points_at_once: int = 1) -> Array:
        """Return the losses of the first `batch.meant` records, or their derivatives along directions, at several
        points, float64 of shape (points, batch.meant). They are copied from the device together.

        Args:
            weights: the weights of the module that is evaluated.
            points: all pairs (number of a direction, shift along it), for losses; or all (number, None), for
                derivatives along these directions.
            batch: the batch, as the method `batch` returns it.
            points_at_once: how many of the points are evaluated in one pass, an integer >= 1.

        Raises:
            Exception: what the loss function raises, and what `losses` raises.
        """
        if isinstance(self._losses, Engine):
            adapters: Any = weights.evaluated(points, trained)  # type: ignore[arg-type]
            return self._losses.scores(adapters, batch.content)
        if self._recorded is not None and points[0][1] is not None:
            found = self._recorded.evaluated(
                points,
                lambda content: partial(self.losses, batch=batch._replace(content=content)),
                points_at_once,
                batch.content,
                batch.rows,
            )
        else:
            found = weights.evaluated(points, partial(self.losses, batch=batch), points_at_once, batch.rows)
        values: Array = torch.stack(list(found)).to("cpu").numpy()
        return values[:, : batch.meant]

    def differentiable(self, module: nn.Module, batch: Batch) -> bool:
        """Whether the losses of a batch have derivatives by the weights of `module`, as 0-1 losses have not."""
        with torch.enable_grad():
            losses = self._losses(module, batch.content)
        return isinstance(losses, Tensor) and losses.requires_grad


def _repeated(batch: Batch, copies: int) -> Any:
    # A tensor whose first axis has another length than the batch holds no records, so it is not repeated.
    def of(value: Tensor) -> Tensor:
        if value.ndim and len(value) == batch.rows:
            return value.repeat(copies, *[1] * (value.ndim - 1))
        return value

    return each_tensor(batch.content, of)


def per_record(losses: object, batch: int) -> Tensor:
    """Return a copy of what a loss function has returned, `losses`, in float64, of shape (batch,), on its device.

    `batch` is the number of records. Raises ValueError unless `losses` is a float32 or float64 tensor of shape
    (batch,): a loss that is reduced over records could only be clipped for the batch, which bounds no record, and half
    precision cannot show a difference.
    """
    if not isinstance(losses, Tensor) or losses.shape != (batch,):
        found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(f"losses must be a tensor of shape (batch,) = ({batch},), one loss per record; got {found}")
    if losses.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"losses must be float32 or float64, also of a module in half precision; got {losses.dtype}")
    with torch.no_grad():  # `detach` would drop the losses' forward derivatives, which exact differences need.
        return losses.to(torch.float64, copy=True)


class BatchSum:
    """Evaluates the records of a batch at shifted weights, and sums their clipped differences.

    A record's difference says how fast its loss changes along one of a step's K random directions. It is computed from
    the record's losses at the points that the plan's difference rule names, such as x + lambda u and x - lambda u for
    weights x and a direction u.

    Args:
        plan: the plan of the run.
        weights: the weights of the module that is evaluated.
        evaluation: reads records and returns their losses.
        ranks: the processes, among which micro-batches are dealt out.
        micro_batch: how many records are evaluated at a time, an integer >= 1.
        points_at_once: how many of the points are evaluated in one pass, an integer >= 1.
        secret: bytes from which a `records.DrawnData` draws its records anew in each step; b"" for other data sets.
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
        evaluation.record(weights)

    def total(self, release: int, batch: Indices) -> Sums:
        """Return the sum over a batch of the records' K differences along K directions, shape (K,), on every rank.

        For private algorithms each record's K are clipped together to the clip, in L2 norm, and sums are int64 in units
        of clip/levels with the algorithm's `levels`, 2^30 for dpzero; for mezo nothing is clipped, and they are float64
        in the unit of the differences. Noise is not added here. A record whose loss or reading raises counts as 0: its
        micro-batch is evaluated again record by record, so nobody sees the error and no other record is left out. In
        sharded modules it is raised.

        Args:
            release: the release's number, an integer >= 0, which determines its K directions.
            batch: the numbers of the records, shape (records,); without any, the sum is 0.

        Raises:
            ValueError: an evaluation has written a frozen parameter, or a buffer of more than 2^22 elements; smaller
                ones are put back.
        """
        parts = [batch[first : first + self._micro_batch] for first in range(0, len(batch), self._micro_batch)]
        plan, rule, weights = self._plan, self._plan.rule, self._weights
        slots: Sums = np.zeros((len(parts), plan.directions_per_step), rule.dtype)
        # In a sharded module a forward needs all ranks, so those without a micro-batch left evaluate one again, whose
        # result they leave out.
        idle = -len(parts) % self._ranks.count if weights.collective else 0
        for index in range(self._ranks.rank, len(parts) + idle, self._ranks.count):
            records = parts[index % len(parts)]
            try:
                differences = self.differences(release, records, self._points_at_once)
            except Exception:
                if weights.collective:  # A rank that leaves a forward early lets the others wait for ever.
                    raise
                differences = self._one_by_one(release, records)
            if index < len(parts):
                slots[index] = rule.contributions(differences, plan.clip)
        if self._ranks.count > 1:
            self._ranks.every(weights.untrained.require_unwritten)
            slots = self._ranks.add(slots)
        else:
            weights.untrained.require_unwritten()
        if rule.levels:
            total: Sums = slots.sum(axis=0)
            return total
        return np.array([math.fsum(column) for column in slots.T])

    def differences(self, release: int, records: Indices, points_at_once: int = 1) -> Array:
        """Return estimates of derivatives of records' losses along a release's K directions, shape (records, K).

        The plan's difference rule gives them: finite differences over lambda or 2 lambda, or exact ones. They are not
        clipped. `records` has the records' numbers, and `points_at_once` is how many points are evaluated in one
        pass. Raises what the losses, or the reading of the records, raise.
        """
        rule, smoothing, count = self._plan.difference_rule, self._plan.smoothing, self._plan.directions_per_step
        points = rule.at(range(release * count, (release + 1) * count), smoothing)
        moment = self._secret + release.to_bytes(8, "little") if self._secret else b""
        token = _STEP.set(release)
        try:
            batch = self._evaluation.batch(records, moment, most=self._micro_batch)
            return rule.combine(self._evaluation.at(self._weights, points, batch, points_at_once), smoothing)
        finally:
            _STEP.reset(token)

    def _one_by_one(self, release: int, records: Indices) -> Array:
        # As `differences`, with each record read and evaluated alone, and 0 for a record whose reading or loss raises.
        found = np.zeros((len(records), self._plan.directions_per_step))
        for row, record in zip(found, records, strict=True):
            with suppress(Exception):
                row[:] = self.differences(release, np.array([record]))[0]
        return found
