"""Tests, before a run begins, that a record's loss depends on that record and the weights alone.

What is clipped is the difference of one record, so a neighbouring data set may change no other record's. A few records,
spread over the data set, are evaluated at two points of a step, in micro-batches that are read and collated as the run
does it (with equal draws of the global generators). What a record gets is compared in these cases:

    evaluated again, after others        shows randomness (dropout that stays on), a state kept between calls
    with other records beside it         shows batch statistics, contrast, ranks, sums over the batch
    in another order                     shows a dependence on the place in the batch
    among half as many, and alone        shows a dependence on the number of records, on padding

Losses are refused if one changes by more than rounding can change it, or by any bit where the same operations ran on
tensors of the same shapes. Rounding is taken to be below eps^(2/3) of the largest loss, where eps is that of the
coarsest number type that any operation used. A record whose loss raises counts as 0 in a run, and is left out here.

What these records do not show cannot be seen: a coupling through rare values, after many calls, in batches of sizes
that were not tried, below rounding, or through what the first batch leaves in plain attributes; and a data set whose
entries are made of several people's records. Refusals depend on the losses of these records: they are for whoever holds
the data, and not for publication.

    isolation    what is assured
    probed       what is said above. In floating point a record's last bits may still depend on how many records are
                 beside it and how long they are, since kernels round by shape; a warning says where lambda makes that
                 visible
    exact        the bits of a loss are the record's own. Every micro-batch is filled up to `micro_batch` rows, records
                 must have one length, and the operations must not go by values. In all cases above, alone in a filled
                 batch too, the losses must agree to the last bit. It is assumed that kernels go by shapes, as they were
                 tested on these records, and that all processes compute on equal hardware
"""

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dpzero_theory.check import Array
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.losses.evaluation import Batch, Evaluation, Losses, Shape, on_host, shape_of
from dpzero_theory.optim.losses.identity import MOST_READ, of_all
from dpzero_theory.optim.losses.records import Reading, length_of
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.optim.weights.shifted import NONE
from dpzero_theory.privacy.schedule import Indices

ISOLATIONS = ("probed", "exact")
_RULE = "losses must give each record a number of its own"
_ONE_SHAPE = (
    "isolation 'exact' needs batches of one shape: pad and cut records to one length in the data set or in collate, or"
    " use micro_batch=1"
)
_PADDING = " (of texts, pad on the right: tokenizer.padding_side = 'right', or all to one length)"
_DRAWS = "what is drawn at random must come from torch's, numpy's or Python's global generator"
_TRIED = 64
"""How many records, spread over the data set, are candidates where only the shape of the losses is tested."""
_LOOKED_AT, _MOST_LOST = 32, 0.25
"""How many records are evaluated to see whether there is anything to learn; the share of them that may count as 0."""
_FEWEST = 6
"""A data set is probed by at least so many of its records."""
_DEVIATIONS = 6
"""A batch of random size is taken to have at most its expected size q n plus this many times sqrt(q n) records."""
_SMALL = 0.1
"""Added to the largest loss before a change is compared with it, so that tiny losses may change a little."""
_VISIBLE = 0.1
"""A warning is given where rounding, summed over an expected batch, can move the sum of differences by this share of
the clip or more."""
T = TypeVar("T")


def examine(
    weights: Weights,
    losses: Losses,
    reading: Reading,
    plan: Plan,
    ranks: Ranks,
    micro_batch: int,
    isolation: str,
    points_at_once: int = 1,
) -> Evaluation:
    """Test that the losses keep records apart, as the module's docstring says.

    Args:
        weights, losses, reading, plan, ranks: of the run.
        micro_batch: how many records the run evaluates at a time.
        isolation: a name in `ISOLATIONS`; if it is empty, only the shape of two records' losses is tested.
        points_at_once: how many points the run evaluates in one pass. Above 1, two records must get the losses in one
            pass that each point gives by itself.

    Returns:
        What evaluates the losses in the run.

    Raises:
        ValueError: the losses do not keep records apart. The module is then as it was.
        Exception: what the losses raise for every record.
    """
    alike = _Look(weights, Evaluation(losses, reading.alike), plan)
    places, few = np.unique(np.arange(_TRIED) * plan.n // _TRIED), min(2, micro_batch)
    shape: list[Shape | None] = []

    def look() -> None:
        if isolation:
            _require_no_shared_columns(weights.module)
            rounding, values, found = _probed(alike, reading, micro_batch, exact=isolation == "exact")
        else:
            rounding, found, values = 0.0, None, alike.evaluable(lambda records: alike(records[:few]), places).values
            weights.require_used()
        if not DIFFERENCES[plan.difference].smoothing and not values.any():  # as those of 0-1 losses are
            raise ValueError(f"{NONE}: the derivatives of all {len(values)} records that were looked at are 0")
        if points_at_once > 1:
            run = _Look(weights, Evaluation(losses, reading.batch), plan)
            run.evaluable(lambda records: run.require_stackable(records[:few], points_at_once), places)
        if isolation and ranks.rank == 0:
            _warn(rounding, plan, weights.module)
        shape.append(found)

    try:
        ranks.every(look)
        return Evaluation(losses, reading.batch, shape[0])
    finally:
        weights.untrained.settle()


class _RaisedError(Exception):
    """Raised in place of an exception of the losses, or of the reading of a batch, which is its attribute `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Trace(TorchDispatchMode):
    """A context manager that records the operations on tensors inside it.

    Attributes:
        operations: name, shapes and types of the results of each operation, in order.
        coarsest: the coarsest relative rounding of any operation: the distance from 1 to the next number.
        reads: the first operation that hands a value to the program, which may then go by values; "" if there was none.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[str, ...]] = []
        self.coarsest, self.reads = 0.0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        found = [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        sizes = [t.numel() if t.is_nested else f"{tuple(t.shape)} {t.dtype}" for t in found]
        self.operations.append((str(func), *map(str, sizes)))
        by_value = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags}
        if func is torch.ops.aten.index.Tensor:  # of a place, and not of a mask, the shape goes by no value
            by_value = {index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)}
        if by_value and not self.reads:
            self.reads = str(func)
        for tensor in found:
            if tensor.is_floating_point() or tensor.is_complex():
                self.coarsest = max(self.coarsest, torch.finfo(tensor.dtype).eps, _tensor_cores(func, tensor))
        return result


def _tensor_cores(func: Any, tensor: Tensor) -> float:
    """Return the relative rounding that torch's settings for matrix products and convolutions allow in a float32
    result; 0 where they allow none coarser than float32's."""
    coarse = {"highest": 0.0, "high": 2.0**-10, "medium": 2.0**-7}[torch.get_float32_matmul_precision()]
    if func is torch.ops.aten.convolution.default and tensor.is_cuda and torch.backends.cudnn.allow_tf32:
        coarse = max(coarse, 2.0**-10)
    return coarse if tensor.dtype == torch.float32 else 0.0


class _Seen(NamedTuple):
    """One evaluation: the records' numbers, their batch, the loss of each, and a trace of the operations."""

    records: Indices
    batch: Batch
    values: Array
    trace: _Trace


class _Look:
    """Evaluates records at the first two points of a run, by the plan's difference rule: x + lambda u and x - lambda u
    for central differences, x and x + lambda u for forward ones; for exact ones derivatives along two directions."""

    def __init__(self, weights: Weights, evaluation: Evaluation, plan: Plan) -> None:
        self.weights, self.plan, self.evaluation = weights, plan, evaluation
        self._points = plan.difference_rule.at(range(2), plan.smoothing)[:2]
        self._begun = False

    def __call__(self, records: Indices, which: int = 0, batch: Batch | None = None) -> _Seen:
        """Evaluate records at the point `which`, 0 or 1. batch: theirs, if it was made before. Raises _RaisedError."""
        trace = _Trace()
        try:
            batch = batch or self.evaluation.batch(records)

            def ask(module: nn.Module) -> Tensor:
                with trace:
                    return self.evaluation.losses(module, batch=batch)

            values: Array = on_host(self.weights.evaluated([self._points[which]], ask))[0]
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

    def both(self, records: Indices, at_once: int = 1) -> Array:
        """Return the losses of records at both points, shape (2, records). Raises _RaisedError."""
        try:
            batch = self.evaluation.batch(records)
            ask = partial(self.evaluation.losses, batch=batch)
            return on_host(self.weights.evaluated(self._points, ask, at_once, batch.rows))
        except Exception as error:
            raise _RaisedError(error) from error

    def change(self, one: Array, other: Array) -> Array:
        """Return by how much losses change from one point to the other; `one` itself where they are derivatives."""
        with np.errstate(invalid="ignore"):  # an infinite change counts as the clip in a step, and NaN as 0
            return one - other if self.plan.smoothing else one

    def constant(self, record: int, value: float) -> bool:
        """Whether the record's loss is `value` at x too, though it has a derivative, as a 0-1 loss has not."""
        batch = self.evaluation.batch(np.array([record]))
        sloped: list[bool] = []

        def ask(module: nn.Module) -> Tensor:
            sloped.append(self.evaluation.differentiable(module, batch))
            return self.evaluation.losses(module, batch=batch)

        return bool(on_host(self.weights.evaluated([(0, 0.0)], ask))[0, 0] == value) and sloped[0]

    def require_stackable(self, records: Indices, at_once: int) -> None:
        """Raise ValueError unless both points in one pass give the same losses as one by one, up to rounding."""
        trace = _Trace()
        with trace:
            apart = self.both(records)
        together = self.both(records, min(2, at_once))
        gap = _gap(together, apart)
        if not gap <= _rounding(trace.coarsest, np.concatenate([apart, together])):
            raise ValueError(f"points_at_once must be 1 for these losses: together they change by {gap:.1g}")

    def evaluable(self, work: Callable[[Indices], T], records: Indices) -> T:
        """Return work(records) or, where a loss or the reading raises, `work` for the records that can be evaluated.

        Raises an error that every record raises by itself, or that only several records raise together.
        """
        try:
            return work(records)
        except _RaisedError as error:
            raised = error
        kept = []
        for record in records:
            with suppress(_RaisedError):
                self.both(np.array([record]))
                kept.append(record)
        if 0 < len(kept) < len(records):
            try:
                return work(np.array(kept, np.int64))
            except _RaisedError as error:
                raised = error
        raise raised.error from raised.error.__cause__


def _probed(look: _Look, reading: Reading, rows: int, *, exact: bool) -> tuple[float, Array, Shape | None]:
    """Compare evaluations of a few records, in fewer than ten micro-batches of at most `rows` records.

    Returns the largest change of a loss that was taken for rounding, the losses of the first evaluation, and for
    isolation "exact" the shape that all batches of the run must have.
    """
    plan = look.plan
    most = plan.sampling.batch_size(plan.n)
    if most is None:
        most = math.ceil(plan.expected_batch + _DEVIATIONS * math.sqrt(plan.expected_batch))
    rows = min(rows, plan.n, rows if exact else max(2, most))
    count = min(plan.n, max(2 * rows, _FEWEST))
    places = np.arange(count) * plan.n // count
    lengths: dict[int, int] = {}
    if not reading.tensors:
        read = reading.each(places.tolist())
        lengths = dict(zip(places.tolist(), map(length_of, read), strict=True))
        if of_all(reading.each(places.tolist()), b"") != of_all(read, b""):
            raise ValueError(f"{_RULE}; got data that give a record otherwise when it is read again: {_DRAWS}")
    compared: list[_Comparison] = []

    def work(records: Indices) -> None:
        sizes = [lengths.get(number, 0) for number in records.tolist()]
        compared.append(_Comparison(look, records, sizes, rows, exact=exact))

    look.evaluable(work, places)
    found = compared[-1]
    if found.shape and len(_shapes(reading)) > 1:
        raise ValueError(_ONE_SHAPE)
    if not found.learns or found.count < len(places):
        _require_signal(look)
    if len(reading) != plan.n:
        raise ValueError(f"data must hold as many records at all times; got {plan.n} and then {len(reading)}")
    return found.rounding, found.first.values, found.shape


class _Comparison:
    """Compares what records get beside others, in other places, again, among fewer, and alone.

    It raises ValueError where a record's loss differs. Attributes: `first`, the evaluation of the first records;
    `learns`, whether each of their losses counts in a step, and one of them changes from one point to the other;
    `rounding`, the largest change that was taken for rounding; `shape`, the one shape of all batches, or None.
    """

    def __init__(self, look: _Look, records: Indices, lengths: list[int], rows: int, *, exact: bool) -> None:
        self._look, self._exact, self.count, self.rounding = look, exact and rows > 1, len(records), 0.0
        self._steady = look.weights.parameters[0].device.type == "cpu"  # on a CPU equal operations give equal bits
        self.shape: Shape | None = None
        draw = np.random.default_rng(0)
        order = draw.permutation(len(records))
        ends = [np.argmin(lengths), np.argmax(lengths)] if len(set(lengths)) > 1 else []
        order = np.concatenate([ends, order[~np.isin(order, ends)]]).astype(np.int64)
        records = np.resize(records[order], max(len(records), rows))
        here, others = records[:rows], records[rows:]
        kept = draw.random(rows) < 0.5
        kept[:2] = [True, False][:rows]  # in the second batch the shortest record stays, and the longest is replaced
        first = self.first = look(here)
        look.weights.require_used()
        below = look(here, 1, first.batch)
        change = look.change(first.values, below.values)
        self.learns = not np.isnan(change).any() and bool(change.any())
        if rows == 1:
            for record in others[:-1]:
                look(np.array([record]))
            self._again(others[-1:] if len(others) else here)
            return
        every, stayed, went = np.arange(rows), np.flatnonzero(kept), np.flatnonzero(~kept)
        beside = look(_exchanged(here, kept, others))
        beside_below = look(_exchanged(here, ~kept, others), 1)
        turned = self._again(here[::-1].copy())
        if self._exact:
            self._fix_shape([first, beside, below, beside_below, turned])
        self._compare(beside, first, stayed, stayed, "with other records beside it")
        self._compare(beside_below, below, went, went, "with other records beside it")
        self._compare(turned, first, every[::-1], every, "in another place of the batch")
        for those in (stayed, every[:1]):
            how = f"among {len(those)} of {rows} records, with the padding of these{_PADDING}"
            self._compare(look(here[those]), first, every[: len(those)], those, how)
        if not exact:
            size = _largest(first.values)
            single = bool((first.values.astype(np.float32) == first.values).all())
            self.rounding = max(self.rounding, float(np.spacing(np.float32(size) if single else size)))

    def _again(self, before: Indices) -> _Seen:
        """Evaluate the records `before`, then the first ones again, and return the evaluation of `before`.

        Buffers keep what each evaluation leaves there, and must not change from one to the next.
        """
        with self._look.weights.untrained.left() as require_unchanged:
            seen = self._look(before)
            require_unchanged()
            again = self._look(self.first.records)
            require_unchanged()
        every = np.arange(len(again.records))
        self._compare(again, self.first, every, every, "when it is evaluated again, after others")
        self._steady = self._steady or bool(_equal(self.first.values, again.values).all())
        return seen

    def _compare(self, seen: _Seen, reference: _Seen, here: Indices, there: Indices, how: str) -> None:
        """Raise ValueError unless records have the losses that they had in another evaluation.

        here, there: the places of the same records in `seen` and in `reference`. how: what was different about `seen`.
        """
        found, expected = seen.values[here], reference.values[there]
        if _equal(found, expected).all():
            return
        gap, values = _gap(found, expected), np.concatenate([seen.values, reference.values])
        alike = self._steady and np.array_equal(here, there)
        alike = alike and seen.trace.operations == reference.trace.operations
        if alike or not gap <= _rounding(max(seen.trace.coarsest, reference.trace.coarsest), values):
            one, other = (of_all([each_one.batch.content], b"") for each_one in (seen, reference))
            if np.array_equal(seen.records, reference.records) and one != other:
                raise ValueError(
                    f"{_RULE}; got a collate that makes another batch of the same records when it is called again: what"
                    " is random (masks, say) must be drawn in the data set, where a record is read, and collate only"
                    " join records"
                )
            raise ValueError(f"{_RULE}; got one that changes by {gap:.1g} (of {_largest(values):.1g}) {how}")
        if self._exact:
            raise ValueError(
                "isolation 'exact' needs operations that keep records apart; a record's loss has other bits"
                f" {how}: use another micro_batch, or 1"
            )
        self.rounding = max(self.rounding, gap)

    def _fix_shape(self, seen: list[_Seen]) -> None:
        """Fill batches up to one shape from now on. Raises ValueError where there were several, or where operations may
        go by values."""
        shapes = {shape_of(one.batch.content) for one in seen}
        if len(shapes) > 1:
            raise ValueError(_ONE_SHAPE)
        reads = next((one.trace.reads for one in seen if one.trace.reads), "")
        if reads or any(one.trace.operations != self.first.trace.operations for one in seen):
            raise ValueError(
                f"isolation 'exact' needs operations that do not go by values; got {reads or 'other ones for others'}:"
                " use micro_batch=1 (in transformers an attention_mask of four dimensions helps, as nobody reads it)"
            )
        self.shape = self._look.evaluation.shape = Shape(len(self.first.records), shapes.pop())


def _require_signal(look: _Look) -> None:
    """Raise ValueError where more than a quarter of 32 records have no finite loss, or none of the losses changes from
    one point of a step to the other, though they have derivatives: the run would spend its budget on nothing."""
    plan = look.plan
    places = np.unique(np.arange(_LOOKED_AT) * plan.n // _LOOKED_AT)
    values, said = np.full((2, len(places)), math.nan), ""
    for column, record in enumerate(places):
        try:
            values[:, column] = look.both(np.array([record]))[:, 0]
        except _RaisedError as error:
            said = said or f" ({type(error.error).__name__}: {' '.join(str(error.error).split()):.100})"
    change = look.change(*values)
    counts = ~np.isnan(change)
    lost = len(places) - int(counts.sum())
    if lost > max(1, _MOST_LOST * len(places)):
        raise ValueError(
            f"losses must be finite numbers for the records; got none for {lost} of {len(places)} that were looked at"
            f"{said}: they would count as 0, and spend the budget on nothing"
        )
    same = plan.smoothing > 0 and counts.any() and not change[counts].any()
    if same and look.constant(places[counts][0], values[0][counts][0]):
        raise ValueError(
            f"losses must change with the weights; got the same at both points for all {counts.sum()} records that"
            f" were looked at: no token or class may be labelled, or smoothing = {plan.smoothing:g} may be too small"
            f" for {str(look.weights.parameters[0].dtype).removeprefix('torch.')}"
        )


def _require_no_shared_columns(module: nn.Module) -> None:
    """Raise ValueError for a layer of bitsandbytes in 8 bits that has a threshold for outliers (LLM.int8's default).

    It computes a column of its input in half precision for all records of a batch as soon as one has an entry above the
    threshold there, however few batches show it.
    """
    for name, part in module.named_modules():
        threshold = getattr(getattr(part, "state", None), "threshold", 0.0)
        if type(part).__name__ == "Linear8bitLt" and threshold > 0:
            raise ValueError(
                f"module must keep records apart; got {name} in 8 bits with llm_int8_threshold = {threshold:g}, by"
                " which outliers of one record change the others' products: load it with"
                " BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0), or in 4 bits"
            )


def _shapes(reading: Reading) -> set[str]:
    """Return the shapes of the batches of one record, of at most 1,000 records that can be read, evenly spread."""
    count, found = min(len(reading), MOST_READ), set()
    for index in range(count):
        with suppress(Exception):  # a record that cannot be read counts as 0
            found.add(shape_of(reading.batch(np.array([index * len(reading) // count]))))
    return found


def _warn(moved: float, plan: Plan, module: nn.Module) -> None:
    """Warn of visible rounding and of batch normalisation in eval mode. moved: how much rounding can move a loss."""
    shift = moved * plan.difference_rule.rounded(plan.smoothing)
    if plan.clip and not shift * plan.expected_batch < _VISIBLE * plan.clip:
        what, instead = ("losses", " or a larger smoothing") if plan.smoothing else ("derivatives", "")
        warnings.warn(
            f"smoothing = {plan.smoothing:g} makes rounding visible: it moves {what} by {moved:.1g}, so other"
            f" records can move a record's difference by {shift:.1g} (clip = {plan.clip:g}): use isolation='exact'"
            f"{instead}",
            stacklevel=2,
        )
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and part.track_running_stats:
            fresh = ", which are fresh: it scales and shifts its input, and no more"
            warnings.warn(
                f"module runs in eval mode: dropout is off, and the batch normalisation {name} uses its running"
                f" statistics{'' if part.num_batches_tracked else fresh}",
                stacklevel=2,
            )
            return


def _exchanged(records: Indices, kept: NDArray[np.bool_], others: Indices) -> Indices:
    """Return `records` with `others`, repeated as often as needed, in the places where `kept` is false."""
    theirs = np.resize(others if len(others) else records[kept], len(records))
    return np.where(kept, records, theirs)


def _equal(one: Array, other: Array) -> NDArray[np.bool_]:
    """Whether two arrays are equal, entry by entry, where NaN equals NaN."""
    return np.asarray((one == other) | ((one != one) & (other != other)))


def _gap(one: Array, other: Array) -> float:
    """Return the largest difference of two arrays' entries; infinity where one of them is NaN and the other not."""
    with np.errstate(invalid="ignore"):
        gaps = np.where(_equal(one, other), 0.0, np.abs(one - other))
    return float(np.where(np.isnan(gaps), np.inf, gaps).max())


def _rounding(eps: float, values: Array) -> float:
    """Return the largest change of a loss that is taken for rounding: eps^(2/3) (largest |value| + 0.1).

    eps: the coarsest rounding of an operation, relative, as `_Trace.coarsest` has it.
    """
    return float(eps ** (2 / 3)) * (_largest(values) + _SMALL)


def _largest(values: Array) -> float:
    """Return the largest magnitude of the finite values; 0 if there are none."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
