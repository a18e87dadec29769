"""Evaluations of a few records, and their comparison: whether each record's loss depends on that record alone.

`losses.isolation` says what is looked at, and why.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpzero_theory.check import Array
from dpzero_theory.difference import Point
from dpzero_theory.optim.losses.evaluation import Batch, Evaluation, Losses, Shape, on_host, shape_of
from dpzero_theory.optim.losses.identity import MOST_READ, of_all
from dpzero_theory.optim.losses.records import Alike, Collate, Data, each, fetcher, length_of
from dpzero_theory.optim.losses.trace import Trace
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.schedule import Indices

_RULE = "losses must give each record a number of its own"
_ONE_SHAPE = (
    "isolation 'exact' needs batches of one shape: pad and cut records to one length in the data set or in collate, or"
    " use micro_batch=1"
)
_PADDING = " (of texts, pad on the right: tokenizer.padding_side = 'right', or all to one length)"
_DRAWS = "what is drawn at random must come from torch's, numpy's or Python's global generator"
_ONE_BY_ONE = " (where reading draws at random, read records one by one: a data set without __getitems__)"
_LOOKED_AT = 32
"""How many records, spread over the data set, are evaluated at two points to see whether there is anything to learn."""
_MOST_LOST = 0.25
"""The largest share of these records that may count as 0, because they cannot be read or have no finite loss."""
_FEWEST = 6
"""A data set is probed by at least so many of its records."""
_DEVIATIONS = 6
"""A batch of random size is taken to have at most its expected size q n plus this many times sqrt(q n) records."""
_SMALL = 0.1
"""This is added to the largest loss before a change of losses is compared with it, so that tiny losses may change a
little."""
T = TypeVar("T")


class ProbeResult(NamedTuple):
    """What `probe` returns, which evaluates some records again beside other records and compares their losses.

    Attributes:
        rounding: the largest change of a record's loss from one evaluation to another that was taken for rounding, or
            the spacing of floating-point numbers there if that is larger; 0 where no change is allowed (isolation
            "exact") and where micro-batches of one record showed none.
        shape: the shape of the batches that the run may evaluate; None where they may have any.
        values: the losses of the first records, to compare between processes.
        coarsest: the coarsest rounding of the operations that gave these losses, `Trace.coarsest`.
        learns: whether each of these losses counts in a step, and one of them changes from one point to the other.
    """

    rounding: float
    shape: Shape | None
    values: Array
    coarsest: float
    learns: bool = True


class RaisedError(Exception):
    """Raised in place of an exception of the losses, or of the reading of a batch, which is its attribute `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Seen(NamedTuple):
    """One evaluation: the records' numbers, their collated batch, the loss of each, and a trace of the operations."""

    records: Indices
    batch: Batch
    values: Array
    trace: Trace


class Look:
    """Evaluates records at two points: the first two that the run evaluates, by the plan's difference rule.

    For central differences they are x + lambda u and x - lambda u, for forward ones x and x + lambda u, where x are the
    weights and u is the run's first direction; for exact ones, the derivatives along the first two directions.

    Args:
        weights: the trainable weights.
        evaluation: reads records and gives their losses.
        plan: what the run does.
        exact: whether the bits of intermediate results are traced, too.
    """

    def __init__(self, weights: Weights, evaluation: Evaluation, plan: Plan, *, exact: bool) -> None:
        self.weights, self.exact = weights, exact
        self._evaluation = evaluation
        self._points = plan.difference_rule.at(range(2), plan.smoothing)[:2]
        self._begun = False

    def __call__(self, records: Indices, which: int = 0, batch: Batch | None = None) -> _Seen:
        """Evaluate the records with these numbers at the point `which`, 0 or 1, and return what was seen.

        batch: their collated batch, if it was made before. Raises RaisedError where the losses or the reading raise.
        """
        trace = Trace(len(records) if self.exact else 0)
        try:
            batch = batch or self._evaluation.batch(records)
            values = self._asked(self._points[which], batch, trace)
        except Exception as error:
            said = " ".join(str(error).split())
            if not self._begun or said.startswith(("losses must", "the losses must")):
                raise RaisedError(error) from error
            found = ValueError(
                f"{_RULE} in every batch; got {type(error).__name__}: {said:.200}, with {len(records)} of them"
            )
            found.__cause__ = error
            raise RaisedError(found) from error
        self._begun = True
        return _Seen(records, batch, values, trace)

    def at_points(self, records: Indices, at_once: int) -> tuple[Array, Array, float]:
        """Evaluate records at both points in two ways: one point after the other, and both in one pass.

        Args:
            records: the numbers of the records.
            at_once: how many points the run evaluates in one pass. With 1 the second way is left out, and the result of
                the first stands for it.

        Returns:
            The losses by the first way and by the second, each of shape (2, records), and the coarsest rounding of the
            first way's operations (`Trace.coarsest`).

        Raises:
            RaisedError: the losses or the reading raise.
        """
        trace = Trace(0)
        points = self._points
        try:
            ask = partial(self._evaluation.losses, batch=self._evaluation.batch(records))
            with trace:
                apart = on_host(self.weights.evaluated(points, ask))
            together = on_host(self.weights.evaluated(points, ask, 2)) if at_once > 1 else apart
            return apart, together, trace.coarsest
        except Exception as error:
            raise RaisedError(error) from error

    def constant(self, record: int, value: float) -> bool:
        """Whether the record's loss has a derivative, so that it is no 0-1 loss, and is `value` at the weights x too.

        record: its number. value: its loss at both points.
        """
        differentiable: list[bool] = []
        batch = self._evaluation.batch(np.array([record]))

        def ask(module: nn.Module) -> Tensor:
            differentiable.append(self._evaluation.differentiable(module, batch))
            return self._evaluation.losses(module, batch)

        return bool(on_host(self.weights.evaluated([(0, 0.0)], ask))[0, 0] == value) and differentiable[0]

    def evaluates(self, record: int) -> bool:
        """Whether the record with this number, by itself, has a loss at both points without an exception."""
        try:
            batch = self._evaluation.batch(np.array([record]))
            for point in self._points:
                self._asked(point, batch, Trace(0))
        except Exception:
            return False
        return True

    def _asked(self, point: Point, batch: Batch, trace: Trace) -> Array:
        def ask(module: nn.Module) -> Tensor:
            with trace:
                return self._evaluation.losses(module, batch)

        values: Array = on_host(self.weights.evaluated([point], ask))[0]
        return values


def evaluable(work: Callable[[Indices], T], look: Look, records: Indices) -> T:
    """Return work(records) or, where a loss or the reading raises, `work` for the records that can be evaluated.

    In a run a record whose loss raises counts as 0, so it is left out here and nothing is said.

    Args:
        work: a function of numbers of records.
        look: says of each record whether it can be evaluated by itself.
        records: the numbers.

    Raises:
        Exception: an error that every record raises by itself, or that only several records raise together. It is a
            fault of the losses or of `collate`.
    """
    try:
        return work(records)
    except RaisedError as error:
        raised = error
    kept = np.array([record for record in records if look.evaluates(record)], np.int64)
    if 0 < len(kept) < len(records):
        try:
            return work(kept)
        except RaisedError as error:
            raised = error
    raise raised.error from raised.error.__cause__


def probe(
    weights: Weights, losses: Losses, data: Data, collate: Collate, plan: Plan, rows: int, mode: str
) -> ProbeResult:
    """Test that the losses keep records apart, in fewer than ten evaluations of a micro-batch as the run makes it.

    Args:
        weights: the trainable weights of the module.
        losses, data, collate: the run's loss function, its records, and the function that makes a batch of records.
        plan: what the run does.
        rows: the number of records in a micro-batch.
        mode: a name in `isolation.ISOLATIONS`.

    Returns:
        What was measured.

    Raises:
        ValueError: the losses do not keep records apart; the message says what was seen. The module's buffers are then
            as they were.
        Exception: what the losses raise for every record (`evaluable`).
    """
    largest = plan.sampling.batch_size(plan.n)
    if largest is None:
        largest = math.ceil(plan.expected_batch + _DEVIATIONS * math.sqrt(plan.expected_batch))
    rows = min(rows, plan.n, rows if mode == "exact" else max(2, largest))
    count = min(plan.n, max(2 * rows, _FEWEST))
    fetch = Alike(data, collate)
    look = Look(weights, Evaluation(losses, fetch), plan, exact=mode == "exact" and rows > 1)
    places = np.arange(count) * plan.n // count
    lengths: dict[int, int] = {}
    if type(data) is not TensorDataset:
        read = dict(zip(places.tolist(), each(data, places.tolist()), strict=True))
        lengths = {number: length_of(record) for number, record in read.items()}
        if of_all(each(data, places.tolist()), b"") != of_all(read.values(), b""):
            raise ValueError(f"{_RULE}; got data that give a record otherwise when it is read again: {_DRAWS}")
    kept: list[Indices] = []

    def probed(records: Indices) -> ProbeResult:
        kept.append(records)
        return _probed(look, fetch, records, [lengths.get(i, 0) for i in records], rows, smoothed=plan.smoothing > 0)

    found = evaluable(probed, look, places)
    if not found.learns or len(kept[-1]) < len(places):
        require_signal(Look(weights, Evaluation(losses, fetch), plan, exact=False), plan, rows)
    if len(data) != plan.n:
        raise ValueError(f"data must hold as many records at all times; got {plan.n} and then {len(data)}")
    if found.shape:
        _require_one_shape(data, collate)
    return found


def require_signal(look: Look, plan: Plan, rows: int) -> None:
    """Raise ValueError where a run would spend its budget on records from which it learns nothing.

    More than a quarter of 32 records cannot be read or have no finite loss, or none of the losses changes from one
    point of a step to the other, though they have derivatives.

    Args:
        look: evaluates records at two points.
        plan: what the run does.
        rows: how many records are evaluated at a time.
    """
    places = np.unique(np.arange(_LOOKED_AT) * plan.n // _LOOKED_AT)
    values, said = [], ""
    for first in range(0, len(places), rows):
        part = places[first : first + rows]
        try:
            values.append(look.at_points(part, 1)[0])
        except RaisedError:
            for record in part:
                try:
                    values.append(look.at_points(np.array([record]), 1)[0])
                except RaisedError as error:
                    values.append(np.full((2, 1), math.nan))
                    said = said or f" ({type(error.error).__name__}: {' '.join(str(error.error).split()):.100})"
    one, other = np.concatenate(values, axis=1)
    change = _change(one, other, smoothed=plan.smoothing > 0)
    counts = ~np.isnan(change)
    lost = len(places) - int(counts.sum())
    if lost > max(1, _MOST_LOST * len(places)):
        raise ValueError(
            f"losses must be finite numbers for the records; got none for {lost} of {len(places)} that were looked at"
            f"{said}: they would count as 0, and spend the budget on nothing"
        )
    same = plan.smoothing > 0 and counts.any() and not change[counts].any()
    if same and look.constant(places[counts][0], one[counts][0]):
        raise ValueError(
            f"losses must change with the weights; got the same at both points for all {counts.sum()} records that"
            f" were looked at: no token or class may be labelled, or smoothing = {plan.smoothing:g} may be too small"
            f" for {str(look.weights.parameters[0].dtype).removeprefix('torch.')}"
        )


def _probed(
    look: Look, fetch: Alike, records: Indices, lengths: list[int], rows: int, *, smoothed: bool
) -> ProbeResult:
    draw = np.random.default_rng(0)
    order = draw.permutation(len(records))
    ends = [np.argmin(lengths), np.argmax(lengths)] if len(set(lengths)) > 1 else []
    order = np.concatenate([ends, order[~np.isin(order, ends)]]).astype(np.int64)
    records = np.resize(records[order], max(len(records), rows))
    kept = draw.random(rows) < 0.5
    kept[:2] = [True, False][:rows]  # in the second batch the shortest record stays, and the longest is replaced
    first = look(records[:rows])
    look.weights.require_used()
    below = look(first.records, 1, first.batch)
    change = _change(first.values, below.values, smoothed=smoothed)
    compared = _Comparison(look, first)
    others = records[rows:]
    shape = None
    if rows > 1:
        shape = compared.together(below, others, kept, fetch)
    else:
        compared.one_by_one(others)
    learns = not np.isnan(change).any() and bool(change.any())
    return ProbeResult(compared.rounding, shape, first.values, first.trace.coarsest, learns)


def _change(one: Array, other: Array, *, smoothed: bool) -> Array:
    """Return by how much losses change from one point to the other; `one` itself where they are derivatives.

    An infinite change counts as the clip in a step, and NaN as 0. smoothed: whether they are losses.
    """
    with np.errstate(invalid="ignore"):
        return one - other if smoothed else one


class _Comparison:
    """Compares the first evaluation with others that hold some of the same records.

    look: evaluates records. first: the first evaluation. rounding: the largest change of a loss so far that was taken
    for rounding.
    """

    def __init__(self, look: Look, first: _Seen) -> None:
        self._look, self._first = look, first
        self._steady = look.weights.parameters[0].device.type == "cpu"  # on a CPU equal operations give equal bits
        self.rounding = 0.0

    def one_by_one(self, others: Indices) -> None:
        """Compare evaluations where a micro-batch is one record: the first record, before and after the others.

        others: the numbers of the other records. Raises ValueError where the losses differ.
        """
        for record in others[:-1]:
            self._look(np.array([record]))
        self._twice(others[-1:] if len(others) else self._first.records)

    def together(self, below: _Seen, others: Indices, kept: NDArray[np.bool_], fetch: Alike) -> Shape | None:
        """Compare evaluations where a micro-batch has several records.

        Args:
            below: the evaluation of the first records at the second point.
            others: numbers of records that replace some of the first evaluation.
            kept: for each record of the first evaluation whether it stays.
            fetch: reads batches, and says whether random draws while reading were made equal for equal places of a
                batch and not for equal records (`Alike.by_place`).

        Returns:
            For isolation "exact", the shape of batches that keep records apart to the bit; else None.

        Raises:
            ValueError: the losses differ.
        """
        first, look = self._first, self._look
        records, rows = first.records, len(first.records)
        every, stayed, went = np.arange(rows), np.flatnonzero(kept), np.flatnonzero(~kept)
        beside = look(_exchanged(records, kept, others))
        beside_below = look(_exchanged(records, ~kept, others), 1)
        turned = self._twice(records[::-1])
        shape = self._shape([beside, below, beside_below, turned]) if look.exact else None
        hint = _ONE_BY_ONE if fetch.by_place else ""
        self._compare(beside, first, stayed, stayed, f"with other records beside it{hint}")
        self._compare(beside_below, below, went, went, f"with other records beside it{hint}")
        if not fetch.by_place:
            self._compare(turned, first, every[::-1], every, "in another place of the batch")
        if not look.exact:
            for places in (every[: len(stayed)] if fetch.by_place else stayed, every[:1]):
                how = f"among {len(places)} of {rows} records, with the padding of these{_PADDING}{hint}"
                self._compare(look(records[places]), first, every[: len(places)], places, how)
            size = largest(first.values)
            single = bool((first.values.astype(np.float32) == first.values).all())
            self.rounding = max(self.rounding, float(np.spacing(np.float32(size) if single else size)))
        return shape

    def _twice(self, before: Indices) -> _Seen:
        """Evaluate the records `before`, then the first ones again, and compare these with the first evaluation.

        Buffers keep what each evaluation leaves there, and must not change from one to the next. Returns the evaluation
        of the records `before`.
        """
        first = self._first
        with self._look.weights.untrained.left() as require_unchanged:
            seen = self._look(before)
            require_unchanged()
            again = self._look(first.records)
            require_unchanged()
        every = np.arange(len(first.records))
        self._compare(again, first, every, every, "when it is evaluated again, after others")
        self._steady = self._steady or equal(first.values, again.values).all()
        return seen

    def _compare(self, seen: _Seen, reference: _Seen, here: Indices, there: Indices, how: str) -> None:
        """Raise ValueError unless records have the losses that they had in another evaluation.

        Args:
            seen, reference: the two evaluations.
            here, there: the places of the same records in `seen` and in `reference`.
            how: what was different about `seen`, for the message.
        """
        found, expected = seen.values[here], reference.values[there]
        changed = ~equal(found, expected)
        if changed.any():
            with np.errstate(invalid="ignore"):
                gaps = np.abs(found - expected)[changed]
            gap = float(np.where(np.isnan(gaps), np.inf, gaps).max())
            size = largest(np.concatenate([seen.values, reference.values]))
            eps = max(seen.trace.coarsest, reference.trace.coarsest)
            alike = self._steady and np.array_equal(here, there)
            alike = alike and seen.trace.operations == reference.trace.operations
            if alike or not gap <= rounding(eps, size):
                _require_same_batch(seen, reference)
                raise ValueError(f"{_RULE}; got one that changes by {gap:.1g} (of {size:.1g}) {how}")
            self.rounding = max(self.rounding, gap)
        exact = self._look.exact
        operation = seen.trace.first_difference(reference.trace, here, there) if exact else ""
        if exact and (operation or changed.any()):
            raise ValueError(
                f"isolation 'exact' needs operations that keep records apart; {operation or 'one'} gives a record other"
                f" bits {how}: use another micro_batch, or 1"
            )

    def _shape(self, others: list[_Seen]) -> Shape:
        """Return the shape that the batches of the first and of all other evaluations have.

        others: the other evaluations. Raises ValueError where the batches have several shapes, and where
        the operations may depend on values: where one hands a value to the program (`Trace.reads`), or an evaluation
        ran other operations than the first.
        """
        first = self._first
        shape = shape_of(first.batch.content)
        if any(shape_of(seen.batch.content) != shape for seen in others):
            raise ValueError(_ONE_SHAPE)
        reads = first.trace.reads or next((seen.trace.reads for seen in others if seen.trace.reads), "")
        if reads or any(seen.trace.operations != first.trace.operations for seen in others):
            raise ValueError(
                f"isolation 'exact' needs operations that do not go by values; got {reads or 'other ones for others'}:"
                " use micro_batch=1 (in transformers an attention_mask of four dimensions helps, as nobody reads it)"
            )
        return Shape(len(first.records), shape)


def _require_same_batch(seen: _Seen, reference: _Seen) -> None:
    """Raise ValueError if `collate` made another batch of the same records in `seen` than in `reference`, the first."""
    one, other = (of_all([each_one.batch.content], b"") for each_one in (seen, reference))
    if np.array_equal(seen.records, reference.records) and one != other:
        raise ValueError(
            f"{_RULE}; got a collate that makes another batch of the same records when it is called again: what is"
            " random (masks, say) must be drawn in the data set, where a record is read, and collate only join records"
        )


def _require_one_shape(data: Data, collate: Collate) -> None:
    """Raise ValueError unless all records of `data`, each made a batch by `collate` alone, have one shape. At most
    1,000 of them, evenly spread, are read, and those that cannot be read are passed over."""
    fetch, count = fetcher(data, collate), min(len(data), MOST_READ)
    shapes = set()
    for index in range(count):
        with suppress(Exception):  # a record that cannot be read counts as 0
            shapes.add(shape_of(fetch(np.array([index * len(data) // count]))))
    if len(shapes) > 1:
        raise ValueError(_ONE_SHAPE)


def _exchanged(records: Indices, kept: NDArray[np.bool_], others: Indices) -> Indices:
    """Return numbers of records, as many as `records`: `records` where `kept` is true, and in the remaining places
    `others` in order, repeated as often as needed. Where `others` is empty, kept records take these places too.
    """
    theirs = np.resize(others if len(others) else records[kept], len(records))
    return np.where(kept, records, theirs)


def equal(one: Any, other: Any) -> Any:
    """Whether two numbers or arrays are equal, entry by entry (a boolean for each), where NaN equals NaN."""
    return (one == other) | ((one != one) & (other != other))


def rounding(eps: float, size: float) -> float:
    """Return the largest absolute change of a loss that is taken for rounding: eps^(2/3) (size + 0.1).

    eps: the coarsest rounding of an operation, relative, as `Trace.coarsest` has it. size: the largest loss.
    """
    return float(eps ** (2 / 3)) * (size + _SMALL)


def largest(values: Array) -> float:
    """Return the largest magnitude of the finite values; 0 if there are none."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
