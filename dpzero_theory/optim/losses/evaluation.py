"""Reads records, evaluates their losses, and sums what the records of a batch contribute to a step.

A step has K random directions u. For each direction, `BatchSum` evaluates every record's loss at shifted weights, such
as x + lambda u and x - lambda u, and computes the record's difference: how fast its loss changes along u. `BatchSum`
clips the K differences of each record, and returns only their sum over the batch.
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
"""The type of a loss function: losses(module, batch) returns a tensor of shape (records,), whose entry i is the loss of
record i of the batch, and depends on no other record.

`batch` is what the collate function returned; the function must move it to the module's device. If the module is
sharded over processes, the function must call the module equally often on every process.
"""

_STEP: ContextVar[int] = ContextVar("step", default=0)
_ASKED = [0]  # The number of calls of `step_now`. Losses that call it depend on the step: no CUDA graph is made.
_FEWEST = 8  # Copies fill a batch up to at least this many records, if its evaluation is recorded as a CUDA graph.


def step_now() -> int:
    """Return the number of the training step whose losses are being evaluated, from 0; 0 outside of a step.

    Each step evaluates the loss of a record several times. A loss or collate function that uses random numbers must use
    the same ones each time. To use other numbers in the next step, it can seed a generator with the number of the step
    and with a value that belongs to the record.
    """
    _ASKED[0] += 1
    return _STEP.get()


class Batch(NamedTuple):
    """A collated batch, `content`, of `rows` records. The first `meant` are those that were asked for. The others are
    copies of the first record, which fill the batch up to a power of two so that CUDA graphs are recorded for few
    sizes."""

    content: Any
    rows: int
    meant: int


class Evaluation:
    """Reads batches of a data set, and evaluates a loss function on them.

    Args:
        losses: a function (module, batch) -> losses of shape (records,), one for each record of the batch; or an
            `Engine`, a server that evaluates the losses.
        data: a map-style data set, whose entries are the records.
        collate: a function from a list of records to a batch; torch's default_collate if None.
    """

    def __init__(self, losses: Losses, data: Data, collate: Collate = None) -> None:
        self._losses, self._data, self._join = losses, data, default_collate if collate is None else collate
        self._whole = type(data) is TensorDataset and collate is None
        self._recorded: Recorded | None = None

    def record(self, weights: Weights) -> None:
        """Record the evaluation of later batches at `weights` as CUDA graphs, one graph for each batch shape.

        Nothing changes if the weights are on no GPU or cannot be recorded (`Weights.recorder` returns None), or if the
        losses come from an `Engine` instead of a loss function.
        """
        recorder = None if isinstance(self._losses, Engine) else weights.recorder()
        self._recorded = None if recorder is None else Recorded(weights, recorder, lambda: _ASKED[0])

    def batch(self, records: Indices, moment: bytes = b"", *, alike: bool = False, most: int = 0) -> Batch:
        """Read and collate records, and return the batch. Raises what the data set and the collate function raise.

        Args:
            records: the indices of the records in the data set, shape (records,), at least one.
            moment: bytes that are different for each step of each run. A data set that draws its records at random
                (`records.DrawnData`) seeds the draws with them. b"" outside of a run.
            alike: whether the generators of torch, numpy and Python are seeded with a record's index while it is read,
                so that a data set with random augmentation returns the same record each time.
            most: if evaluations are recorded as CUDA graphs, copies of the first record fill the batch up to the next
                power of two, at least 8, but not beyond `most` records. 0 adds no copies.
        """
        meant = rows = len(records)
        if most and self._recorded is not None and not self._recorded.refused:
            rows = max(meant, min(most, max(_FEWEST, 1 << (meant - 1).bit_length())))
            records = np.concatenate([records, np.repeat(records[:1], rows - meant)])
        if self._whole:
            return Batch(self._data[torch.from_numpy(records)], rows, meant)
        return Batch(self._join(read(self._data, records.tolist(), moment, alike=alike)), rows, meant)

    def losses(self, module: nn.Module, copies: int = 1, *, batch: Batch) -> Tensor:
        """Return the losses of all records of a batch, as float64 of shape (copies * batch.rows,), on their device.

        The loss function is called with `module` and with `batch.content`. If `copies` is above 1, the batch is
        repeated that often, one copy after the other, for a module that applies other weights to each copy. Raises
        ValueError unless the loss function returns one float32 or float64 number for each record.
        """
        content = batch.content if copies == 1 else _repeated(batch, copies)
        return per_record(self._losses(module, content), copies * batch.rows)

    def at(self, weights: Weights, points: Sequence[Point], batch: Batch, points_at_once: int = 1) -> Array:
        """Return the losses of a batch at several shifted weights, or their derivatives along several directions.

        Args:
            weights: the weights x of the module, with the random directions u along which they are shifted.
            points: what to evaluate. The pair (index of u, s) stands for the losses at the weights x + s u, and the
                pair (index of u, None) for the derivatives of the losses along u at x. Either all or no second entries
                are None.
            batch: the batch, as the method `batch` returns it.
            points_at_once: how many points are evaluated in one forward pass, an integer >= 1. An `Engine` ignores it.

        Returns:
            A float64 array of shape (points, batch.meant). The losses of copies that fill the batch are left out.

        Raises:
            Exception: what the loss function raises, and what the method `losses` raises.
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
        """Return whether the losses of a batch have derivatives by the weights of `module`. 0-1 losses have none."""
        with torch.enable_grad():
            losses = self._losses(module, batch.content)
        return isinstance(losses, Tensor) and losses.requires_grad


def _repeated(batch: Batch, copies: int) -> Any:
    # A tensor holds one entry for each record, and is repeated, only if its first axis has as many entries.
    def of(value: Tensor) -> Tensor:
        if value.ndim and len(value) == batch.rows:
            return value.repeat(copies, *[1] * (value.ndim - 1))
        return value

    return each_tensor(batch.content, of)


def per_record(losses: object, batch: int) -> Tensor:
    """Return a float64 copy, of shape (batch,), of the losses that a loss function has returned for `batch` records.

    The copy is on the same device. Raises ValueError unless `losses` is a float32 or float64 tensor of shape (batch,).
    """
    # A mean over records could only be clipped as a whole, which bounds the effect of no record.
    if not isinstance(losses, Tensor) or losses.shape != (batch,):
        found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(f"losses must be a tensor of shape (batch,) = ({batch},), one loss per record; got {found}")
    if losses.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"losses must be float32 or float64, also of a module in half precision; got {losses.dtype}")
    with torch.no_grad():  # `detach` would drop forward-mode derivatives, which exact differences need.
        return losses.to(torch.float64, copy=True)


class BatchSum:
    """Sums the clipped differences of the records of a batch, which is what a step releases, apart from noise.

    A step has K random directions u. A record's difference along u estimates the derivative of its loss f along u from
    losses at shifted weights, such as (f(x + lambda u) - f(x - lambda u))/(2 lambda).

    Args:
        plan: the settings of the run, among them K, lambda (`smoothing`), the clip and the difference rule.
        weights: the weights x of the module, with the random directions u.
        evaluation: reads the records and evaluates their losses.
        ranks: the processes of the run, which share the micro-batches of each batch.
        micro_batch: how many records are evaluated in one forward pass, an integer >= 1.
        points_at_once: how many shifted weights are evaluated in one forward pass, an integer >= 1.
        secret: a secret key, from which a `records.DrawnData` draws its records anew in each step; b"" for other data
            sets.
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
        """Return the sum over a batch of the records' clipped finite differences along K directions, shape (K,),
        without noise.

        Every rank gets the whole sum. For private algorithms, the K differences of a record are clipped together to L2
        norm `plan.clip`, and the sum is int64 in units of clip/levels, where `levels` is an attribute of the algorithm
        (2^30 for dpzero). For mezo, which is not private, nothing is clipped, and the sum is float64 in units of loss
        per length. A record whose reading or loss raises an Exception counts as 0, and the error is not shown; if the
        module is sharded, the exception is raised.

        Args:
            release: the number of the step, an integer >= 0, which determines its K directions.
            batch: the indices of the records in the data set, shape (records,). Without any, the sum is 0.

        Raises:
            ValueError: the loss function has changed a frozen parameter, or a buffer of more than 2^22 elements.
                Smaller buffers get their old values back.
        """
        parts = [batch[first : first + self._micro_batch] for first in range(0, len(batch), self._micro_batch)]
        plan, rule, weights = self._plan, self._plan.rule, self._weights
        slots: Sums = np.zeros((len(parts), plan.directions_per_step), rule.dtype)
        # A forward of a sharded module needs all ranks. A rank without a micro-batch left evaluates one again, and
        # discards the result.
        idle = -len(parts) % self._ranks.count if weights.collective else 0
        for index in range(self._ranks.rank, len(parts) + idle, self._ranks.count):
            records = parts[index % len(parts)]
            try:
                differences = self.differences(release, records, self._points_at_once)
            except Exception:
                if weights.collective:  # If one rank left the forward, the others would wait for ever.
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
        """Return finite differences of records' losses along a step's K directions, unclipped, float64 of shape
        (records, K).

        With exact differences they are derivatives. `release` is the number of the step, from 0, which determines its
        directions. `records` holds indices in the data set, at least one. `points_at_once` shifted weights are
        evaluated in one forward pass. Raises what the loss function, the data set or the collate function raises.
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
        # Returns differences, shape (records, K), of records read and evaluated alone; zeros for one that raises.
        found = np.zeros((len(records), self._plan.directions_per_step))
        for row, record in zip(found, records, strict=True):
            with suppress(Exception):
                row[:] = self.differences(release, np.array([record]))[0]
        return found
