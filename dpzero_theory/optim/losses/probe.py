"""Evaluations of a few records, and their comparison: whether the losses give each record a number of its own.

`losses.isolation` says what is looked at, and why.
"""

import copy
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from dpzero_theory.check import Array
from dpzero_theory.optim.losses.evaluation import Batch, Evaluation, Losses, on_host, shape_of
from dpzero_theory.optim.losses.identity import RECORDS, of_all
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
_DRAWS = "what is drawn at random must come from torch's, numpy's or Python's global generator"
_ONE_BY_ONE = " (where reading draws at random, read records one by one: a data set without __getitems__)"
_DEVIATIONS = 6
"""A Poisson batch is taken to be at most so many standard deviations larger than expected, which hardly any exceeds."""
_SMALL = 0.1
"""Losses smaller than this are compared as if they were this large."""
T = TypeVar("T")


class ProbeResult(NamedTuple):
    """What `probe` returns.

    rounding: the largest change of a loss that was taken for rounding, or the spacing of floating-point numbers there
    if that is larger; 0 where isolation is exact. shapes: those that `Evaluation` may evaluate, by their rows.
    values: the losses of the first records, and coarsest: `Trace.coarsest` of them, to compare between processes.
    """

    rounding: float
    shapes: dict[int, str]
    values: Array
    coarsest: float


class RaisedError(Exception):
    """The losses, or the reading of a batch, have raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Seen(NamedTuple):
    """One evaluation: the records, their collated batch, the loss of each, and what operations ran."""

    records: Indices
    batch: Batch
    values: Array
    trace: Trace


class Look:
    """Evaluates records at x + lambda u and x - lambda u, u the run's first direction.

    smoothing: lambda. exact: whether the bits of intermediate results are traced, too.
    """

    def __init__(self, weights: Weights, evaluation: Evaluation, smoothing: float, *, exact: bool) -> None:
        self.weights, self.exact = weights, exact
        self._evaluation, self._smoothing = evaluation, smoothing
        self._begun = False

    def __call__(self, records: Indices, side: int = 1, batch: Batch | None = None) -> _Seen:
        """The losses of some records at x + side lambda u. Raises RaisedError."""
        trace = Trace(len(records) if self.exact else 0)
        try:
            batch = batch or self._evaluation.batch(records)
            with self.weights.shifted(0, side * self._smoothing), trace:
                values = self._evaluation.losses(self.weights.module, batch)
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
        """The losses at both points, one after the other and in one pass, and `Trace.coarsest` of the former."""
        trace = Trace(0)
        points = [(0, self._smoothing), (0, -self._smoothing)]
        try:
            ask = partial(self._evaluation.where_they_are, batch=self._evaluation.batch(records))
            with trace:
                apart = on_host(self.weights.evaluated(points, ask))
            together = on_host(self.weights.evaluated(points, ask, 2)) if at_once > 1 else apart
            return apart, together, trace.coarsest
        except Exception as error:
            raise RaisedError(error) from error

    def evaluates(self, record: int) -> bool:
        """Whether a record by itself has a loss at both points."""
        try:
            batch = self._evaluation.batch(np.array([record]))
            for side in (1, -1):
                with self.weights.shifted(0, side * self._smoothing):
                    self._evaluation.losses(self.weights.module, batch)
        except Exception:
            return False
        return True


def evaluable(work: Callable[[Indices], T], look: Look, records: Indices) -> T:
    """What `work` returns for these records or, where a loss or the reading raises, for those that can be evaluated.

    In a run a record whose loss raises counts as 0, so it is left out here and nothing is said. An error that every
    record raises by itself is raised, and so is one that only several together raise: that is how the losses, or
    `collate`, are made.
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
    """Whether the losses keep records apart, in fewer than ten evaluations of a micro-batch as the run makes it.

    rows: of a micro-batch. mode: one of `isolation.ISOLATIONS`. Raises ValueError in one line that says what was seen,
    or what the losses raise (`evaluable`). The module's buffers are then as they were.
    """
    largest = plan.batches.batch_size(plan.n)
    if largest is None:
        largest = math.ceil(plan.expected_batch + _DEVIATIONS * math.sqrt(plan.expected_batch))
    rows = min(rows, plan.n, rows if mode == "exact" else max(2, largest))
    count = min(plan.n, 2 * rows)
    fetch = Alike(data, collate)
    look = Look(weights, Evaluation(losses, fetch), plan.smoothing, exact=mode == "exact" and rows > 1)
    places = np.arange(count) * plan.n // count
    lengths: dict[int, int] = {}
    if type(data) is not TensorDataset:
        read = dict(zip(places.tolist(), each(data, places.tolist()), strict=True))
        lengths = {number: length_of(record) for number, record in read.items()}
        same = of_all(each(data, places.tolist()), b"") == of_all(read.values(), b"")
        if not (same or (_by_chance(data, places.tolist()) and fetch.hold(read))):
            raise ValueError(f"{_RULE}; got data that give a record otherwise when it is read again: {_DRAWS}")
        del read
    found = evaluable(
        lambda records: _probed(look, fetch, records, [lengths.get(i, 0) for i in records], rows), look, places
    )
    if len(data) != plan.n:
        raise ValueError(f"data must hold as many records at all times; got {plan.n} and then {len(data)}")
    if found.shapes:
        _require_one_shape(data, collate)
    return found


def _by_chance(data: Data, numbers: list[int]) -> bool:
    """Whether a data set draws from a source that cannot be set, such as the system's: equal copies read differently.

    A data set that goes by what was read before gives equal copies the same, if it keeps that itself.
    """
    try:
        copies = [copy.deepcopy(data) for _ in range(2)]
    except Exception:
        return False
    one, other = (of_all(each(each_copy, numbers), b"") for each_copy in copies)
    return one != other


def _probed(look: Look, fetch: Alike, records: Indices, lengths: list[int], rows: int) -> ProbeResult:
    draw = np.random.default_rng(0)
    order = draw.permutation(len(records))
    ends = [np.argmin(lengths), np.argmax(lengths)] if len(set(lengths)) > 1 else []
    order = np.concatenate([ends, order[~np.isin(order, ends)]]).astype(np.int64)
    records = np.resize(records[order], max(len(records), rows))
    kept = draw.random(rows) < 0.5
    kept[:2] = [True, False][:rows]  # the shortest record stays, and the longest is replaced
    first = look(records[:rows])
    look.weights.require_used()
    compared = _Comparison(look, first)
    others = records[rows:]
    shapes = compared.together(others, kept, fetch) if rows > 1 else compared.one_by_one(others)
    return ProbeResult(compared.rounding, shapes, first.values, first.trace.coarsest)


class _Comparison:
    """Compares the first evaluation with others that hold some of the same records.

    rounding: as of `ProbeResult`, over what was compared so far.
    """

    def __init__(self, look: Look, first: _Seen) -> None:
        self._look, self._first = look, first
        self._steady = look.weights.parameters[0].device.type == "cpu"  # there equal operations give equal bits
        self.rounding = 0.0

    def one_by_one(self, others: Indices) -> dict[int, str]:
        """Compare evaluations where a micro-batch is one record."""
        for record in others[:-1]:
            self._look(np.array([record]))
        self._twice(others[-1:] if len(others) else self._first.records)
        return {}

    def together(self, others: Indices, kept: NDArray[np.bool_], fetch: Alike) -> dict[int, str]:
        """Compare where a micro-batch has several records. Returns the shapes that are exact, if that is asked for.

        others: records that replace those of the first evaluation that are not `kept`.
        """
        first, look = self._first, self._look
        records, rows = first.records, len(first.records)
        every, stayed, went = np.arange(rows), np.flatnonzero(kept), np.flatnonzero(~kept)
        beside = look(_exchanged(records, kept, others))
        below = look(records, -1, first.batch)
        beside_below = look(_exchanged(records, ~kept, others), -1)
        turned = self._twice(records[::-1])
        shapes = self._shape([beside, below, beside_below, turned]) if look.exact else {}
        hint = _ONE_BY_ONE if fetch.by_place else ""
        self._compare(beside, first, stayed, stayed, f"with other records beside it{hint}")
        self._compare(beside_below, below, went, went, f"with other records beside it{hint}")
        if not fetch.by_place:
            self._compare(turned, first, every[::-1], every, "in another place of the batch")
        if not look.exact:
            for places in (every[: len(stayed)] if fetch.by_place else stayed, every[:1]):
                how = f"among {len(places)} of {rows} records, with the padding of these{hint}"
                self._compare(look(records[places]), first, every[: len(places)], places, how)
            size = largest(first.values)
            single = bool((first.values.astype(np.float32) == first.values).all())
            self.rounding = max(self.rounding, float(np.spacing(np.float32(size) if single else size)))
            return {}
        for places in (every[: rows >> by] for by in (1, 2, 3) if rows >> by):
            seen = look(records[places])
            if not first.trace.first_difference(seen.trace, places, places):
                shapes[len(places)] = shape_of(seen.batch.content)
        return shapes

    def _twice(self, before: Indices) -> _Seen:
        """Evaluate some records, and the first ones again with what that has left in buffers, which must not go on."""
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
        """Raise ValueError unless records in places `here` have what they had in places `there` of the reference."""
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
                raise ValueError(f"{_RULE}; got one that changes by {gap:.1g} (of {size:.1g}) {how}")
            self.rounding = max(self.rounding, gap)
        exact = self._look.exact
        operation = seen.trace.first_difference(reference.trace, here, there) if exact else ""
        if exact and (operation or changed.any()):
            raise ValueError(
                f"isolation 'exact' needs operations that keep records apart; {operation or 'one'} gives a record other"
                f" bits {how}: use another micro_batch, or 1"
            )

    def _shape(self, others: list[_Seen]) -> dict[int, str]:
        """The shape that all these batches have, by its number of rows.

        Raises ValueError where they have several shapes, and where operations go by values.
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
        return {len(first.records): shape}


def _require_one_shape(data: Data, collate: Collate) -> None:
    """Raise ValueError unless the records, or `RECORDS` of them, are of one shape each by itself."""
    fetch, count = fetcher(data, collate), min(len(data), RECORDS)
    shapes = set()
    for index in range(count):
        with suppress(Exception):  # a record that cannot be read counts as 0
            shapes.add(shape_of(fetch(np.array([index * len(data) // count]))))
    if len(shapes) > 1:
        raise ValueError(_ONE_SHAPE)


def _exchanged(records: Indices, kept: NDArray[np.bool_], others: Indices) -> Indices:
    """The same records where they are kept, and others in the other places: kept ones again where there are none."""
    theirs = np.resize(others if len(others) else records[kept], len(records))
    return np.where(kept, records, theirs)


def equal(one: Any, other: Any) -> Any:
    """Whether numbers are equal, entry by entry, where NaN equals NaN."""
    return (one == other) | ((one != one) & (other != other))


def rounding(eps: float, size: float) -> float:
    """The largest change of losses of this size that is taken for rounding; eps: as `Trace.coarsest`."""
    return float(eps ** (2 / 3)) * (size + _SMALL)


def largest(values: Array) -> float:
    """The largest magnitude of the finite values; 0 if there are none."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
