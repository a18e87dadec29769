"""A record's loss is its own: looked at before a private run begins, and how it is kept so.

What is clipped is one record's difference, so a neighbouring data set may change no other record's. That holds if the
losses give record i a number that depends on record i and the weights alone. `probe` evaluates a few records, spread
over the data set, at x + lambda u and x - lambda u, and compares what a record gets:

    evaluated again, after others        randomness (dropout that stays on), a state kept between calls
    with other records beside it         batch statistics, contrast, ranks, sums over the batch
    in another order                     a dependence on the place in the batch
    among half as many, and alone        a dependence on the number of records, on padding

Refused is what changes by more than rounding can, and by any bit at all where the same operations ran on tensors of
the same shapes (so that not even a tiny coupling through contents passes, where kernels are deterministic); and
buffers that change. Rounding is taken to be below eps^(2/3) of the largest loss, eps of the coarsest type that any
operation used. What cannot be seen: couplings that these records do not show (through rare values, after many calls,
of sizes that were not tried), such as are below rounding and show only in another shape, values of the very first batch
that are kept for good, and a data set that makes an entry out of several people's records.
Refusals and warnings go by the losses of these records: they are for whoever holds the data, and no part of what may
be seen.

    isolation    what is assured
    probed       the above. In floating point a record's last bits may still depend on how many records are beside it
                 and how long they are, since kernels go by shape. A warning says where lambda makes that visible:
                 where rounding, over lambda, of all records of a batch reaches a tenth of the clip
    exact        all bits, by fixed shapes: a micro-batch is filled up to a number of rows that was tested, and records
                 must be padded and cut to one length by the data set or `collate`. The start tests that the operations
                 on these shapes do not depend on values, and that each of them gives a record the same bits beside
                 other records, in other places, and in each number of rows that is used. With micro_batch=1 a record
                 is evaluated alone, in its own shape. It is assumed that kernels go by shapes, as they were tested on
                 these records, and that all processes compute on equal hardware
"""

import hashlib
import math
import warnings
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzero_theory.check import Array
from dpzero_theory.optim.distributed import Ranks
from dpzero_theory.optim.evaluation import Batch, Evaluation, Losses, on_host, shape_of
from dpzero_theory.optim.identity import RECORDS
from dpzero_theory.optim.module import Weights
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.records import Collate, Data, fetcher, sample
from dpzero_theory.optim.trace import Trace
from dpzero_theory.privacy.schedule import Indices

ISOLATIONS = ("probed", "exact")
_RULE = "losses must give each record a number of its own"
_ONE_SHAPE = (
    "isolation 'exact' needs batches of one shape: pad and cut records to one length in the data set or in collate, or"
    " use micro_batch=1"
)
_SMALL = 0.1  # losses below it are compared as if they were this large
_VISIBLE = 0.1  # of the clip


class Found(NamedTuple):
    """What a probe has found.

    rounding: the largest change of a loss that was taken for rounding, or the spacing of floating-point numbers there
    if that is larger; 0 where isolation is exact. shapes: for `Evaluation`. bits: of the losses, for other processes.
    """

    rounding: float
    shapes: dict[int, str]
    bits: str


def examine(
    weights: Weights,
    losses: Losses,
    data: Data,
    collate: Collate,
    plan: Plan,
    ranks: Ranks,
    micro_batch: int,
    isolation: str,
) -> Evaluation:
    """How the run evaluates the losses, once the start has looked at them; after an exception the module is as it was.

    isolation: of `ISOLATIONS`, for `probe`; empty to look at the shape of two records' losses alone. Raises ValueError.
    """
    fetch = fetcher(data, collate)
    try:
        if not isolation:
            evaluation = Evaluation(losses, fetch)
            with weights.shifted(0, plan.smoothing):
                evaluation.losses(weights.module, evaluation.batch(np.arange(min(2, plan.n))))
            weights.require_used()
            return evaluation
        apart: list[Found] = []
        ranks.every(lambda: apart.append(probe(weights, losses, data, collate, plan, micro_batch, isolation)))
        if isolation == "exact":
            ranks.require_equal("what the losses give the first records", apart[0].bits)
        if ranks.rank == 0:
            warn(apart[0], plan)
        return Evaluation(losses, fetch, apart[0].shapes)
    except BaseException:
        weights.restore()
        raise


def require_stackable(weights: Weights, evaluation: Evaluation, plan: Plan, points_at_once: int) -> None:
    """Raise ValueError unless several points in one pass give the first records what each gives them by itself.

    Equal up to rounding, as in `probe`; after an exception the module is as it was.
    """
    if points_at_once == 1:
        return
    batch = evaluation.batch(np.arange(min(2, plan.n)))
    points = [(0, plan.smoothing), (0, -plan.smoothing)]
    ask = partial(evaluation.where_they_are, batch=batch)
    trace = Trace(0)
    try:
        with trace:
            apart = on_host(weights.evaluated(points, ask))
        together = on_host(weights.evaluated(points, ask, 2))
    except BaseException:
        weights.restore()
        raise
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.where(_equal(together, apart), 0.0, together - apart)).max()
    if not gap <= _rounding(trace.coarsest, _largest(np.concatenate([apart, together], axis=None))):
        raise ValueError(f"points_at_once must be 1 for these losses: together they change by {gap:.1g}")


def probe(weights: Weights, losses: Losses, data: Data, collate: Collate, plan: Plan, rows: int, mode: str) -> Found:
    """Whether the losses keep records apart, in fewer than ten evaluations of at most `rows` records.

    rows: of a micro-batch. mode: of `ISOLATIONS`. Raises ValueError in one line that says what was found; the module's
    buffers are then as they were.
    """
    rows = min(rows, plan.n, rows if mode == "exact" else max(2, math.ceil(plan.expected_batch)))
    count = min(plan.n, 2 * rows)
    fetch, lengths = sample(data, collate, np.arange(count) * plan.n // count)
    draw = np.random.default_rng(0)
    order = draw.permutation(count)
    ends = [np.argmin(lengths), np.argmax(lengths)] if len(set(lengths)) > 1 else []
    order = np.concatenate([ends, order[~np.isin(order, ends)]]).astype(np.int64)
    kept = draw.random(rows) < 0.5
    kept[:2] = [True, False][:rows]  # the shortest stays where the longest goes
    look = _Look(weights, Evaluation(losses, fetch), plan.smoothing, rows, exact=mode == "exact" and rows > 1)
    with _Buffers(weights) as buffers:
        first = look(order[:rows])
        weights.require_used()
        buffers.settle()
        shapes = look.together(first, order[rows:], kept) if rows > 1 else look.one_by_one(first, order[rows:])
        buffers.require_unchanged()
    if shapes:
        _require_one_shape(data, collate)
    return Found(look.rounding, shapes, hashlib.sha256(first.values.tobytes()).hexdigest())


def warn(found: Found, plan: Plan) -> None:
    """Warn, in one line, where lambda makes the measured rounding visible in what is released."""
    shift = found.rounding / plan.smoothing
    if plan.clip and not shift * plan.expected_batch < _VISIBLE * plan.clip:
        warnings.warn(
            f"smoothing = {plan.smoothing:g} makes rounding visible: it moves losses by {found.rounding:.1g}, so other"
            f" records can move a record's difference by {shift:.1g} (clip = {plan.clip:g}): use isolation='exact' or"
            " a larger smoothing",
            stacklevel=2,
        )


class _Seen(NamedTuple):
    """One evaluation: of which records, what it gave each, and what it did."""

    records: Indices
    batch: Batch
    values: Array
    trace: Trace


class _Look:
    """Evaluations and their comparison. rounding: as `Found`, of what was compared so far.

    exact: whether all bits must be the same, those of intermediate results too.
    """

    def __init__(self, weights: Weights, evaluation: Evaluation, smoothing: float, rows: int, *, exact: bool) -> None:
        self._weights, self._evaluation, self._smoothing = weights, evaluation, smoothing
        self._rows, self._exact = rows, exact
        self._steady = weights.parameters[0].device.type == "cpu"
        self._begun = False
        self.rounding = 0.0

    def __call__(self, records: Indices, side: int = 1, batch: Batch | None = None) -> _Seen:
        """The losses of some records at x + side lambda u."""
        trace = Trace(len(records) if self._exact else 0)
        try:
            batch = batch or self._evaluation.batch(records)
            with self._weights.shifted(0, side * self._smoothing), trace:
                values = self._evaluation.losses(self._weights.module, batch)
        except Exception as error:
            said = " ".join(str(error).split())
            if not self._begun or said.startswith(("losses must", "the losses must")):
                raise
            found = f"{type(error).__name__}: {said:.200}"
            raise ValueError(f"{_RULE} in every batch; got {found}, with {len(records)} of them") from error
        self._begun = True
        return _Seen(records, batch, values, trace)

    def one_by_one(self, first: _Seen, others: Indices) -> dict[int, str]:
        """Compare where a micro-batch is one record."""
        for record in others:
            self(np.array([record]))
        self._repeated(first, self(first.records))
        return {}

    def together(self, first: _Seen, others: Indices, kept: NDArray[np.bool_]) -> dict[int, str]:
        """Compare where a micro-batch has several records; the shapes that are exact, if that is asked for."""
        records, rows = first.records, len(first.records)
        every, stayed, went = np.arange(rows), np.flatnonzero(kept), np.flatnonzero(~kept)
        beside = self(_exchanged(records, kept, others))
        below = self(records, -1, first.batch)
        beside_below = self(_exchanged(records, ~kept, others), -1)
        turned = self(records[::-1])
        again = self(records)
        shapes = self._shape(first, [beside, below, beside_below, turned, again]) if self._exact else {}
        self._repeated(first, again)
        self._compare(beside, first, stayed, stayed, "with other records beside it")
        self._compare(beside_below, below, went, went, "with other records beside it")
        self._compare(turned, first, every[::-1], every, "in another place of the batch")
        if not self._exact:
            for places in (stayed, every[:1]):
                how = f"among {len(places)} of {rows} records, with the padding of these"
                self._compare(self(records[places]), first, every[: len(places)], places, how)
            largest = _largest(first.values)
            single = bool((first.values.astype(np.float32) == first.values).all())
            self.rounding = max(self.rounding, float(np.spacing(np.float32(largest) if single else largest)))
            return {}
        for places in (every[: rows >> by] for by in (1, 2, 3) if rows >> by):
            seen = self(records[places])
            if not first.trace.first_difference(seen.trace, places, places):
                shapes[len(places)] = shape_of(seen.batch.content)
        return shapes

    def _repeated(self, first: _Seen, again: _Seen) -> None:
        every = np.arange(len(first.records))
        self._compare(again, first, every, every, "when it is evaluated again, after others")
        self._steady = self._steady or _equal(first.values, again.values).all()

    def _compare(self, seen: _Seen, reference: _Seen, here: Indices, there: Indices, how: str) -> None:
        """Raise ValueError unless records in places `here` have what they had in places `there` of the reference."""
        found, expected = seen.values[here], reference.values[there]
        changed = ~_equal(found, expected)
        if changed.any():
            with np.errstate(invalid="ignore"):
                gaps = np.abs(found - expected)[changed]
            gap = float(np.where(np.isnan(gaps), np.inf, gaps).max())
            largest = _largest(np.concatenate([seen.values, reference.values]))
            eps = max(seen.trace.coarsest, reference.trace.coarsest)
            alike = self._steady and np.array_equal(here, there)
            alike = alike and seen.trace.operations == reference.trace.operations
            if alike or not gap <= _rounding(eps, largest):
                raise ValueError(f"{_RULE}; got one that changes by {gap:.1g} (of {largest:.1g}) {how}")
            self.rounding = max(self.rounding, gap)
        operation = seen.trace.first_difference(reference.trace, here, there) if self._exact else ""
        if self._exact and (operation or changed.any()):
            raise ValueError(
                f"isolation 'exact' needs operations that keep records apart; {operation or 'one'} gives a record other"
                f" bits {how}: use another micro_batch, or 1"
            )

    def _shape(self, first: _Seen, others: list[_Seen]) -> dict[int, str]:
        """The one of all these batches, by its rows.

        Raises ValueError where they have several, and where operations go by values.
        """
        shape = shape_of(first.batch.content)
        if any(shape_of(seen.batch.content) != shape for seen in others):
            raise ValueError(_ONE_SHAPE)
        reads = first.trace.reads or next((seen.trace.reads for seen in others if seen.trace.reads), "")
        if reads or any(seen.trace.operations != first.trace.operations for seen in others):
            raise ValueError(
                f"isolation 'exact' needs operations that do not go by values; got {reads or 'other ones for others'}:"
                " use micro_batch=1 (in transformers an attention_mask of four dimensions helps, as nobody reads it)"
            )
        return {len(first.records): shape}


class _Buffers:
    """The module's buffers and frozen parameters, which the losses must leave as they are: they are handed out."""

    def __init__(self, weights: Weights) -> None:
        self._module = weights.module

    def __enter__(self) -> Self:
        self._before = self._now()
        self.settle()
        return self

    def settle(self) -> None:
        """What is there now must stay; the first evaluation may have made what it keeps."""
        self._settled = self._now()

    def require_unchanged(self) -> None:
        """Raise ValueError naming a buffer that was changed."""
        for name, (buffer, _, version) in self._now().items():
            _, before, begun = self._settled.get(name, (buffer, None, version))
            if before is None and version == begun:
                continue
            if before is None or before.shape != buffer.shape or not _equal(before, buffer).all():
                raise ValueError(f"losses must not change what is handed out with the module; got a change of {name}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for buffer, before, _ in self._before.values():
                if before is not None and before.shape == buffer.shape:
                    buffer.copy_(before)

    def _now(self) -> dict[str, tuple[Tensor, Tensor | None, int]]:
        """Each tensor, a copy of it if it is a buffer, and how often it was written."""
        frozen = {name: p for name, p in self._module.named_parameters() if not p.requires_grad}
        found: dict[str, tuple[Tensor, Tensor | None, int]] = {
            name: (p, None, 0 if p.is_inference() else p._version) for name, p in frozen.items()
        }
        for path, part in self._module.named_modules():
            for name, buffer in part.named_buffers(recurse=False):
                saved = name not in part._non_persistent_buffers_set
                if saved and buffer.layout == torch.strided and not buffer.is_meta:
                    found[f"{path}.{name}".lstrip(".")] = buffer, buffer.detach().clone(), 0
        return found


def _require_one_shape(data: Data, collate: Collate) -> None:
    """Raise ValueError unless the records, or `RECORDS` of them, are of one shape each by itself."""
    fetch, count = fetcher(data, collate), min(len(data), RECORDS)
    if len({shape_of(fetch(np.array([index * len(data) // count]))) for index in range(count)}) > 1:
        raise ValueError(_ONE_SHAPE)


def _exchanged(records: Indices, kept: NDArray[np.bool_], others: Indices) -> Indices:
    """The same records where they are kept, and others in the other places: kept ones again where there are none."""
    theirs = np.resize(others if len(others) else records[kept], len(records))
    return np.where(kept, records, theirs)


def _equal(one: Any, other: Any) -> Any:
    """Entry by entry; NaN is NaN."""
    return (one == other) | ((one != one) & (other != other))


def _rounding(eps: float, largest: float) -> float:
    """The largest change of losses of this size that is taken for rounding."""
    return float(eps ** (2 / 3)) * (largest + _SMALL)


def _largest(values: Array) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
