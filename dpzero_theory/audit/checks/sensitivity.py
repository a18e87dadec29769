"""Checks that one record cannot change a release by more than claimed.

They compare runs with almost no noise on neighbouring data sets. Changes are measured in clips, that is, in multiples
of the largest norm that the claim allows a record's contribution.

A check is a function (lab, level) -> verdict. It runs the audited training loop by experiments of `lab`, a `Lab`. If
the loop does what it claims, the check reports a violation with probability at most `level`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.audit import datasets
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.report import Check, Verdict, held, untested, violated
from dpzero_theory.audit.runs import NOT_REPEATABLE, SEED, norms
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation

_CLIP_ROUNDING = 1e-3
"""The change of a release may exceed its limit by this share of the limit plus this share of the clip. Rounding in
float32, and the noise of runs with almost no noise, cause smaller errors."""
_MOVE_DRAWS, _LATER_DRAWS = 6, 3  # First steps and later steps are compared under this many draws of equal noise
_DROWNING, _FARTHER = 1e5, (10.0, 100.0)
"""With 1e5 times the claimed noise and a step size that is 1e5/10 (or 1e5/100) times smaller, the noise moves the
weights about 10 (or 100) times as far as in training, and one record hardly moves them."""
_FOLLOWS = 0.3  # With noise `_DROWNING`, a record changes later steps by less than this share of the clip
_AGAINST = 1e3  # The factor by which a record that pulls against all others is scaled, in one data set
_NO_EFFECT = 1e-6  # A release that changes by less than this share of the clip counts as unchanged
_ABOVE = (1.5, 2.5)  # Factors of a nearly clipped record, since a clip may be wrong only just above its limit
_MEND_CLIP = (
    "clip each record's own contribution (all its numbers together, in L2 norm) before anything is summed or averaged;"
    " compute nothing else from several records: no batch statistics, no scaling by the data's mean or largest norm;"
    " divide by a constant, never by the size of the batch drawn; if a clip follows what was released, return it and"
    " name it in the view's `adaptive`"
)
_MEND_FINITE = "map what is not finite to a fixed value within the clip, record by record, before the sum"


class _Move(NamedTuple):
    # The largest change of a step's release between a data set and its neighbours

    what: str  # Describes the neighbours in words
    clips: float  # The change, in clips (multiples of the claimed clip)
    allowed: float  # The change that the claim allows, in clips

    @property
    def most(self) -> float:
        # The largest change, in clips, that counts as allowed, with room for rounding
        return self.allowed * (1 + _CLIP_ROUNDING) + _CLIP_ROUNDING


def _bases(lab: Lab) -> Iterator[tuple[str, Records]]:
    # Yields data sets, by a name for the report, that are compared with their neighbours
    records, nearly, loudest = lab.loop.records, lab.influence.nearly_clipped, lab.influence.loudest
    yield "the records given", records
    yield "records a thousand times as large", datasets.scaled(records, 1e3)
    yield "records a thousandth as large", datasets.scaled(records, 1e-3)
    if loudest is not None:
        yield "all records alike and extreme", loudest
        both = datasets.filled(records, datasets.scaled(loudest[0], -1.0))
        both[: len(both) // 2] = loudest[: len(both) // 2]
        yield "all records extreme, alike up to sign", both
    if lab.influence.pair is not None:
        alike = datasets.filled(records, lab.influence.pair.second)
        against = datasets.scaled(lab.influence.pair.first, _AGAINST)
        yield "all records alike, and one larger against them", datasets.replaced(alike, 0, against)
    if nearly is not None:
        for factor in _ABOVE:
            first = datasets.scaled(nearly, factor)
            yield f"one record {factor:g} times what is nearly clipped", datasets.replaced(records, 0, first)
        alike = datasets.filled(records, nearly)
        yield "all records alike and nearly clipped", alike
        yield "all but one alike and nearly clipped", datasets.replaced(alike, 0, datasets.mirrored(nearly))


def _neighbour_moves(lab: Lab) -> Iterator[_Move]:
    # Yields changes between runs with almost no noise. The first and the middle record of each data set are exchanged
    # for extreme ones and, except under replace-one, removed (if the loop can) or exchanged for one without effect
    nothing, removes = _without_effect(lab), lab.claim.relation == Relation.ADD_REMOVE
    for name, data in _bases(lab):
        base = lab.runs.at_start(data)
        if base is None or not np.isfinite(base).all():
            continue
        for place in (0, len(data) // 2):
            for k, record in enumerate(datasets.extremes(lab.loop.records)):
                rows = lab.runs.at_start(datasets.replaced(data, place, record))
                yield _Move(f"{name}, record {place} exchanged for extreme {k}", _clips(lab, rows, base), 2.0)
            if removes and lab.influence.takes_one_less:
                rows = lab.runs.at_start(datasets.removed(data, place))
                yield _Move(f"{name}, record {place} removed", _clips(lab, rows, base), 1.0)
                # A loop may clip groups of records. Of n - 1 records it may make one group less than of n, but of n - 2
                # as many, and then the change shows that records moved from group to group
                less = datasets.removed(data, len(data) - 1)
                before, rows = (lab.runs.at_start(one) for one in (less, datasets.removed(less, place)))
                if before is not None and np.isfinite(before).all():
                    yield _Move(f"{name}, the last record and record {place} removed", _clips(lab, rows, before), 1.0)
            elif nothing is not None:
                rows = lab.runs.at_start(datasets.replaced(data, place, nothing))
                yield _Move(f"{name}, record {place} exchanged for one without effect", _clips(lab, rows, base), 1.0)


def _without_effect(lab: Lab) -> Any:
    # Returns a record that adds nothing to a sum, or None. Exchanging a record for it is like removing the record, for
    # loops that cannot be run with one record less
    record = datasets.scaled(lab.loop.records[0], 0.0)
    if lab.claim.relation == Relation.REPLACE_ONE:
        return None
    rows = lab.runs.at_start(datasets.filled(lab.loop.records, record))
    return record if rows is not None and float(norms(rows).max()) < _NO_EFFECT * lab.runs.unit_of_all else None


def _coupled_moves(lab: Lab) -> Iterator[_Move]:
    # Yields changes between runs with equal noise of the claimed size, if one record is exchanged. A step may change by
    # twice the clip, and changes by more if the loop chooses a clip or a learning rate, say, by the records
    first = lab.loop.records[0]
    others = [*(lab.influence.pair or ())[:2], *(datasets.scaled(first, factor) for factor in (0.0, 1e6, -1e6))]
    data_sets = [datasets.replaced(lab.loop.records, 0, record) for record in others]
    # If weights move, later steps follow from earlier releases, so only first steps are compared
    moving = {"step_size": lab.loop.step_size} if lab.loop.step_size and lab.claim.steps > 1 else {}
    for how, steps in (*([(lab.runs.frozen, slice(None))] if lab.runs.frozen else []), (moving, slice(0, 1))):
        for number, (plain, *runs) in enumerate(lab.runs.coupled(data_sets, range(_MOVE_DRAWS), **how)):
            for run in runs:
                if plain is not None and plain.releases is not None and run is not None and run.releases is not None:
                    rows, at_base = (lab.runs.comparable(one)[steps] for one in (run, plain))
                    what = f"one record exchanged, with noise that is the same, draw {number}"
                    yield _Move(what, _clips(lab, rows, at_base), 2.0)
    data_sets += [datasets.replaced(lab.loop.records, 0, one) for one in datasets.extremes(lab.loop.records)]
    yield from _later_moves(lab, data_sets)


def _later_moves(lab: Lab, data_sets: list[Records]) -> Iterator[_Move]:
    # Yields the largest change of a step between data sets that differ in the first record. The noise is equal, and so
    # large that it alone moves the weights. The record may change later steps, too, by at most twice the clip. More
    # means that the loop carries something from step to step without noise, such as a stored gradient
    base = lab.runs.base.releases
    if not lab.loop.step_size or not lab.runs.noise_obeyed or lab.loop.from_weights or lab.view.adaptive:
        return
    for farther in _FARTHER if base is not None and len(base) > 1 else ():
        loud = {
            "noise_multiplier": lab.claim.noise_multiplier * _DROWNING,
            "step_size": lab.loop.step_size * farther / _DROWNING,
        }
        found = [
            clips
            for outputs in lab.runs.coupled(data_sets, range(_LATER_DRAWS), **loud)
            if (clips := _farthest(outputs, lab.runs.unit_of_all)) is not None
        ]
        if found:
            what = "a later step, one record exchanged, with noise that is the same and moves the weights"
            # The median ignores a single draw in which releases happen to make the loop choose something else
            yield _Move(what, float(np.median(found)), 2.0)


def _farthest(outputs: Sequence[LoopOutput | None], unit: float) -> float | None:
    # Returns the largest change of a step between two of the runs, in units of `unit`, the norm of what one clip adds
    # to a release; None if fewer than two runs have finite releases of one shape
    rows = [run.releases for run in outputs if run is not None and run.releases is not None]
    whole = [row for row in rows if row.shape == rows[0].shape and np.isfinite(row).all()]
    if len(whole) < 2:
        return None
    clips = max(float(norms(one - other).max()) for k, one in enumerate(whole) for other in whole[:k]) / unit
    single = all(np.array_equal(row, row.astype(np.float32)) for row in whole)
    slack = 4 * 2.0 ** (-24 if single else -50) * float(norms(whole[0]).max()) / unit + _FOLLOWS
    # A change above the allowed two times the clip is reduced by what rounding and different weights may add to it
    return clips if clips <= 2 else max(2.0, clips - slack)


def _clips(lab: Lab, rows: Array | None, base: Array) -> float:
    # Returns the largest change of a step between two runs with the releases `rows` and `base`, in multiples of what a
    # clipped record adds; 0 if `rows` is None (the run failed) or cannot be compared. Only steps that both made count
    if rows is None or rows.shape[1:] != base.shape[1:] or not np.isfinite(rows).all():
        return 0.0
    both = min(len(rows), len(base))
    return float(_until_first(lab, norms(rows[:both] - base[:both]) / lab.runs.unit_of_all).max())


def _until_first(lab: Lab, moved: Array) -> Array:
    # Returns `moved`, the change of each step in multiples of the clip, with 0 after the first change if the loop is
    # adaptive, since later steps may then follow from the release that changed
    if not lab.view.adaptive:
        return moved
    changes = (moved > _NO_EFFECT).astype(np.int64)
    before: NDArray[np.int64] = np.cumsum(changes, axis=0) - changes
    return np.where(before > 0, 0.0, moved)


def _moves(lab: Lab, level: float) -> Verdict:
    # Violated if exchanging a record changes a step by more than twice the clip, or removing one by more than the clip
    if lab.runs.repeatable is None:
        return untested(NOT_REPEATABLE)
    if missing := [name for name in lab.view.adaptive if name not in lab.runs.base.shown]:
        return untested(f"the output {missing[0]!r} is missing: return what each step took from earlier releases")
    tried = [*_neighbour_moves(lab), *_coupled_moves(lab)]
    if lab.influence.scan is not None:
        moved = max(float(_until_first(lab, each).max()) for each in lab.influence.scan.moved)
        tried.append(_Move("batches as claimed, one record exchanged", moved, 2.0))
    worst = max(tried, key=lambda move: move.clips / move.allowed, default=None)
    if worst is None or worst.clips == 0:
        return untested("no record that was tried moves a release")
    if worst.clips > worst.most:
        says = f"one record moves a step by {worst.clips:.4g} clips, where {worst.allowed:g} are allowed: {worst.what}"
        return violated(says, _MEND_CLIP)
    if lab.claim.relation != Relation.REPLACE_ONE and all(move.allowed > 1 for move in tried):
        says = "exchanging a record moves a step as it may, but none can be taken out, and none without effect is known"
        more = "let the loop take n - 1 records, and draw contributions' random numbers from a generator of their own"
        return untested(f"{says}: {more}")
    return held(
        f"{len(tried)} neighbours move a step by at most {worst.clips:.4g} of {worst.allowed:g} clips",
        power=f"more than {worst.most:g} clips where {worst.allowed:g} are allowed, by one of them",
    )


def _finite(lab: Lab, level: float) -> Verdict:
    if lab.view.records == "finite":
        return untested("records are said to be finite")
    base, records, tried = lab.runs.at_start(), lab.loop.records, 0
    if lab.runs.repeatable is None or base is None:
        return untested(NOT_REPEATABLE)
    for record in datasets.poisoned(records[0]):
        data, tried = datasets.replaced(records, 0, record), tried + 1
        rows, whole = lab.runs.at_start(data), lab.runs.attempt(data, seed=SEED, **lab.runs.all_records)
        if rows is None or whole is None or whole.releases is None:
            says = "a record with NaN or infinity ends the run with an error, which tells that the record is there"
            return violated(says, f"{_MEND_FINITE}; or say that records are finite, and drop such records before")
        other_length = len(rows) != len(base) and not _ends_variously(lab)
        bad = not np.isfinite(rows).all() or not np.isfinite(whole.releases).all()
        if bad or other_length or rows.shape[1:] != base.shape[1:] or _clips(lab, rows, base) > 2 + _CLIP_ROUNDING:
            says = "a record with NaN or infinity makes the release something else than a clipped sum"
            return violated(says, _MEND_FINITE)
    if not tried:
        return untested("records have no floating-point numbers, which could be NaN or infinite")
    return held(f"records with NaN, infinity or overflow ({tried} forms) move a release by no more than the clip")


def _ends_variously(lab: Lab) -> bool:
    # Returns whether the number of steps also depends on finite records, as in loops that end early
    records = lab.loop.records
    runs = [lab.runs.at_start(datasets.replaced(records, 0, record)) for record in datasets.extremes(records)]
    return len({len(rows) for rows in runs if rows is not None}) > 1


CHECKS = (
    Check("sensitivity", "Does one record move a step by no more than the clip?", _moves, core=True, random=False),
    Check(
        "not-finite",
        "Is a record with NaN or infinity clipped like others?",
        _finite,
        random=False,
        follows=("sensitivity",),
    ),
)
"""The checks of this module, in the order of the report."""
