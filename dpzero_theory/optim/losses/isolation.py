"""Tests, before a run begins, that a record's loss depends on that record and the weights alone.

A run clips each record's change of loss by itself, so exchanging one record must change no other record's loss. A few
records, spread over the data set, are evaluated at two points (shifted weights) of a step, in micro-batches that are
read and collated as in the run (with equal draws of the global generators). A record's losses are compared when it is

    evaluated again, after others        shows randomness (dropout that stays on), a state kept between calls
    with other records in its batch      shows batch statistics, contrast, ranks, sums over the batch
    alone                                shows a dependence on the place in the batch, on its size, on padding

Losses are refused if one changes by more than rounding can change it, or by any bit if the same operations ran on
tensors of the same shapes or an engine (`engines.engine`) is batch-invariant. Rounding is taken to be below eps^(2/3)
of the largest loss, where eps is the rounding of the coarsest number type that any operation used. A record whose loss
raises counts as 0 in a run, and is left out here.

These records cannot show everything: not a coupling through rare values, after many calls, in batches of sizes that
were not tried, below rounding, or through what the first batch leaves in plain attributes; and not that entries of the
data set are made of several people's records. Refusals depend on the losses of these records: they are for whoever
holds the data, and not for publication. The module and its buffers are left as they were.

    isolation    what is assured
    probed       what is said above. In floating point a loss's last bits may still depend on how many other records
                 are in its batch and how long they are, since kernels round by shape; a warning says if the smoothing
                 is so small that this is visible
    exact        the bits of a loss depend on the record alone, since every record is evaluated by itself, or by an
                 engine that is batch-invariant (`Engine.invariant`)
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
"""The ways in which it is made sure that a record's loss depends on no other record; the module's text explains
them."""
_TRIED = 64  # The shape of the losses is tested with the first two of at most this many records that can be evaluated.
_LOOKED_AT = 32  # The losses of this many records show whether a run would learn anything (`_require_signal`).
_MOST_LOST = 0.25  # A run is refused if a larger share of these records has no finite loss.
_FEWEST = 6  # Two micro-batches of one or two records show little, so at least this many records (or all) are compared.
_DEVIATIONS = 6  # A batch of random size is taken to have at most q n plus this many times sqrt(q n) records.
_VISIBLE = 0.1  # A warning comes if rounding may move the sum over an expected batch by this share of the clip.
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
    """Test that no record's loss depends on other records: evaluate a few records again, among others, and alone.

    The module is afterwards as it was. A warning says if trainable weights are in half precision, or if rounding is
    visible: if one record may, by rounding alone, change the differences of the other records of an expected batch by a
    tenth of the clip or more in sum, which the guarantee, a bound on what the record itself adds, does not cover.

    Args:
        weights: the trainable weights of the run's module.
        losses: a function (module, batch) -> one loss for each record, shape (batch,), or an `engines.engine.Engine`, a
            server that evaluates them.
        data: the records of the run.
        collate: a function from a list of records to the batch; torch's default_collate if None.
        plan: the plan of the run.
        ranks: the processes of the run, each of which calls this function.
        micro_batch: how many records the run evaluates at a time, an integer >= 1.
        points_at_once: how many points (shifted weights) the run evaluates in one pass, an integer >= 1. If it is above
            1, two records are also evaluated at two points in one pass, and must get the losses that they get in two
            passes.
        probe: whether evaluations are compared. If False, only the shape of two records' losses is tested, and that
            they read every trainable parameter.

    Returns:
        An `Evaluation`, with which the run reads records and evaluates their losses.

    Raises:
        ValueError: a record's loss depends on other records, or changes when it is evaluated again; losses of another
            shape than (batch,); a trainable parameter that no loss reads; a layer of bitsandbytes that mixes records;
            no finite loss for more than a quarter, and at least two, of up to 32 records spread evenly over the data;
            losses that have a derivative but are equal for all of these at the two points of a first step that are
            compared (such as x + lambda u and x - lambda u), or derivatives that are all 0, from which a run learns
            nothing; points_at_once above 1 for losses that do not allow it. With probe=False only the shape, unread
            parameters, derivatives of 0 and points_at_once are refused.
        Exception: what the losses raise, if they raise for every record.
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
        if not plan.smoothing and not values.any():  # Such a loss, for example a 0-1 error, teaches a run nothing.
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
    """Raised if the losses, or the reading of a batch, raise; their exception is the `__cause__`."""


class Trace(TorchDispatchMode):
    """A context manager that records the operations on tensors inside it.

    Attributes:
        operations: for each operation, in order, its name and the shapes and types of its results, as texts.
        coarsest: the coarsest relative rounding of any operation, the distance from 1 to the next number of its type; 0
            without one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[str, ...]] = []
        self.coarsest = 0.0

    def add(self, engine: Engine) -> None:
        # An engine's operations cannot be seen, so no two of its evaluations count as equal: they get unequal names.
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
    # Torch's settings may allow it to compute a float32 result from products in TF32 or bfloat16.
    coarse = {"highest": 0.0, "high": 2.0**-10, "medium": 2.0**-7}[torch.get_float32_matmul_precision()]
    if func is torch.ops.aten.convolution.default and tensor.is_cuda and torch.backends.cudnn.allow_tf32:
        coarse = max(coarse, 2.0**-10)
    return coarse if tensor.dtype == torch.float32 else 0.0


class _Seen(NamedTuple):
    values: Array  # the losses of records, shape (points, records)
    trace: Trace  # the operations that computed them


# Evaluates records at two points, so that a record's losses in several batches can be compared: those from which a run
# computes the first difference of its first step. With x the weights, u the direction and lambda the smoothing, points
# 0 and 1 are x + lambda u and x - lambda u for central differences, and x and x + lambda u for forward ones. For exact
# differences the values at the "points" are derivatives at x along the first two directions.
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
        # The losses of records, whose numbers are given, at one or both of the class's two points, in the order in
        # which `points` has them; `at_once` points are evaluated in one pass. Raises _FailedError for any exception.
        self._trace = Trace()
        try:
            batch = self._evaluation.batch(records, alike=True)
            values = self._evaluation.at(self.weights, [self._points[p] for p in points], batch, at_once)
        except Exception as error:
            raise _FailedError from error
        return _Seen(values[np.argsort(points)], self._trace)  # The row of point 0 comes before that of point 1

    def change(self, values: Array) -> Array:
        # Return each record's loss at point 0 minus its loss at point 1, shape (records,), from the losses `values` of
        # shape (2, records); or with exact differences, where these are derivatives, those at point 0.
        with np.errstate(invalid="ignore"):  # No warning is due: a step clips infinite changes, and counts NaN as 0.
            found: Array = values[0] - values[1] if self.plan.smoothing else values[0]
        return found

    def stuck(self, record: int, value: float) -> bool:
        # Whether the loss of the record with this number, which is `value` at both points, is the same at the weights x
        # too, although it has a derivative. (With forward differences x is one of the points.) Such a loss stays the
        # same because of rounding or for want of a label, and a run learns nothing from it. A 0-1 loss, which has no
        # derivative, may well be the same at three points: for it the answer is False.
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
        # Returns work(records) or, if that fails, work(those records that can be evaluated alone). Raises the exception
        # of the losses if that fails too, or if none or all of the records can be evaluated alone.
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
    # Chooses records and the size of batches for `_compared`, and returns what it returns. Raises ValueError also if a
    # run would learn nothing, and what the losses raise if they raise for every record.
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
    # Of the records, whose numbers are given, `rows` drawn at random are the first batch; in a second one the rest take
    # the place of some of these. Then come the first batch again, and its first and last record alone. Each record's
    # losses are compared with those in the first batch, which are returned, shape (2 points of `look`, rows), with the
    # largest change that was taken for rounding. Raises ValueError if a loss changes by more, and _FailedError if the
    # losses raise.
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
    # The points are evaluated in reverse order, so that losses which change the batch or keep a state differ.
    again = look(here, (1, 0))
    # Equal operations give equal bits on a CPU. On another device this is assumed if they did so in two evaluations.
    steady = look.weights.parameters[0].device.type == "cpu" or bool(_same(again.values, first.values).all())

    def require_same(seen: _Seen, here: Indices, there: Indices, how: str) -> None:
        # Columns `here` of `seen` have the same records as columns `there` of the first evaluation; `how` says in the
        # message in what the evaluations differ.
        nonlocal rounding
        found, expected = seen.values[:, here], first.values[: len(seen.values), there]
        if _same(found, expected).all():
            return
        gap = _gap(found, expected)
        alike = look.invariant or (steady and sorted(seen.trace.operations) == sorted(first.trace.operations))
        if alike or not gap <= _rounding(seen, first):
            size = largest(seen.values, first.values)
            raise ValueError(
                f"losses must give each record a number of its own; got one that changes by {gap:.1g} (of {size:.1g})"
                f" {how}"
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
    """Return the largest change of a record's loss by rounding, when it is evaluated beside other records and alone.

    The start of a run measures this on its private records (`examine`). Here it is measured on the records of `data`
    with the numbers `records`, of which `rows` are evaluated at a time, by the function losses(module, batch), with a
    batch from collate(list of records) (None: torch's default_collate). They are evaluated at the two points of the
    plan's first difference, such as x + lambda u and x - lambda u; `weights` are the module's trainable weights x.
    Raises ValueError if a loss changes by more than rounding, and what the losses raise.
    """
    look = _Look(weights, losses, data, collate, plan)
    return look.evaluable(lambda found: _compared(look, found, rows), records)[1]


def visibility(rounded: float, plan: Plan) -> float:
    """Return how visible rounding is in a run: how far it may move the sum over an expected batch, in units of a tenth
    of the clip. At 1 or more the start of a run warns.

    Args:
        rounded: the largest change of a loss by rounding.
        plan: a plan with a clip above 0.
    """
    moved = rounded * plan.difference_rule.rounded(plan.smoothing) * plan.expected_batch
    return moved / (_VISIBLE * plan.clip)


def _require_signal(look: _Look) -> None:
    # Raises ValueError if a run would learn nothing: if two or more, and more than a quarter, of up to 32 records have
    # no finite loss, or if no loss changes between the two points of a step though it has a derivative.
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
    # NaN counts as the same as NaN, since a record whose loss is NaN each time depends on no other record.
    return np.asarray((one == other) | ((one != one) & (other != other)))


def _gap(one: Array, other: Array) -> float:
    with np.errstate(invalid="ignore"):
        gaps = np.where(_same(one, other), 0.0, np.abs(one - other))  # NaN if only one of two entries is
    return float(np.where(np.isnan(gaps), np.inf, gaps).max())


def _rounding(one: _Seen, other: _Seen) -> float:
    return rounding(max(one.trace.coarsest, other.trace.coarsest), one.values, other.values)
