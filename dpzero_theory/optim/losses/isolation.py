"""A record's loss must depend on that record alone: how a run tests this before it begins, and how it stays so.

What is clipped is the difference of one record, so a neighbouring data set may change no other record's. That holds if
the losses give record i a number that depends on record i and the weights alone. `probe.probe` evaluates a few records,
spread over the data set, at two points of a step (central differences: x + lambda u and x - lambda u; forward ones: x
and x + lambda u; exact ones: derivatives take the place of losses), in micro-batches that are read and collated as the
run does it (with equal draws of the global generators, `records.Alike`). It compares what a record gets in these cases:

    evaluated again, after others        shows randomness (dropout that stays on), a state kept between calls
    with other records beside it         shows batch statistics, contrast, ranks, sums over the batch
    in another order                     shows a dependence on the place in the batch
    among half as many, and alone        shows a dependence on the number of records, on padding

A record whose loss raises counts as 0 in a run, and is left out here (`probe.evaluable`). What losses leave in buffers
is put back after each evaluation (`weights.untrained`), here as in the run.

Losses are refused if one changes by more than rounding can change it. They are refused if any bit changes where the
same operations ran on tensors of the same shapes, so that not even a tiny coupling through contents passes, where
kernels are deterministic. They are refused if buffers go on changing. Rounding is taken to be below eps^(2/3) of the
largest loss, where eps is that of the coarsest number type that any operation used.

Some couplings cannot be seen. They are: what these records do not show (a coupling through rare values, or after many
calls, or in batches of sizes that were not tried, or one that cancels by chance in the few batches that are compared);
what is below rounding and shows only in another shape; values of the very first batch or record that the losses, or a
data set's cache, keep for good in plain attributes; and a data set that makes an entry out of several people's records.
Refusals and warnings depend on the losses of these records: they are for whoever holds the data, and not for
publication.

    isolation    what is assured
    probed       what is said above. In floating point a record's last bits may still depend on how many records are
                 beside it and how long they are, since kernels round by shape. A warning says where lambda makes that
                 visible: where the rounding of all records of a batch, over lambda, reaches a tenth of the clip
    exact        all bits, by one fixed shape. Every micro-batch is filled up to `micro_batch` rows, and records must be
                 padded and cut to one length by the data set or `collate`. The start tests that the operations on this
                 shape do not depend on values, and that each of them gives a record the same bits beside other records
                 and in other places. Fewer rows are not used, even where a test finds the same bits with them: kernels
                 for other shapes round differently, at some weights only. With micro_batch=1 a record is evaluated
                 alone, in its own shape. It is assumed that kernels go by shapes, as they were tested on these records,
                 and that all processes compute on equal hardware
"""

import warnings

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpzero_theory.check import Array
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.losses.evaluation import Evaluation, Losses
from dpzero_theory.optim.losses.probe import Look, ProbeResult, equal, evaluable, largest, probe, rounding
from dpzero_theory.optim.losses.records import Alike, Collate, Data, fetcher
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.distributed import Ranks, named
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.optim.weights.passes import NONE
from dpzero_theory.privacy.schedule import Indices

ISOLATIONS = ("probed", "exact")
_TRIED = 64
"""How many records, spread over the data set, are candidates where only the shape of the losses is tested. That is
tested on at most two of them whose losses can be evaluated."""
_VISIBLE = 0.1
"""A warning is given where rounding, summed over an expected batch, can move the sum of differences by this share of
the clip or more."""


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
    """Test that the losses keep records apart, as the module's docstring says.

    Args:
        weights: the trainable weights of the module.
        losses, data, collate: the run's loss function, its records, and the function that makes a batch of records.
        plan: what the run does.
        ranks: the processes of the run.
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
    evaluation = Evaluation(losses, fetcher(data, collate))
    places, few = np.unique(np.arange(_TRIED) * plan.n // _TRIED), min(2, micro_batch)

    def look() -> None:
        if isolation:
            _require_no_shared_columns(weights.module)
            found.append(probe(weights, losses, data, collate, plan, micro_batch, isolation))
        else:
            seen = Look(weights, Evaluation(losses, Alike(data, collate)), plan, exact=False)
            first = evaluable(lambda records: seen(records[:few]), seen, places)
            weights.require_used()
            found.append(ProbeResult(0.0, None, first.values, first.trace.coarsest))
        _require_derivatives(found[0].values, plan)
        alone = Look(weights, evaluation, plan, exact=False)
        if points_at_once > 1:
            evaluable(lambda records: _require_stackable(alone, records[:few], points_at_once), alone, places)

    found: list[ProbeResult] = []
    try:
        ranks.every(look)
        _require_same_losses(ranks.gathered((found[0].values, found[0].coarsest)), exact=isolation == "exact")
        if isolation and ranks.rank == 0:
            warn(found[0], plan)
            _warn_of_statistics(weights.module)
        return Evaluation(losses, fetcher(data, collate), found[0].shape)
    finally:
        weights.untrained.settle()


def _require_no_shared_columns(module: nn.Module) -> None:
    """Raise ValueError for a layer of bitsandbytes in 8 bits that has a threshold for outliers (LLM.int8's default).

    Such a layer computes a column of its input in half precision for all records of a batch as soon as one record has
    an entry above the threshold there, so that a record's loss depends on the others, however few batches show it.
    """
    for name, part in module.named_modules():
        threshold = getattr(getattr(part, "state", None), "threshold", 0.0)
        if type(part).__name__ == "Linear8bitLt" and threshold > 0:
            raise ValueError(
                f"module must keep records apart; got {name} in 8 bits with llm_int8_threshold = {threshold:g}, by"
                " which outliers of one record change the others' products: load it with"
                " BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0), or in 4 bits"
            )


def _require_same_losses(found: list[tuple[Array, float]], *, exact: bool) -> None:
    """Raise ValueError, naming ranks, where a rank gave the first records other losses than rank 0 gave them.

    found: for each rank the losses, and the largest relative rounding of an operation behind them (`Trace.coarsest`).
    exact: whether bits must agree; else losses may differ by rounding.
    """
    first, coarsest = found[0]

    def same(values: Array, eps: float) -> bool:
        if values.shape != first.shape:
            return False
        with np.errstate(invalid="ignore"):
            gap = np.where(equal(values, first), 0.0, np.abs(values - first)).max()
        return bool(gap <= (0 if exact else rounding(max(eps, coarsest), largest(np.stack([values, first])))))

    others = [rank for rank, (values, eps) in enumerate(found) if not same(values, eps)]
    if others:
        raise ValueError(
            "losses, collate and the module must give a record the same loss on every rank; other ones than on rank 0"
            f" on {named(others)}"
        )


def _require_stackable(look: Look, records: Indices, points_at_once: int) -> None:
    """Raise ValueError unless several points in one pass give these records the same losses, up to rounding.

    look: evaluates records at two points. points_at_once: how many points the run evaluates in one pass.
    """
    apart, together, coarsest = look.at_points(records, points_at_once)
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.where(equal(together, apart), 0.0, together - apart)).max()
    if not gap <= rounding(coarsest, largest(np.concatenate([apart, together], axis=None))):
        raise ValueError(f"points_at_once must be 1 for these losses: together they change by {gap:.1g}")


def _require_derivatives(values: Array, plan: Plan) -> None:
    """Raise ValueError where the plan asks for derivatives, and those of all records in `values` are 0, as those of 0-1
    losses are."""
    if not DIFFERENCES[plan.difference].smoothing and not values.any():
        raise ValueError(f"{NONE}: the derivatives of all {len(values)} records that were looked at are 0")


def visible(shift: float, expected_batch: float, clip: float) -> bool:
    """Whether rounding can move the sum of a batch's differences by a tenth of the clip or more: B s >= C/10.

    Args:
        shift: s >= 0, by how much rounding can move one record's difference.
        expected_batch: B > 0, the expected number of records in a batch.
        clip: C >= 0. The answer is False where it is 0, since differences are then not clipped.
    """
    return bool(clip) and not shift * expected_batch < _VISIBLE * clip


def _warn_of_statistics(module: nn.Module) -> None:
    """Warn, in one line, that a module with batch normalisation runs in eval mode."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and part.track_running_stats:
            fresh = (
                ", which are fresh: it scales and shifts its input, and no more" if not part.num_batches_tracked else ""
            )
            warnings.warn(
                f"module runs in eval mode: dropout is off, and the batch normalisation {name} uses its running"
                f" statistics{fresh}",
                stacklevel=2,
            )
            return


def warn(found: ProbeResult, plan: Plan) -> None:
    """Warn, in one line, where rounding can move the sum of a batch's differences by a tenth of the clip or more.

    The smaller the smoothing lambda, the more the rounding of a loss moves a difference.

    found: what `probe` has measured. plan: the run's.
    """
    shift = found.rounding * plan.difference_rule.rounded(plan.smoothing)
    if visible(shift, plan.expected_batch, plan.clip):
        shifts = DIFFERENCES[plan.difference].smoothing
        moved, instead = ("losses", " or a larger smoothing") if shifts else ("derivatives", "")
        warnings.warn(
            f"smoothing = {plan.smoothing:g} makes rounding visible: it moves {moved} by {found.rounding:.1g}, so other"
            f" records can move a record's difference by {shift:.1g} (clip = {plan.clip:g}): use isolation='exact'"
            f"{instead}",
            stacklevel=2,
        )
