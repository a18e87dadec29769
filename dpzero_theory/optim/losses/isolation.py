"""Tests before a run begins that the loss of a record depends on no other record.

A run clips each record's change of loss by itself, so replacing a record must not change the loss of another one.
`examine` evaluates a few records, spread over the data set, at two shifted weights, in micro-batches that are read and
collated as in the run. It compares a record's losses when the record is evaluated

    again, after other records          which shows randomness such as dropout, and state that is kept between calls
    with other records in its batch     which shows batch statistics, contrastive losses, sums over the batch
    alone                               which shows dependence on the place in the batch, its size, or padding

The loss function is refused if a loss changes by more than rounding, about eps^(2/3) times the largest loss, where eps
is the unit roundoff of the coarsest number type in use. No change at all is allowed if the same operations ran on
tensors of the same shapes, or if an engine says that its losses do not depend on the batch (`Engine.invariant`).

The test does not find a dependence through rare values, after many calls, in batches of other sizes, below rounding, or
through plain attributes that the first batch sets; nor records that were made of several people's data. Whether it
raises depends on private records, so the outcome must not be published.
"""

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dpzero_theory.check import Array
from dpzero_theory.optim.engines.engine import Engine, trained
from dpzero_theory.optim.engines.probe import largest, rounding
from dpzero_theory.optim.engines.probe import probe as compare_engine
from dpzero_theory.optim.losses.evaluation import Evaluation, Losses
from dpzero_theory.optim.losses.records import Collate, Data
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.optim.weights.shifted import NONE
from dpzero_theory.privacy.schedule import Indices

ISOLATIONS = ("probed", "exact")
"""The values of a run's setting `isolation`, which says how the loss of a record is kept independent of other records.

"probed": a few records were tested before the run (`examine`). The last bits of a loss may still depend on the size of
the record's batch and on padding, because GPU and CPU kernels round by shape. "exact": each record is evaluated alone,
or by an engine with `Engine.invariant`, so that no bit of its loss depends on another record.
"""
_TRIED = 64  # Up to this many records are tried, to find two whose losses can be evaluated and have their shape tested.
_LOOKED_AT = 32  # The number of records whose losses show whether a run would learn anything (`_require_signal`).
_MOST_LOST = 0.25  # A run is refused if more than this share of the `_LOOKED_AT` records has no finite loss.
_FEWEST = 6  # The losses of at least this many records (or all) are compared, however small a micro-batch is.
_DEVIATIONS = 6  # A random batch of expected size b is taken to have at most b + 6 sqrt(b) records.
_VISIBLE = 0.1  # A warning is given if rounding may move the sum over an expected batch by this share of the clip.
_T = TypeVar("_T")


def examine(
    weights: Weights,
    losses: Losses,
    data: Data,
    collate: Collate,
    plan: Plan,
    ranks: Ranks,
    micro_batch: int,
    points_at_once: int = 1,
    *,
    probe: bool,
) -> Evaluation:
    """Test on a few records that the loss of a record depends on no other record, and return an `Evaluation` for the
    run.

    The module is left as it was. A warning says if trainable weights are in half precision. Another says if one record
    may, by rounding alone, move the other records' differences by a tenth of the clip or more, summed over an expected
    batch; the privacy guarantee does not cover this.

    Args:
        weights: the trainable weights of the run's module.
        losses: a function (module, batch) -> losses of shape (records,), one for each record of the batch; or an
            `engines.engine.Engine`, a server that evaluates the losses.
        data: the records of the run, a map-style data set.
        collate: a function from a list of records to a batch; torch's default_collate if None.
        plan: the settings of the run.
        ranks: the processes of the run, each of which must call this function.
        micro_batch: how many records the run evaluates in one forward pass, an integer >= 1.
        points_at_once: how many shifted weights the run evaluates in one forward pass, an integer >= 1. If it is above
            1, the losses of two records in such a pass are compared with their losses in separate passes.
        probe: whether losses in different batches are compared. If False, only these are tested: the shape of two
            records' losses, that they read every trainable parameter, that not all derivatives are 0 (if the plan has
            exact differences), `points_at_once`, and whether an engine serves the model.

    Returns:
        An `Evaluation`, with which the run reads records and evaluates their losses.

    Raises:
        ValueError: the loss of a record depends on other records, or changes when it is evaluated again; the losses do
            not have shape (records,); no loss reads some trainable parameter; a layer of bitsandbytes mixes records;
            more than a quarter, and at least two, of 32 evenly spread records have no finite loss; no loss changes
            between the two shifted weights although it has a derivative, or all derivatives are 0; losses change by
            more than rounding with `points_at_once`; or an engine does not serve the module's model (`engines.probe`).
        Exception: what the loss function raises, if it raises for every record.
    """
    look = _Look(weights, losses, data, collate, plan)
    places, few = _evenly_spread(_TRIED, plan.n), min(2, micro_batch)

    def work() -> None:
        rounding = 0.0
        if isinstance(losses, Engine) and ranks.rank == 0:
            compare_engine(losses, weights.module, trained(weights.module))
        if probe:
            _require_no_shared_columns(weights.module)
            values, rounding = _probed(look, micro_batch)
        else:
            values = look.evaluable(lambda records: look(records[:few]), places).values
            weights.require_used()
        if not plan.smoothing and not values.any():  # A run learns nothing if all derivatives are 0, as of a 0-1 loss.
            raise ValueError(f"{NONE}: the derivatives of all {values.shape[1]} records that were looked at are 0")
        if points_at_once > 1:
            look.evaluable(lambda records: look.require_stackable(records[:few]), places)
        if probe and ranks.rank == 0:
            _warn(rounding, plan, weights)

    try:
        ranks.every(work)
        return Evaluation(losses, data, collate)
    finally:
        weights.untrained.settle()


def _evenly_spread(count: int, n: int) -> Indices:
    return np.unique(np.arange(count) * n // count)


class _FailedError(Exception):
    """Raised if the loss function, or reading a batch, raises an exception, which is its `__cause__`."""


class Trace(TorchDispatchMode):
    """A context manager that records the operations that torch runs inside its block.

    Attributes:
        operations: a tuple of strings for each operation, in order: its name, and the shape and type of each result.
        coarsest: the largest unit roundoff of an operation (the distance from 1 to the next number of its type); 0
            before any floating-point operation.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[str, ...]] = []
        self.coarsest = 0.0

    def add(self, engine: Engine) -> None:
        """Record one evaluation by an engine. Its operations are not known, so it never equals another evaluation."""
        self.operations.append((f"evaluation {id(self)}",))
        self.coarsest = max(self.coarsest, engine.rounding)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        found = [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        sizes = [t.numel() if t.is_nested else f"{tuple(t.shape)} {t.dtype}" for t in found]
        self.operations.append((str(func), *map(str, sizes)))
        for tensor in found:
            if tensor.is_floating_point() or tensor.is_complex():
                self.coarsest = max(self.coarsest, torch.finfo(tensor.dtype).eps, _reduced_rounding(func, tensor))
        return result


def _reduced_rounding(func: Any, tensor: Tensor) -> float:
    # Returns the unit roundoff of TF32 or bfloat16 if torch's settings allow these in a float32 operation, else 0.
    coarse = {"highest": 0.0, "high": 2.0**-10, "medium": 2.0**-7}[torch.get_float32_matmul_precision()]
    if func is torch.ops.aten.convolution.default and tensor.is_cuda and torch.backends.cudnn.allow_tf32:
        coarse = max(coarse, 2.0**-10)
    return coarse if tensor.dtype == torch.float32 else 0.0


class _Seen(NamedTuple):
    values: Array  # the losses of records, shape (points, records)
    trace: Trace  # the operations that computed them


# Evaluates records at two points, the shifted weights from which a run computes the first difference of its first step,
# so that a record's losses in several batches can be compared. With the weights x, the direction u and the smoothing
# lambda, points 0 and 1 are x + lambda u and x - lambda u for central differences, and x and x + lambda u for forward
# ones. For exact differences the values at "points" 0 and 1 are derivatives at x along the first two directions.
class _Look:
    def __init__(self, weights: Weights, losses: Losses, data: Data, collate: Collate, plan: Plan) -> None:
        def traced(module: nn.Module, batch: Any) -> object:
            with self._trace:
                found = losses(module, batch)
            if isinstance(losses, Engine):
                self._trace.add(losses)
            return found

        self.invariant = isinstance(losses, Engine) and losses.invariant
        self.weights, self.plan, self._evaluation = weights, plan, Evaluation(traced, data, collate)
        self._points = plan.difference_rule.at(range(2), plan.smoothing)[:2]
        self._trace = Trace()

    def __call__(self, records: Indices, points: tuple[int, ...] = (0, 1), at_once: int = 1) -> _Seen:
        # Returns the losses of the records with the indices `records` at one or both of two shifted weights, 0 and 1,
        # evaluated in the order of `points`, `at_once` in one forward pass. Raises _FailedError for any exception.
        self._trace = Trace()
        try:
            batch = self._evaluation.batch(records, alike=True)
            values = self._evaluation.at(self.weights, [self._points[p] for p in points], batch, at_once)
        except Exception as error:
            raise _FailedError from error
        return _Seen(values[np.argsort(points)], self._trace)  # The row of point 0 comes before that of point 1

    def change(self, values: Array) -> Array:
        # Returns each record's loss at the first shifted weights minus that at the second, shape (records,), from the
        # losses `values`, shape (2, records). With exact differences `values` are derivatives; the first are returned.
        with np.errstate(invalid="ignore"):  # No warning is due: a step clips infinite changes, and counts NaN as 0.
            found: Array = values[0] - values[1] if self.plan.smoothing else values[0]
        return found

    def stuck(self, record: int, value: float) -> bool:
        # Returns whether the loss of the record with this index, `value` at both shifted weights, is the same at the
        # unshifted weights x too, although it has a derivative. Such a loss does not change because of rounding, or
        # because no token is labelled, and a run learns nothing from it. False for a loss without a derivative, such as
        # a 0-1 loss, which may well be the same at three points.
        batch, sloped = self._evaluation.batch(np.array([record]), alike=True), False

        def ask(module: nn.Module) -> Tensor:
            nonlocal sloped
            sloped = self._evaluation.differentiable(module, batch)
            return self._evaluation.losses(module, batch=batch)

        (found,) = self.weights.evaluated([(0, 0.0)], ask)
        return float(found) == value and sloped

    def require_stackable(self, records: Indices) -> None:
        apart, together = self(records), self(records, at_once=2)
        gap = _gap(together.values, apart.values)
        if not gap <= _rounding(apart, together):
            raise ValueError(f"points_at_once must be 1 for these losses: together they change by {gap:.1g}")

    def evaluable(self, work: Callable[[Indices], _T], records: Indices) -> _T:
        # Returns work(records) or, if that fails, work(records that can be evaluated alone). If that fails too, or if
        # none or all of the records can be evaluated alone, the exception of the loss function is raised.
        try:
            return work(records)
        except _FailedError as error:
            failed = error
        kept = []
        for record in records:
            with suppress(_FailedError):
                self(np.array([record]))
                kept.append(record)
        if 0 < len(kept) < len(records):
            try:
                return work(np.array(kept, np.int64))
            except _FailedError as error:
                failed = error
        assert failed.__cause__ is not None
        raise failed.__cause__


def _probed(look: _Look, micro_batch: int) -> tuple[Array, float]:
    # Returns the losses of a batch that it chooses, shape (2, batch), and their largest change by rounding. Raises what
    # the losses raise for all records, and ValueError if a loss changes by more or a run would learn nothing from them.
    plan = look.plan
    most = plan.sampling.batch_size(plan.n)
    if most is None:
        most = math.ceil(plan.expected_batch + _DEVIATIONS * math.sqrt(plan.expected_batch))
    rows = min(micro_batch, plan.n, max(2, most))
    places, used = _evenly_spread(min(plan.n, max(2 * rows, _FEWEST)), plan.n), 0

    def work(records: Indices) -> tuple[Array, float]:
        nonlocal used
        used = len(records)
        return _compared(look, records, rows)

    values, rounding = look.evaluable(work, places)
    change = look.change(values)
    if np.isnan(change).any() or not change.any() or used < len(places):
        _require_signal(look)
    return values, rounding


def _compared(look: _Look, records: Indices, rows: int) -> tuple[Array, float]:
    # Evaluates a batch of `rows` of the records, drawn at random; a second batch, in which other records replace some
    # of these; the first batch again; and its first and its last record alone. Compares each record's losses with those
    # in the first batch. Returns the losses in the first batch, shape (2, rows), at the two weights at which `look`
    # evaluates them, and the largest change that was taken for rounding. Raises ValueError if a loss changes by more,
    # and _FailedError if the loss function raises.
    draw = np.random.default_rng(0)
    records = np.resize(draw.permutation(records), max(len(records), rows))
    here, others = records[:rows], records[rows:]
    first, rounding = look(here), 0.0
    look.weights.require_used()
    kept, every = draw.random(rows) < 0.5, np.arange(rows)
    kept[:2] = [True, False][:rows]
    stayed = np.flatnonzero(kept)
    if rows > 1:
        beside = look(np.where(kept, here, np.resize(others if len(others) else here[kept], rows)))
    else:
        for other in others:
            look(np.array([other]), (0,))
    # The shifted weights change places: a loss function that keeps a state or changes the batch returns other losses.
    again = look(here, (1, 0))
    # On a CPU equal operations give equal bits. On other devices they are taken to if `again` has the bits of `first`.
    steady = look.weights.parameters[0].device.type == "cpu" or bool(_same(again.values, first.values).all())

    def require_same(seen: _Seen, here: Indices, there: Indices, how: str) -> None:
        # Compares the records in the columns `here` of `seen` with the same records in the columns `there` of the first
        # evaluation. `how` says for the message how the two evaluations differ.
        nonlocal rounding
        found, expected = seen.values[:, here], first.values[: len(seen.values), there]
        if _same(found, expected).all():
            return
        gap = _gap(found, expected)
        alike = look.invariant or (steady and sorted(seen.trace.operations) == sorted(first.trace.operations))
        if alike or not gap <= _rounding(seen, first):
            size, coarse = largest(seen.values, first.values), seen.trace.coarsest > 1e-6
            raise ValueError(
                f"losses must give each record a number of its own; got one that changes by {gap:.1g} (of {size:.1g})"
                f" {how}{'; half precision may round so much: load the model in float32' if coarse else ''}"
            )
        rounding = max(rounding, gap)

    drawn = "the data set must draw what is random, as it reads a record, from torch's, numpy's or Python's generator"
    require_same(again, every, every, f"when it is evaluated again, after others ({drawn})")
    if rows > 1:
        require_same(beside, stayed, stayed, "with other records beside it")
        alone = (
            "alone, without padding (of texts, pad on the right: tokenizer.padding_side = 'right', or to one length)"
        )
        for place in (every[:1], every[-1:]):
            require_same(look(here[place], (0,)), every[:1], place, alone)
        single = bool((first.values.astype(np.float32) == first.values).all())
        size = largest(first.values)
        rounding = max(rounding, float(np.spacing(np.float32(size) if single else size)))
    return first.values, rounding


def rounded_by(
    weights: Weights, losses: Losses, data: Data, collate: Collate, plan: Plan, records: Indices, rows: int
) -> float:
    """Return the largest change of a record's loss by rounding, between evaluating it with other records and alone.

    The losses are evaluated at the weights of the plan's first difference, such as x + lambda u and x - lambda u.

    Args:
        weights: the trainable weights x of the module.
        losses: a function (module, batch) -> losses of shape (records,), or an `Engine`.
        data: a map-style data set.
        collate: a function from a list of records to a batch; torch's default_collate if None.
        plan: the settings of the run, with the difference rule and lambda.
        records: the indices in `data` of the records to evaluate.
        rows: how many of them make a batch, an integer >= 1.

    Raises:
        ValueError: a loss changes by more than rounding can explain.
        Exception: what the loss function raises.
    """
    look = _Look(weights, losses, data, collate, plan)
    return look.evaluable(lambda found: _compared(look, found, rows), records)[1]


def visibility(rounded: float, plan: Plan) -> float:
    """Return how much rounding may change the sum along one direction of the finite differences of the records of a
    batch of the expected size, in units of a tenth of the clip. The start of a run warns if the result is 1 or more.

    `rounded` is the largest change of a loss by rounding, as `rounded_by` returns it. `plan` has a clip above 0.
    """
    moved = rounded * plan.difference_rule.rounded(plan.smoothing) * plan.expected_batch
    return moved / (_VISIBLE * plan.clip)


def _require_signal(look: _Look) -> None:
    # Raises ValueError if a run would learn nothing: if more than a quarter, and at least two, of up to 32 records have
    # no finite loss, or if no loss differs at the two shifted weights although it has a derivative.
    plan, places = look.plan, _evenly_spread(_LOOKED_AT, look.plan.n)
    values, said = np.full((2, len(places)), math.nan), ""
    for column, record in enumerate(places):
        try:
            values[:, column] = look(np.array([record])).values[:, 0]
        except _FailedError as failed:
            said = said or f" ({type(failed.__cause__).__name__}: {' '.join(str(failed.__cause__).split()):.100})"
    change = look.change(values)
    counts = ~np.isnan(change)
    lost = len(places) - int(counts.sum())
    if lost > max(1, _MOST_LOST * len(places)):
        raise ValueError(
            f"losses must be finite numbers for the records; got none for {lost} of {len(places)} that were looked at"
            f"{said}: they would count as 0, and spend the budget on nothing (a label that is no class of the model?)"
        )
    same = plan.smoothing > 0 and counts.any() and not change[counts].any()
    if same and look.stuck(places[counts][0], values[0][counts][0]):
        raise ValueError(
            f"losses must change with the weights; got the same at both points for all {counts.sum()} records that"
            f" were looked at: no token or class may be labelled, or smoothing = {plan.smoothing:g} may be too small"
            f" for {str(look.weights.parameters[0].dtype).removeprefix('torch.')}"
        )


def _require_no_shared_columns(module: nn.Module) -> None:
    # If a record's input has an entry above LLM.int8's threshold for outliers, a layer of bitsandbytes multiplies that
    # column of the inputs of all records in half precision, so that their losses depend on that record.
    for name, part in module.named_modules():
        threshold = getattr(getattr(part, "state", None), "threshold", 0.0)
        if type(part).__name__ == "Linear8bitLt" and threshold > 0:
            raise ValueError(
                f"module must keep records apart; got {name} in 8 bits with llm_int8_threshold = {threshold:g}, by"
                " which outliers of one record change the others' products: load it with"
                " BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0), or in 4 bits"
            )


def _warn(rounded: float, plan: Plan, weights: Weights) -> None:
    # `rounded` is the largest change of a loss that was taken for rounding.
    if any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in weights.parameters):
        warnings.warn(
            "module has trainable weights in half precision, where steps below the spacing of its numbers vanish: make"
            " them float32 and evaluate the losses under torch.autocast(device, torch.bfloat16)",
            stacklevel=2,
        )
    shift = rounded * plan.difference_rule.rounded(plan.smoothing)
    if plan.clip and not visibility(rounded, plan) < 1:
        what, instead = ("losses", " or a larger smoothing") if plan.smoothing else ("derivatives", "")
        warnings.warn(
            f"smoothing = {plan.smoothing:g} makes rounding visible: it moves {what} by {rounded:.1g}, so other"
            f" records can move a record's difference by {shift:.1g} (clip = {plan.clip:g}): use isolation='exact'"
            f"{instead}",
            stacklevel=2,
        )


def _same(one: Array, other: Array) -> NDArray[np.bool_]:
    # NaN equals NaN here: a record whose loss is NaN each time does not depend on other records.
    return np.asarray((one == other) | ((one != one) & (other != other)))


def _gap(one: Array, other: Array) -> float:
    with np.errstate(invalid="ignore"):
        gaps = np.where(_same(one, other), 0.0, np.abs(one - other))  # NaN if only one of two entries is
    return float(np.where(np.isnan(gaps), np.inf, gaps).max())


def _rounding(one: _Seen, other: _Seen) -> float:
    return rounding(max(one.trace.coarsest, other.trace.coarsest), one.values, other.values)
