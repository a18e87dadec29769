"""A record's loss is its own: looked at before a private run begins, and how it is kept so.

What is clipped is one record's difference, so a neighbouring data set may change no other record's. That holds if the
losses give record i a number that depends on record i and the weights alone. `probe` evaluates a few records, spread
over the data set, at x + lambda u and x - lambda u, in micro-batches read and collated as the run does it (draws of
the global generators made alike, `records.Alike`), and compares what a record gets:

    evaluated again, after others        randomness (dropout that stays on), a state kept between calls
    with other records beside it         batch statistics, contrast, ranks, sums over the batch
    in another order                     a dependence on the place in the batch
    among half as many, and alone        a dependence on the number of records, on padding

A record whose loss raises counts as 0 in a run, and is left out here (`_evaluable`). What losses leave in buffers is
put back after each evaluation (`untrained`), here as in the run.

Refused is what changes by more than rounding can, and by any bit at all where the same operations ran on tensors of
the same shapes (so that not even a tiny coupling through contents passes, where kernels are deterministic); and
buffers that go on changing. Rounding is taken to be below eps^(2/3) of the largest loss, eps of the coarsest type that
any operation used. What cannot be seen: couplings that these records do not show (through rare values, after many
calls, of sizes that were not tried), such as are below rounding and show only in another shape, values of the very
first batch or record that the losses, or a data set's cache, keep for good in plain attributes, and a data set that
makes an entry out of several people's records.
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

import copy
import math
import warnings
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
from dpzero_theory.optim.step.distributed import Ranks, named
from dpzero_theory.optim.weights.layers import streamed
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.schedule import Indices

ISOLATIONS = ("probed", "exact")
_RULE = "losses must give each record a number of its own"
_ONE_SHAPE = (
    "isolation 'exact' needs batches of one shape: pad and cut records to one length in the data set or in collate, or"
    " use micro_batch=1"
)
_DRAWS = "what is drawn at random must come from torch's, numpy's or Python's global generator"
_ONE_BY_ONE = " (where reading draws at random, read records one by one: a data set without __getitems__)"
_DEVIATIONS = 6  # of a Poisson batch's size, which hardly any batch exceeds
_TRIED = 64  # records
T = TypeVar("T")
_SMALL = 0.1  # losses below it are compared as if they were this large
_VISIBLE = 0.1  # of the clip


class Found(NamedTuple):
    """What a probe has found.

    rounding: the largest change of a loss that was taken for rounding, or the spacing of floating-point numbers there
    if that is larger; 0 where isolation is exact. shapes: for `Evaluation`. values, coarsest: the losses of the first
    records, and of `Trace`: for other processes.
    """

    rounding: float
    shapes: dict[int, str]
    values: Array
    coarsest: float


def examine(
    weights: Weights,
    losses: Losses,
    data: Data,
    collate: Collate,
    plan: Plan,
    ranks: Ranks,
    micro_batch: int,
    isolation: str,
    points_at_once: int = 1,
) -> Evaluation:
    """How the run evaluates the losses, once the start has looked at them; after an exception the module is as it was.

    isolation: of `ISOLATIONS`, for `probe`; empty to look at the shape of two records' losses alone. points_at_once:
    must give the losses of two records that each point gives by itself. Layers that are streamed must be called as a
    step calls them. Raises ValueError, or what the losses raise.
    """
    evaluation = Evaluation(losses, fetcher(data, collate))
    places, few = np.unique(np.arange(_TRIED) * plan.n // _TRIED), min(2, micro_batch)

    def look() -> None:
        if isolation:
            found.append(probe(weights, losses, data, collate, plan, micro_batch, isolation))
        else:
            seen = _Look(weights, Evaluation(losses, Alike(data, collate)), plan.smoothing, exact=False)
            first = _evaluable(lambda records: seen(records[:few]), seen, places)
            weights.require_used()
            found.append(Found(0.0, {}, first.values, first.trace.coarsest))
        alone = _Look(weights, evaluation, plan.smoothing, exact=False)
        if points_at_once > 1:
            _evaluable(lambda records: _require_stackable(alone, records[:few], points_at_once), alone, places)
        elif streamed(weights.module):
            _evaluable(lambda records: alone.at_points(records[:few], 1), alone, places)

    found: list[Found] = []
    try:
        ranks.every(look)
        _require_same_losses(ranks.gathered((found[0].values, found[0].coarsest)), exact=isolation == "exact")
        if isolation and ranks.rank == 0:
            warn(found[0], plan)
        return Evaluation(losses, fetcher(data, collate), found[0].shapes)
    except BaseException:
        weights.restore()
        raise
    finally:
        weights.untrained.settle()


def _require_same_losses(found: list[tuple[Array, float]], *, exact: bool) -> None:
    """Raise ValueError naming the ranks whose losses of the first records are others than those of rank 0."""
    first, coarsest = found[0]

    def same(values: Array, eps: float) -> bool:
        if values.shape != first.shape:
            return False
        with np.errstate(invalid="ignore"):
            gap = np.where(_equal(values, first), 0.0, np.abs(values - first)).max()
        return bool(gap <= (0 if exact else _rounding(max(eps, coarsest), _largest(np.stack([values, first])))))

    others = [rank for rank, (values, eps) in enumerate(found) if not same(values, eps)]
    if others:
        raise ValueError(
            "losses, collate and the module must give a record the same loss on every rank; other ones than on rank 0"
            f" on {named(others)}"
        )


def _require_stackable(look: "_Look", records: Indices, points_at_once: int) -> None:
    """Raise ValueError unless several points in one pass give these records what each gives them by itself.

    Equal up to rounding, as in `probe`.
    """
    apart, together, coarsest = look.at_points(records, points_at_once)
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.where(_equal(together, apart), 0.0, together - apart)).max()
    if not gap <= _rounding(coarsest, _largest(np.concatenate([apart, together], axis=None))):
        raise ValueError(f"points_at_once must be 1 for these losses: together they change by {gap:.1g}")


def probe(weights: Weights, losses: Losses, data: Data, collate: Collate, plan: Plan, rows: int, mode: str) -> Found:
    """Whether the losses keep records apart, in fewer than ten evaluations of a micro-batch as the run makes it.

    rows: of a micro-batch. mode: of `ISOLATIONS`. Raises ValueError in one line that says what was found, or what the
    losses raise (`_evaluable`); the module's buffers are then as they were.
    """
    largest = plan.batches.batch_size(plan.n)
    if largest is None:
        largest = math.ceil(plan.expected_batch + _DEVIATIONS * math.sqrt(plan.expected_batch))
    rows = min(rows, plan.n, rows if mode == "exact" else max(2, largest))
    count = min(plan.n, 2 * rows)
    fetch = Alike(data, collate)
    evaluation = Evaluation(losses, fetch)
    look = _Look(weights, evaluation, plan.smoothing, exact=mode == "exact" and rows > 1)
    places = np.arange(count) * plan.n // count
    long: dict[int, int] = {}
    if type(data) is not TensorDataset:
        read = dict(zip(places.tolist(), each(data, places.tolist()), strict=True))
        long = {number: length_of(record) for number, record in read.items()}
        same = of_all(each(data, places.tolist()), b"") == of_all(read.values(), b"")
        if not (same or (_by_chance(data, places.tolist()) and fetch.hold(read))):
            raise ValueError(f"{_RULE}; got data that give a record otherwise when it is read again: {_DRAWS}")
        del read
    found = _evaluable(
        lambda records: _probed(look, fetch, records, [long.get(i, 0) for i in records], rows), look, places
    )
    if len(data) != plan.n:
        raise ValueError(f"data must hold as many records at all times; got {plan.n} and then {len(data)}")
    if found.shapes:
        _require_one_shape(data, collate)
    return found


def _by_chance(data: Data, numbers: list[int]) -> bool:
    """Whether a data set draws from a source that nobody can set, as the system's: then equal copies read differently.

    One that goes by what was read before does not, if it keeps that itself.
    """
    try:
        copies = [copy.deepcopy(data) for _ in range(2)]
    except Exception:
        return False
    one, other = (of_all(each(each_copy, numbers), b"") for each_copy in copies)
    return one != other


def _evaluable(work: Callable[[Indices], T], look: "_Look", records: Indices) -> T:
    """What `work` gives for these records or, where a loss or the reading raises, for those of which none does.

    In a run such a record counts as 0, so it is left out here, and nothing is said. Raised is what every record raises
    by itself, and what only several together do: that is how the losses, or `collate`, are made.
    """
    try:
        return work(records)
    except _RaisedError as error:
        raised = error
    kept = np.array([record for record in records if look.evaluates(record)], np.int64)
    if 0 < len(kept) < len(records):
        try:
            return work(kept)
        except _RaisedError as error:
            raised = error
    raise raised.error from raised.error.__cause__


def _probed(look: "_Look", fetch: Alike, records: Indices, lengths: list[int], rows: int) -> Found:
    draw = np.random.default_rng(0)
    order = draw.permutation(len(records))
    ends = [np.argmin(lengths), np.argmax(lengths)] if len(set(lengths)) > 1 else []
    order = np.concatenate([ends, order[~np.isin(order, ends)]]).astype(np.int64)
    records = np.resize(records[order], max(len(records), rows))
    kept = draw.random(rows) < 0.5
    kept[:2] = [True, False][:rows]  # the shortest stays where the longest goes
    first = look(records[:rows])
    look.weights.require_used()
    others = records[rows:]
    shapes = look.together(first, others, kept, fetch) if rows > 1 else look.one_by_one(first, others)
    return Found(look.rounding, shapes, first.values, first.trace.coarsest)


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


class _RaisedError(Exception):
    """The losses, or the reading of a batch, have raised something: `error` says it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


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

    def __init__(self, weights: Weights, evaluation: Evaluation, smoothing: float, *, exact: bool) -> None:
        self.weights, self._evaluation, self._smoothing, self._exact = weights, evaluation, smoothing, exact
        self._steady = weights.parameters[0].device.type == "cpu"
        self._begun = False
        self.rounding = 0.0

    def __call__(self, records: Indices, side: int = 1, batch: Batch | None = None) -> _Seen:
        """The losses of some records at x + side lambda u."""
        trace = Trace(len(records) if self._exact else 0)
        try:
            batch = batch or self._evaluation.batch(records)
            with self.weights.shifted(0, side * self._smoothing), trace:
                values = self._evaluation.losses(self.weights.module, batch)
        except Exception as error:
            said = " ".join(str(error).split())
            if not self._begun or said.startswith(("losses must", "the losses must")):
                raise _RaisedError(error) from error
            found = ValueError(
                f"{_RULE} in every batch; got {type(error).__name__}: {said:.200}, with {len(records)} of them"
            )
            found.__cause__ = error
            raise _RaisedError(found) from error
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
            raise _RaisedError(error) from error

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

    def one_by_one(self, first: _Seen, others: Indices) -> dict[int, str]:
        """Compare where a micro-batch is one record."""
        for record in others[:-1]:
            self(np.array([record]))
        self._twice(first, others[-1:] if len(others) else first.records)
        return {}

    def _twice(self, first: _Seen, before: Indices) -> _Seen:
        """Evaluate some records, and the first ones again with what that has left in buffers, which must not go on."""
        with self.weights.untrained.left() as require_unchanged:
            seen = self(before)
            require_unchanged()
            again = self(first.records)
            require_unchanged()
        every = np.arange(len(first.records))
        self._compare(again, first, every, every, "when it is evaluated again, after others")
        self._steady = self._steady or _equal(first.values, again.values).all()
        return seen

    def together(self, first: _Seen, others: Indices, kept: NDArray[np.bool_], fetch: Alike) -> dict[int, str]:
        """Compare where a micro-batch has several records; the shapes that are exact, if that is asked for."""
        records, rows = first.records, len(first.records)
        every, stayed, went = np.arange(rows), np.flatnonzero(kept), np.flatnonzero(~kept)
        beside = self(_exchanged(records, kept, others))
        below = self(records, -1, first.batch)
        beside_below = self(_exchanged(records, ~kept, others), -1)
        turned = self._twice(first, records[::-1])
        shapes = self._shape(first, [beside, below, beside_below, turned]) if self._exact else {}
        hint = _ONE_BY_ONE if fetch.by_place else ""
        self._compare(beside, first, stayed, stayed, f"with other records beside it{hint}")
        self._compare(beside_below, below, went, went, f"with other records beside it{hint}")
        if not fetch.by_place:
            self._compare(turned, first, every[::-1], every, "in another place of the batch")
        if not self._exact:
            for places in (every[: len(stayed)] if fetch.by_place else stayed, every[:1]):
                how = f"among {len(places)} of {rows} records, with the padding of these{hint}"
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


def _equal(one: Any, other: Any) -> Any:
    """Entry by entry; NaN is NaN."""
    return (one == other) | ((one != one) & (other != other))


def _rounding(eps: float, largest: float) -> float:
    """The largest change of losses of this size that is taken for rounding."""
    return float(eps ** (2 / 3)) * (largest + _SMALL)


def _largest(values: Array) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
