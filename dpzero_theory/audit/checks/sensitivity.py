"""What one record can do: exact differences between quiet runs on neighbouring data."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpzero_theory.audit import datasets
from dpzero_theory.audit.coupling import coupled
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.finding import Check, Verdict, held, untested, violated
from dpzero_theory.audit.influence import Scan
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.runs import norms
from dpzero_theory.bisection import halved
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation

_ROUNDING = 1e-3
"""Of a clip: what float32 sums and quiet noise may add."""
_SATURATED = 0.02
"""Of two clips, what a pair that is clipped on both sides may miss."""
_VARIES = 1e-2
"""Of what a record adds: more than rounding leaves."""
_COUPLED = 6
"""Draws of the noise under which runs are compared."""
_SCALES, _HALVINGS, _NEARLY = (1e-4, 1e4), 20, 0.97
"""Between which a record's scale is looked for at which it is nearly clipped, how often that is halved, how nearly."""
_WHY = "quiet runs with equal seeds differ, or the noise ignores its setting"
_MEND = (
    "clip each record's own contribution (all its numbers together, in L2 norm) before anything is summed or averaged;"
    " compute nothing else from several records: no batch statistics, no scaling by the data's mean or largest norm"
)


class _Moved(NamedTuple):
    """A neighbour: what was changed, by how many clips a step moved at most, and how many are allowed."""

    what: str
    clips: float
    allowed: float


def _bases(lab: Lab) -> Iterator[tuple[str, Records]]:
    """Data to take a record from."""
    records, nearly = lab.loop.records, _nearly_clipped(lab)
    yield "the records given", records
    yield "records a thousand times as large", datasets.each_scaled(records, 1e3)
    yield "records a thousandth as large", datasets.each_scaled(records, 1e-3)
    if lab.influence.loudest is not None:
        yield "all records alike and extreme", lab.influence.loudest
        both = datasets.filled(records, datasets.scaled(lab.influence.loudest[0], -1.0))
        both[: len(both) // 2] = lab.influence.loudest[: len(both) // 2]
        yield "all records extreme, alike up to sign", both
    if nearly is not None:
        yield "all records alike and nearly clipped", datasets.filled(records, nearly)
        opposite = datasets.replaced(datasets.filled(records, nearly), 0, datasets.mirrored(nearly))
        yield "all records but one alike and nearly clipped", opposite


def _nearly_clipped(lab: Lab) -> Any:
    """A record that is as large as can be before it is clipped: there what it does to others shows the most."""
    first, (low, high) = lab.loop.records[0], map(math.log, _SCALES)
    scale = math.exp(halved(lambda log: _share(lab, first, math.exp(log)) < _NEARLY, low, high, _HALVINGS)[0])
    return datasets.scaled(first, scale) if _share(lab, first, scale) > _NEARLY**3 else None


def _share(lab: Lab, record: Any, scale: float) -> float:
    """Of a clip, what each of equal records adds to the first step."""
    rows = lab.runs.at_start(datasets.filled(lab.loop.records, datasets.scaled(record, scale)), **lab.runs.all_records)
    if rows is None or not np.isfinite(rows).all():
        return 0.0
    return float(norms(rows[:1])[0]) / lab.runs.unit(lab.runs.all_records) / lab.claim.n


def _neighbours(lab: Lab) -> Iterator[_Moved]:
    unit = lab.runs.unit(lab.runs.all_records)
    for name, data in _bases(lab):
        base = lab.runs.at_start(data, **lab.runs.all_records)
        if base is None or not np.isfinite(base).all():
            continue
        for place in (0, len(data) // 2):
            others = {f"exchanged for extreme {k}": r for k, r in enumerate(datasets.extremes(lab.loop.records))}
            for what, record in others.items():
                found = lab.runs.at_start(datasets.replaced(data, place, record), **lab.runs.all_records)
                yield _Moved(f"{name}, record {place} {what}", _clips(found, base, unit), 2.0)
            if lab.claim.relation == Relation.ADD_REMOVE and lab.influence.with_one_less is not None:
                found = lab.runs.at_start(datasets.removed(data, place), **lab.runs.all_records)
                yield _Moved(f"{name}, record {place} removed", _clips(found, base, unit), 1.0)


def _coupled(lab: Lab) -> Iterator[_Moved]:
    """With all noise, the same in all runs: what is chosen by the data moves more than a record's own share."""
    first = lab.loop.records[0]
    extreme = [lab.influence.pair.first, lab.influence.pair.second] if lab.influence.pair is not None else []
    others = [*extreme, *(datasets.scaled(first, factor) for factor in (0.0, 1e6, -1e6))]
    worlds = [datasets.replaced(lab.loop.records, 0, record) for record in others]
    for number, (base, *runs) in enumerate(coupled(lab.runs, worlds, range(_COUPLED))):
        for run in runs:
            if base is not None and base.releases is not None and run is not None and run.releases is not None:
                clips = _clips(lab.runs.comparable(run), lab.runs.comparable(base), lab.runs.unit(lab.runs.all_records))
                yield _Moved(f"one record exchanged, with noise that is the same, draw {number}", clips, 2.0)


def _clips(found: Array | None, base: Array, unit: float) -> float:
    """The largest move of a step in clips; nothing where the loop refuses these data, or runs other steps on them."""
    if found is None or found.shape != base.shape or not np.isfinite(found).all():
        return 0.0
    return float(norms(found - base).max()) / unit


def sensitivity(lab: Lab, level: float) -> Verdict:
    """One record exchanged, or removed, on several data, with all records in every step and on batches as claimed."""
    if lab.runs.repeatable is None:
        return untested(_WHY)
    moves = [*_neighbours(lab), *_coupled(lab)]
    if lab.influence.scan is not None:
        moves.append(_Moved("batches as claimed, one record exchanged", float(lab.influence.scan.moved.max()), 2.0))
    worst = max(moves, key=lambda move: move.clips / move.allowed, default=None)
    if worst is None or worst.clips == 0:
        return untested("no record that was tried moves a release")
    seen = [[move.clips, move.allowed] for move in moves]
    if worst.clips > worst.allowed * (1 + _ROUNDING) + _ROUNDING:
        says = f"one record moves a step by {worst.clips:.4g} clips, where {worst.allowed:g} are allowed: {worst.what}"
        return violated(says, _MEND, moves=seen)
    return held(
        f"{len(moves)} neighbours move a step by at most {worst.clips:.4g} of {worst.allowed:g} clips",
        power="what these neighbours show; a step's numbers are taken together",
        moves=seen,
    )


def finite(lab: Lab, level: float) -> Verdict:
    """A record with NaN or infinity in it must not make a release anything but a number within the clip."""
    if lab.view.records == "finite":
        return untested("records are said to be finite")
    if lab.runs.repeatable is None:
        return untested(_WHY)
    base, tried, unit = lab.runs.at_start(**lab.runs.all_records), 0, lab.runs.unit(lab.runs.all_records)
    for record in datasets.poisoned(lab.loop.records[0]):
        rows = lab.runs.at_start(datasets.replaced(lab.loop.records, 0, record), **lab.runs.all_records)
        if rows is None or base is None:
            continue
        tried += 1
        if not np.isfinite(rows).all() or rows.shape != base.shape or _clips(rows, base, unit) > 2 + _ROUNDING:
            mend = "map what is not finite to a fixed value within the clip, record by record, before the sum"
            return violated("a record with NaN or infinity makes the release something else than a clipped sum", mend)
    if not tried:
        return untested(
            "the loop refuses records with NaN or infinity (let it do so record by record, not by stopping)"
        )
    return held("records with NaN and infinity move a release by no more than the clip")


def denominator(lab: Lab, level: float) -> Verdict:
    """Whether a release is a sum over a number that does not depend on the batch, or on who is in the data."""
    if lab.runs.repeatable is None:
        return untested(_WHY)
    mend = (
        "divide by the expected batch size (or n, where n is public), a constant, never by the size of the batch drawn"
    )
    ratio = lab.influence.with_one_less if lab.claim.relation == Relation.ADD_REMOVE else None
    if ratio is not None and abs(ratio - 1) > _ROUNDING:
        says = f"with one record less, another adds {ratio:.4g} times what it did: the denominator counts records"
        return violated(says, mend)
    if lab.claim.sampling == "full":
        if ratio is None:
            return untested("all records are in every batch, and nothing can be said with one less")
        return held("removing a record changes the sum, not its denominator")
    if lab.runs.repeatable != {} or lab.claim.average == "sum":
        return untested(
            "batches do not come from the seed" if lab.runs.repeatable != {} else "a release is a sum, not an average"
        )
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
    """Whether batches of several sizes, of equal records, are one number. Both of shape (seeds, steps)."""
    seeds = min(len(sizes), len(ratios))
    told = np.isfinite(ratios[:seeds])
    return bool(told.any() and np.ptp(sizes[:seeds][told]) > 0 and np.ptp(ratios[:seeds][told]) < _ROUNDING)


def _each_step(scan: Scan) -> Array:
    """What one record adds to each step, of shape (seeds, steps); NaN where the batch had none."""
    moved = np.where(scan.included, scan.moved, 0.0).max(axis=2)
    return np.where(moved > 0, moved, np.nan)


def _less_often_clipped(each: Array, whole: Array) -> float:
    """p-value, where directions differ: that so many steps move otherwise than most of their seed's.

    A pair that is clipped on both sides moves a step by two clips, but where its records change little along the
    step's direction: with one seed, and so with one start, that has one probability in steps with some and with all
    records. Fisher's exact test.
    """
    (here, some), (there, all_) = _departing(each), _departing(whole)
    return float(stats.hypergeom.sf(here - 1, some + all_, here + there, some))


def _departing(moves: Array) -> tuple[int, int]:
    """How many steps are not as most of their seed are, and of how many."""
    told = moves[np.isfinite(moves).any(axis=1)]
    middle = np.nanmedian(told, axis=1, keepdims=True)
    return int((np.abs(told - middle) > _VARIES * middle).sum()), int(np.isfinite(told).sum())


FAMILY = (
    Check("sensitivity", "Does one record move a step by no more than the clip?", sensitivity, random=False),
    Check("not-finite", "Is a record with NaN or infinity clipped like others?", finite, random=False),
    Check("denominator", "Is the denominator a constant?", denominator),
)
