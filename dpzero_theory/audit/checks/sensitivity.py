"""Checks that one record cannot change a release by more than claimed.

They compare runs almost without noise (quiet runs) on neighbouring data sets.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpzero_theory.audit import datasets
from dpzero_theory.audit.coupling import coupled
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.influence import Scan
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.runs import NOT_REPEATABLE, SEED, norms, significant_bits
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation

_CLIP_ROUNDING = 1e-3
"""Changes may exceed their limit by this many clips; rounding of sums in float32 and the remaining noise cause less."""

_SATURATED = 0.02
"""How near a change must be to two clips, in clips, for both records to count as clipped.

The change is that of a step when the extreme pair of records is exchanged.
"""
_OF_COUNT = 0.25  # A ratio counts as n/(n - 1) if it is within this share of 1/n of it
_VARIES = 1e-2  # If two changes of steps differ by more than this share, rounding does not explain it
_MOVE_DRAWS = 6  # Runs on neighbouring data sets are compared under this many draws of the noise
_DROWNING = 1e5
"""The multiple of the claimed noise at which weights are moved by noise alone.

The step size is divided by it, and multiplied by one of `_FARTHER`.
"""
_FARTHER = (10.0, 100.0)  # At that noise the weights move so many times as far as in training
_FOLLOWS = 0.3
"""At that noise, exchanging a record moves the weights so little that a step changes by less than this many clips."""
_LATER_DRAWS = 3  # Later steps on neighbouring data sets are compared under this many draws of the noise
_AGAINST = 1e3  # The scale of the one record that pulls against all others in a data set
_NO_EFFECT = 1e-6  # A release whose length is below this many clips counts as 0
_ABOVE = (1.5, 2.5)
"""A nearly clipped record is made larger by these factors, for loops whose clip is wrong only just above the clip."""
_MEND_SENSITIVITY = (
    "clip each record's own contribution (all its numbers together, in L2 norm) before anything is summed or averaged;"
    " compute nothing else from several records: no batch statistics, no scaling by the data's mean or largest norm; if"
    " a clip follows what was released, return it and name it in the view's `adaptive`"
)

_SHIFTED = (
    "exchanging a record moves a step as it may, but with one record less a generator draws other random numbers, so"
    " that all others contribute something else too: draw what contributions are made with (augmentation, dropout) from"
    " a generator of its own, whose draws do not follow the number of records"
)


class _Move(NamedTuple):
    """The largest change of a step's release between a data set and its neighbours.

    Args:
        what: describes the neighbours in words.
        clips: the change, in clips.
        allowed: the largest change that the claim allows, in clips.
        removed: whether the neighbours have one record less.
    """

    what: str
    clips: float
    allowed: float
    removed: bool = False


def _bases(lab: Lab) -> Iterator[tuple[str, Records]]:
    """Yields, with names, the data sets from which neighbours are made by exchanging or removing a record.

    `lab` makes experiments on the audited loop.
    """
    records, nearly = lab.loop.records, lab.influence.nearly_clipped
    yield "the records given", records
    yield "records a thousand times as large", datasets.each_scaled(records, 1e3)
    yield "records a thousandth as large", datasets.each_scaled(records, 1e-3)
    if lab.influence.loudest is not None:
        yield "all records alike and extreme", lab.influence.loudest
        both = datasets.filled(records, datasets.scaled(lab.influence.loudest[0], -1.0))
        both[: len(both) // 2] = lab.influence.loudest[: len(both) // 2]
        yield "all records extreme, alike up to sign", both
    if lab.influence.pair is not None:
        alike = datasets.filled(records, lab.influence.pair.second)
        against = datasets.scaled(lab.influence.pair.first, _AGAINST)
        yield "all records alike, and one larger against them", datasets.replaced(alike, 0, against)
    if nearly is not None:
        for factor in _ABOVE:
            first = datasets.scaled(nearly, factor)
            yield f"one record {factor:g} times what is nearly clipped", datasets.replaced(records, 0, first)
        yield "all records alike and nearly clipped", datasets.filled(records, nearly)
        opposite = datasets.replaced(datasets.filled(records, nearly), 0, datasets.mirrored(nearly))
        yield "all records but one alike and nearly clipped", opposite


def _neighbours(lab: Lab) -> Iterator[_Move]:
    """Yields how much steps change between each data set of `_bases` and its neighbours, in runs almost without noise.

    `lab` makes experiments on the audited loop.
    """
    nothing = _without_effect(lab)
    for name, data in _bases(lab):
        base = lab.runs.at_start(data)
        if base is None or not np.isfinite(base).all():
            continue
        for place in (0, len(data) // 2):
            others = {f"exchanged for extreme {k}": r for k, r in enumerate(datasets.extremes(lab.loop.records))}
            for what, record in others.items():
                rows = lab.runs.at_start(datasets.replaced(data, place, record))
                yield _Move(f"{name}, record {place} {what}", _clips(lab, rows, base), 2.0)
            if lab.claim.relation == Relation.ADD_REMOVE and lab.influence.with_one_less is not None:
                rows = lab.runs.at_start(datasets.removed(data, place))
                yield _Move(f"{name}, record {place} removed", _clips(lab, rows, base), 1.0, removed=True)
                # A loop that clips groups of records has as many groups for n - 1 records as for n - 2
                less = datasets.removed(data, len(data) - 1)
                before, rows = (lab.runs.at_start(world) for world in (less, datasets.removed(less, place)))
                if before is not None and np.isfinite(before).all():
                    what = f"{name}, the last record and record {place} removed"
                    yield _Move(what, _clips(lab, rows, before), 1.0, removed=True)
            elif nothing is not None:
                rows = lab.runs.at_start(datasets.replaced(data, place, nothing))
                yield _Move(f"{name}, record {place} exchanged for one without effect", _clips(lab, rows, base), 1.0)


def _without_effect(lab: Lab) -> Any:
    """Returns a record that adds nothing to a sum; None where none is found, or none is needed.

    Where a record is there or not and the loop cannot be run with one less, exchanging a record for this one must
    change a step by no more than removing it may. It is the first record times 0, if the releases are 0 on a data set
    of such records alone. `lab` makes experiments on the audited loop.
    """
    if lab.claim.relation == Relation.REPLACE_ONE or lab.influence.with_one_less is not None:
        return None
    record = datasets.scaled(lab.loop.records[0], 0.0)
    rows = lab.runs.at_start(datasets.filled(lab.loop.records, record))
    return record if rows is not None and float(norms(rows).max()) < _NO_EFFECT * lab.runs.unit_of_all else None


def _coupled(lab: Lab) -> Iterator[_Move]:
    """Yields how much steps change when one record is exchanged and the noise is the same, at its claimed size.

    Where the records influence choices (such as a clip or a learning rate), steps change by more than one record's
    contribution. `lab` makes experiments on the audited loop.
    """
    worlds = _exchanged(lab)
    # Where weights move, if ever so little, later steps may follow from the noise of earlier ones
    still = [(lab.runs.frozen, slice(None))] if lab.runs.frozen else []
    base = lab.runs.base.releases
    # The only release of a run may have steps inside, so that its weights must not move
    moving = {"step_size": lab.loop.step_size} if lab.loop.step_size and base is not None and len(base) > 1 else {}
    for how, steps in (*still, (moving, slice(0, 1))):
        for number, (plain, *runs) in enumerate(coupled(lab.runs, worlds, range(_MOVE_DRAWS), **how)):
            for run in runs:
                if plain is not None and plain.releases is not None and run is not None and run.releases is not None:
                    rows, at_base = (lab.runs.comparable(one)[steps] for one in (run, plain))
                    what = f"one record exchanged, with noise that is the same, draw {number}"
                    yield _Move(what, _clips(lab, rows, at_base), 2.0)
    yield from _drowned(lab)


def _exchanged(lab: Lab) -> list[Records]:
    """Returns data sets that differ in the first record; `lab` has the records and experiments on them."""
    first = lab.loop.records[0]
    extreme = [lab.influence.pair.first, lab.influence.pair.second] if lab.influence.pair is not None else []
    others = [*extreme, *(datasets.scaled(first, factor) for factor in (0.0, 1e6, -1e6))]
    return [datasets.replaced(lab.loop.records, 0, record) for record in others]


def _drowned(lab: Lab) -> Iterator[_Move]:
    """Yields how much later steps change when one record is exchanged and weights move by noise alone.

    The noise is so large, and the step size so small, that the weights move some times as far as in training, and by
    noise that is the same on all data sets. So every step is made at weights that do not depend on the records, and one
    record may change it by no more than the first one. What a loop carries from step to step without noise (a
    snapshot's gradient, momentum of sums, norms of a step before) shows. The weights still depend a little on the
    records, and a loop may take a choice by what it releases, so that the median over draws of the noise counts. `lab`
    makes experiments on the audited loop.
    """
    base = lab.runs.base.releases
    if not lab.loop.step_size or not lab.runs.noise_obeyed or lab.loop.from_weights or lab.view.adaptive:
        return
    if base is None or len(base) == 1:
        return
    records, unit = lab.loop.records, lab.runs.unit_of_all
    worlds = [*_exchanged(lab), *(datasets.replaced(records, 0, one) for one in datasets.extremes(records))]
    for farther in _FARTHER:
        loud = {
            "noise_multiplier": lab.claim.noise_multiplier * _DROWNING,
            "step_size": lab.loop.step_size * farther / _DROWNING,
        }
        found = [
            clips
            for outputs in coupled(lab.runs, worlds, range(_LATER_DRAWS), **loud)
            if (clips := _farthest(outputs, unit)) is not None
        ]
        if found:
            what = "a later step, one record exchanged, with noise that is the same and moves the weights"
            yield _Move(what, float(np.median(found)), 2.0)


def _farthest(outputs: Sequence[LoopOutput | None], unit: float) -> float | None:
    """Returns the largest change of a step between two of several coupled runs, in clips, with room for rounding.

    None is returned where fewer than two have finite releases. A clip is `unit` in a release.
    """
    rows = [run.releases for run in outputs if run is not None and run.releases is not None]
    whole = [row for row in rows if row.shape == rows[0].shape and np.isfinite(row).all()]
    if len(whole) < 2:
        return None
    clips = max(float(norms(one - other).max()) for k, one in enumerate(whole) for other in whole[:k]) / unit
    slack = 4 * 2.0 ** -significant_bits(whole[0]) * float(norms(whole[0]).max()) / unit + _FOLLOWS
    return clips if clips <= 2 else max(2.0, clips - slack)


def _clips(lab: Lab, rows: Array | None, base: Array) -> float:
    """Returns the largest change of a step's release between two data sets, in clips; 0 where they cannot be compared.

    `rows` and `base` are the releases on the two data sets, one row a step, with all records in every batch. They
    cannot be compared where `rows` is None (the loop refused the data), a step has another shape, or is not finite. Of
    a loop that ends earlier on one data set, the steps made on both are compared, and of an adaptive loop the steps up
    to the first one that changes.
    """
    if rows is None or rows.shape[1:] != base.shape[1:] or not np.isfinite(rows).all():
        return 0.0
    both = min(len(rows), len(base))
    rows, base = rows[:both], base[:both]
    return float(_until_first(lab, norms(rows - base) / lab.runs.unit_of_all).max())


def _until_first(lab: Lab, moved: Array) -> Array:
    """Returns changes of releases, with those of an adaptive loop set to 0 after the first step that changes.

    `moved` has the changes in clips, with the steps along its axis 0. `lab` knows whether the loop is adaptive.
    """
    if not lab.view.adaptive:
        return moved
    changes = (moved > _NO_EFFECT).astype(np.int64)
    before: NDArray[np.int64] = np.cumsum(changes, axis=0) - changes
    return np.where(before > 0, 0.0, moved)


def moves(lab: Lab, level: float) -> Verdict:
    """Check that exchanging one record changes a step by at most two clips, and removing one by at most one.

    Neighbours of several data sets are tried with all records in every batch, and with batches as claimed. `lab` makes
    experiments on the audited loop; `level`, the probability of a false alarm, is not used. Returns the verdict.
    """
    if lab.runs.repeatable is None:
        return untested(NOT_REPEATABLE)
    if missing := [name for name in lab.view.adaptive if name not in lab.runs.base.shown]:
        return untested(f"the output {missing[0]!r} is missing: return what each step took from earlier releases")
    tried = [*_neighbours(lab), *_coupled(lab)]
    if lab.influence.scan is not None:
        moved = max(float(_until_first(lab, each).max()) for each in lab.influence.scan.moved)
        tried.append(_Move("batches as claimed, one record exchanged", moved, 2.0))
    removals = [move for move in tried if move.removed]
    shifted = any(move.clips > _most(move.allowed) for move in removals) and lab.influence.draws_shift
    if shifted:
        tried = [move for move in tried if not move.removed]
    worst = max(tried, key=lambda move: move.clips / move.allowed, default=None)
    if worst is None or worst.clips == 0:
        return untested("no record that was tried moves a release")
    seen = [[move.clips, move.allowed] for move in tried]
    if shifted and worst.clips <= _most(worst.allowed):
        return untested(_SHIFTED, moves=seen)
    if worst.clips <= worst.allowed and lab.claim.relation != Relation.REPLACE_ONE and not _one_less(tried):
        says = "exchanging a record moves a step as it may, but none can be taken out, and none without effect is known"
        return untested(f"{says}: let the loop take n - 1 records", moves=seen)
    if worst.clips > _most(worst.allowed):
        says = f"one record moves a step by {worst.clips:.4g} clips, where {worst.allowed:g} are allowed: {worst.what}"
        return violated(says, _MEND_SENSITIVITY, moves=seen)
    return held(
        f"{len(tried)} neighbours move a step by at most {worst.clips:.4g} of {worst.allowed:g} clips",
        power=f"more than {_most(worst.allowed):g} clips where {worst.allowed:g} are allowed, by one of them",
        moves=seen,
    )


def _most(allowed: float) -> float:
    """Returns how many clips a step may move where `allowed` are allowed, with room for rounding."""
    return allowed * (1 + _CLIP_ROUNDING) + _CLIP_ROUNDING


def _one_less(tried: list[_Move]) -> bool:
    """Whether some of the neighbours that were tried have one record less, or one without effect in its place."""
    return any(move.allowed == 1 for move in tried)


def finite(lab: Lab, level: float) -> Verdict:
    """Check that a record with NaN or infinity changes a release by no more than other records may.

    `lab` makes experiments on the audited loop; `level`, the probability of a false alarm, is not used. Returns the
    verdict.
    """
    if lab.view.records == "finite":
        return untested("records are said to be finite")
    if lab.runs.repeatable is None:
        return untested(NOT_REPEATABLE)
    base, tried = lab.runs.at_start(), 0
    if base is None:
        return untested("the loop fails where every batch has all records")
    mend = "map what is not finite to a fixed value within the clip, record by record, before the sum"
    for record in datasets.poisoned(lab.loop.records[0]):
        data, tried = datasets.replaced(lab.loop.records, 0, record), tried + 1
        rows, whole = lab.runs.at_start(data), lab.runs.attempt(data, seed=SEED, **lab.runs.all_records)
        if rows is None or whole is None or whole.releases is None:
            says = "a record with NaN or infinity ends the run with an error, which tells that the record is there"
            return violated(says, f"{mend}; or say that records are finite, and drop such records before the loop")
        ends = rows.shape[1:] == base.shape[1:] and (len(rows) == len(base) or _ends_variously(lab))
        if (
            not ends
            or _clips(lab, rows, base) > 2 + _CLIP_ROUNDING
            or not np.isfinite(rows).all()
            or not np.isfinite(whole.releases).all()
        ):
            return violated("a record with NaN or infinity makes the release something else than a clipped sum", mend)
    if not tried:
        return untested("records have no floating-point numbers, which could be NaN or infinite")
    if (counted := _counts_finite(lab)) is not None:
        return violated(counted, mend)
    return held(f"records with NaN, infinity or overflow ({tried} forms) move a release by no more than the clip")


def _ends_variously(lab: Lab) -> bool:
    """Whether the loop of `lab` makes other numbers of steps on other finite records, as one that ends early does."""
    records = lab.loop.records
    runs = [lab.runs.at_start(datasets.replaced(records, 0, record)) for record in datasets.extremes(records)]
    return len({len(rows) for rows in runs if rows is not None}) > 1


def _counts_finite(lab: Lab) -> str | None:
    """Says that the denominator counts the records that are finite; None where it is a constant, or cannot be seen.

    What a record adds beside one with NaN is then n/(n - 1) times what it adds beside an ordinary one. `lab` makes
    experiments on the audited loop.
    """
    pair, records, n = lab.influence.pair, lab.loop.records, lab.claim.n
    bad = next(datasets.poisoned(records[0]), None)
    if pair is None or bad is None or n < 3:
        return None
    sizes = []
    for first in (records[0], bad):
        beside = datasets.replaced(records, 0, first)
        rows = [lab.runs.at_start(datasets.replaced(beside, 1, one)) for one in pair[:2]]
        if any(row is None or not np.isfinite(row).all() or row.shape != rows[0].shape for row in rows):  # type: ignore[union-attr]
            return None
        sizes.append(float(norms((np.asarray(rows[0]) - np.asarray(rows[1])).ravel())))
    ratio = sizes[1] / sizes[0] if sizes[0] > 0 else 1.0
    if abs(ratio - 1) < _CLIP_ROUNDING or not _is_of_counts(ratio, n):
        return None
    return f"beside a record with NaN another adds {ratio:.4g} times what it did: the denominator counts finite records"


def _is_of_counts(ratio: float, n: int) -> bool:
    """Whether a ratio is n/(n - 1), as that of two averages whose denominators count n - 1 and n records."""
    return abs(ratio - n / (n - 1)) <= _OF_COUNT / n


def denominator(lab: Lab, level: float) -> Verdict:
    """Check that a release is a sum divided by a constant, which depends neither on the batch nor on the data set.

    `lab` makes experiments on the audited loop. A sound loop is reported as violated with probability at most `level`.
    Returns the verdict.
    """
    if lab.runs.repeatable is None:
        return untested(NOT_REPEATABLE)
    mend = (
        "divide by the expected batch size (or n, where n is public), a constant, never by the size of the batch drawn"
    )
    ratio = lab.influence.with_one_less if lab.claim.relation == Relation.ADD_REMOVE else None
    if ratio is not None and abs(ratio - 1) > _CLIP_ROUNDING:
        if not _is_of_counts(ratio, lab.claim.n) and lab.influence.draws_shift:
            return untested(_SHIFTED)
        says = f"with one record less, another adds {ratio:.4g} times what it did: the denominator counts records"
        return violated(says, mend)
    if lab.view.records != "finite" and (counted := _counts_finite(lab)) is not None:
        return violated(counted, mend)
    if lab.claim.sampling == "full":
        if ratio is None:
            return untested("all records are in every batch, and nothing can be said with one less")
        return held("removing a record changes the sum, not its denominator")
    if lab.claim.average == "sum":
        return untested("a release is a sum, not an average")
    scan, ratios = lab.influence.scan, lab.influence.shares
    if scan is None:
        return untested("which records are in a batch cannot be seen")
    sizes = scan.included.sum(axis=2)
    if (kinds := np.unique(sizes)).size == 1:
        return held(f"every batch has {kinds[0]} records, so that no denominator can follow it")
    if ratios is not None and _one_average(sizes, ratios):
        says = f"batches have from {kinds.min()} to {kinds.max()} records, and equal records always give one average"
        return violated(says, mend, ratios=ratios.tolist())
    each, saturated = _each_step(scan), abs(scan.size - 2) < _SATURATED
    least, most = float(np.nanmin(each)), float(np.nanmax(each))
    if most > (1 + _VARIES) * (least if lab.runs.same_for_all_seeds else max(2.0, float(np.nanmedian(each)))):
        return violated(f"what one record adds varies {most / least:.3g}-fold with its batch", mend)
    if not lab.runs.same_for_all_seeds and saturated and (p := _less_often_clipped(each, scan.whole)) < level:
        says = "what a clipped record adds varies with its batch far more often than where all records are in it"
        return violated(says, mend, p_value=p)
    if ratios is None and not lab.runs.same_for_all_seeds and not saturated:
        return untested("no records give releases of equal size")
    return held("what a record adds is the same in batches of different sizes")


def _one_average(sizes: NDArray[np.int64], ratios: Array) -> bool:
    """Whether batches of several sizes give releases of one length on equal records, as averages over the batch do.

    `sizes` are the sizes of the batches, and `ratios` the lengths of the releases over those with all records in the
    batch. Both have shape (seeds, steps).
    """
    seeds = min(len(sizes), len(ratios))
    told = np.isfinite(ratios[:seeds])
    return bool(told.any() and np.ptp(sizes[:seeds][told]) > 0 and np.ptp(ratios[:seeds][told]) < _CLIP_ROUNDING)


def _each_step(scan: Scan) -> Array:
    """Returns the most that exchanging a record changes each step, in clips, of shape (seeds, steps).

    `scan` has the changes for each record. The result is NaN for a step whose batch was empty.
    """
    moved = np.where(scan.included, scan.moved, 0.0).max(axis=2)
    return np.where(moved > 0, moved, np.nan)


def _less_often_clipped(each: Array, whole: Array) -> float:
    """The p-value of Fisher's exact test that steps are as often unusual with batches as claimed as with all records.

    It is for loops whose seed makes random directions. Exchanging a pair of records that are both clipped changes a
    step by two clips, except where their losses change little along its direction. If the denominator is constant, the
    probability of such a direction is the same for both kinds of steps.

    Args:
        each: how much each step changes with batches as claimed, of shape (seeds, steps).
        whole: the same with all records in every batch.
    """
    (here, some), (there, all_) = _departing(each), _departing(whole)
    return float(stats.hypergeom.sf(here - 1, some + all_, here + there, some))


def _departing(moves: Array) -> tuple[int, int]:
    """Returns how many steps change by another amount than the median step of their seed, and the number of steps.

    `moves` has the change of each step, of shape (seeds, steps), where NaN means that it is not known.
    """
    told = moves[np.isfinite(moves).any(axis=1)]
    middle = np.nanmedian(told, axis=1, keepdims=True)
    return int((np.abs(told - middle) > _VARIES * middle).sum()), int(np.isfinite(told).sum())
