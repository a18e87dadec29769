"""Checks that nothing computed from the records is shown without noise: in outputs, prints or files of a run."""

from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any

import numpy as np
from scipy import stats

from dpzero_theory.audit import datasets
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.runs import SEED, same
from dpzero_theory.audit.tokens import Chunk, Position, Shown, Token, contents, tokens, where
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation

_TICK = 1e-3  # Seconds by which clocks advance each time they are read, so that times tell only what a run does
_FACTORS = (1.0, 8.0, 64.0, 512.0)
"""Multiples of the claimed noise at which runs are compared, so that every output with noise in it differs."""
_MEND_LEAK = "show nothing that is computed from the records without noise, or pay for it as a release of its own"
_CONFIRMING = 20
"""How many runs are made on each of two data sets to confirm a leak. A random word that is no leak has one value in all
20 runs on one data set and another in all runs on the other with probability below 4^-20."""
_BAD_RECORDS = 2  # So many forms of a record with NaN or infinity are tried
_CLIPPED, _LARGER = (8.0, -8.0), 1024.0
"""Factors by which a record is scaled so that the loop clips it, and a power of two by which it is then scaled further,
which leaves its clipped contribution the same to the last bit."""
_SHOWN_ROUNDING = 1e-2  # Two numbers a and b that differ by at most this times 1 + |a| may differ by rounding alone
_DRAWS = 3  # Coupled runs, which have equal noise on different data, are compared under so many draws of the noise
_LOUDEST = 1e10
"""The multiple of the claimed noise at which releases on all data sets are equal up to rounding. With the small step
size of coupled runs, weights then move about ten times as far as they do in training."""
_RECORD_SEED = 2027  # The seed with which the random record is drawn that replaces every record in one of the data sets
_FEWEST_STEPS = 4  # Batches with fewer members, and runs with fewer steps, are not looked for, as they match by chance
_SIZE_STRIDES, _SIZE_STARTS = 64, 1000
"""Sizes of batches are looked for in an output at distances of 1 to 64 of its numbers, from the first 1000 on."""
_NEAR_SIZE = 0.05  # A number times a constant counts as the size of a batch if it is so near to it
_BY_CHANCE = 1e-6  # An output shows sizes of batches if it matches them by chance with probability below this


def unnoised(lab: Lab, level: float) -> Verdict:
    """Look for anything a run shows that changes with a record but not with the noise, or that tells the batches.

    Runs are made in turn on the data and on a data set with one other record, with noise of four sizes. A number or
    word that is equal in all runs on the first, equal in all runs on the second, and different between the two has no
    noise in it. The same is done with a data set in which all records are others. Nothing here is random but words that
    agree by chance in 20 runs.
    """
    with lab.loop.clocks(_TICK):
        tried = False
        for what, pair, changes in _neighbours(lab):
            runs = _turns(lab, pair, changes, _FACTORS)
            if runs is None:
                continue
            tried = True
            places = set(_leaks(*runs))
            again = _turns(lab, pair, changes, [_FACTORS[-1] + k for k in range(_CONFIRMING)]) if places else None
            if again and (sure := places & set(_leaks(*again))):
                return violated(f"{where(min(sure))}: it depends on {what} and not on the noise", _MEND_LEAK)
        if (says := _of_batches(lab)) is not None:
            return violated(says, _MEND_LEAK)
        if (place := _beyond_releases(lab)) is not None:
            return violated(f"{where(place)}: it depends on a record where the releases do not", _MEND_LEAK)
    if not tried:
        return untested("the loop fails on a neighbour of its data")
    if not lab.runs.noise_obeyed:
        return untested("the noise ignores its setting, so that only runs with other seeds could be compared")
    count = len(tokens(lab.runs.base))
    return held(f"each of {count} numbers and words that are shown varies with the noise, or not with the records")


def _neighbours(lab: Lab) -> Iterator[tuple[str, list[Records], dict[str, Any]]]:
    """Yield what two data sets differ in (in words), the data sets, and the settings under which to compare them."""
    records = lab.loop.records
    other = lab.influence.pair.first if lab.influence.pair is not None else next(iter(datasets.extremes(records)))
    alike = datasets.filled(records, datasets.random_like(records[0], np.random.default_rng(_RECORD_SEED), 1.0))
    worlds = {"one record": datasets.replaced(records, 0, other), "the records": alike}
    ways: tuple[dict[str, Any], ...] = (lab.runs.all_records | lab.runs.frozen, lab.runs.all_records, {})
    for (what, data), changes in product(worlds.items(), ways):
        yield what, [records, data], changes
    bad = islice(datasets.poisoned(records[0]), _BAD_RECORDS)
    for record in bad if lab.view.records == "any" else ():
        data = datasets.replaced(records, 0, record)
        base = lab.runs.attempt(data, seed=SEED, **ways[0])
        if base is not None and base.releases is not None and np.isfinite(base.releases).all():
            yield "whether a record is finite", [records, data], ways[0]


def _turns(
    lab: Lab, data: list[Records], changes: dict[str, Any], factors: Sequence[float]
) -> tuple[list[Shown], list[Shown]] | None:
    """Return what runs on the first and on the second data set show, as two lists; None where the loop fails.

    For each factor, in turn, one run is made on each data set with that multiple of the claimed noise. Where the loop
    ignores the noise setting, each pair of runs has its own seed instead.
    """
    shown: tuple[list[Shown], list[Shown]] = ([], [])
    for k, factor in enumerate(factors):
        for world in (0, 1):
            how = {"noise_multiplier": lab.claim.noise_multiplier * factor} if lab.runs.noise_obeyed else {}
            alike = lab.runs.paired(SEED if lab.runs.noise_obeyed else SEED + k)
            output = lab.runs.attempt(data[world], **alike, **how, **changes)
            if output is None:
                return None
            shown[world].append(tokens(output))
    return shown


def _leaks(first: list[Shown], second: list[Shown]) -> Iterator[Position]:
    """Yield each position in the outputs that tells two data sets apart in every run.

    It has one number or word in all runs of `first`, and another, or none, in all runs of `second`.
    """
    for place in first[0].keys() | second[0].keys():
        here, there = first[0].get(place), second[0].get(place)
        alike = (all(run.get(place) == one for run in runs) for runs, one in ((first, here), (second, there)))
        if here != there and all(alike):
            yield place


def _beyond_releases(lab: Lab) -> Position | None:
    """Return a position in the outputs that differs between two data sets on which all releases are equal, or None.

    What stands there is computed from more than the releases. The data sets differ in one record, which is clipped in
    both and 1024 times as large in one. Or one record or all are others, and the noise, which is the same on both, is
    so large that the releases are equal up to rounding.
    """
    if lab.runs.repeatable is None:
        return None
    records, first = lab.loop.records, lab.loop.records[0]
    extremes = list(datasets.extremes(records))
    clipped = [
        [datasets.replaced(records, 0, datasets.scaled(record, factor)) for factor in (1.0, _LARGER)]
        for record in (*(datasets.scaled(first, factor) for factor in _CLIPPED), *extremes)
    ]
    alike = datasets.random_like(first, np.random.default_rng(_RECORD_SEED), 1.0)
    others = [datasets.replaced(records, 0, record) for record in (datasets.scaled(first, -1.0), *extremes)]
    others += [datasets.each_scaled(records, -1.0), datasets.filled(records, alike)]
    drowned = [[records, data] for data in others if lab.runs.noise_obeyed]
    loud = {"noise_multiplier": lab.claim.noise_multiplier * _LOUDEST}
    for pairs, draws, how in ((clipped, _DRAWS, {}), (clipped, 1, {"steps": 1}), (drowned, _DRAWS, loud)):
        every = [data for pair in pairs for data in (*pair, *pair)]
        for number, outputs in enumerate(lab.runs.coupled(every, range(draws), **how) if pairs else ()):
            for k, pair in enumerate(pairs):
                places = _differing(outputs[4 * k : 4 * k + 4])
                if places and (sure := places & _differing_again(lab, pair, number, how)):
                    return min(sure)
    return None


def _differing_again(lab: Lab, pair: list[Records], number: int, how: dict[str, Any]) -> set[Position]:
    """Return the positions in the outputs that still differ in 20 coupled runs on each data set, so not by chance."""
    outputs = next(lab.runs.coupled(pair * _CONFIRMING, [number], **how), None)
    return set() if outputs is None else _differing(outputs) or set()


def _differing(runs: Sequence[LoopOutput | None]) -> set[Position] | None:
    """Return the positions in outputs that tell two data sets apart although the releases are equal.

    None is returned where the releases differ. `runs` are runs on the first and on the second data set in turn. A
    position counts if the number or word there is the same in all runs on each data set, and differs between the two by
    more than rounding. Digests and chunks of binary files do not count: a digest under a secret key betrays nothing.
    """
    done = [run for run in runs if run is not None and run.releases is not None]
    if len(done) < len(runs) or not same(np.asarray(done[0].releases), np.asarray(done[1].releases)):
        return None
    seen = [tokens(run) for run in done]
    return {place for place in _leaks(seen[::2], seen[1::2]) if _apart(seen[0].get(place), seen[1].get(place))}


def _apart(a: Token | None, b: Token | None) -> bool:
    """Whether what two runs show at one position, None for nothing, differs by more than rounding explains."""
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) > _SHOWN_ROUNDING * (1 + abs(a))
    return a is not None and b is not None and not isinstance(a, Chunk)


def _of_batches(lab: Lab) -> str | None:
    """Return a sentence on an output that shows the batches' sizes or members; None where no output does.

    The batches are those that the loop returns, or else those that were seen in the releases.
    """
    claim, scan = lab.claim, lab.influence.scan
    if claim.sample_rate == 1 or claim.sampling in ("full", "fixed-order", "shuffled"):
        return None
    runs: list[tuple[dict[str, Array], list[list[int]]]] = []
    for k, seed in enumerate(range(SEED, SEED + 4) if scan is None else scan.seeds):
        run = lab.loop.run(**lab.runs.with_batches(seed))
        batches = (
            run.batches if scan is None or run.batches else [np.flatnonzero(row).tolist() for row in scan.included[k]]
        )
        if batches:
            numbers = {
                name: np.array([token if isinstance(token, float) else np.nan for token in content])
                for output, value in run.shown.items()
                for name, content in contents(output, value)
            }
            runs.append((numbers, batches))
    for name, shown in runs[0][0].items() if runs else ():
        if claim.relation == Relation.ADD_REMOVE and _with_sizes(
            [(one.get(name), sizes) for one, sizes in runs], claim
        ):
            return f"{name}: it has the sizes of the batches, which follow who is in the data"
        if sum(_has_members(shown[~np.isnan(shown)], batch, claim.n) for batch in runs[0][1]) > 1:
            return f"{name}: it says who is in the batches, on whose secrecy the claim rests"
    return None


def _with_sizes(runs: Sequence[tuple[Array | None, list[list[int]]]], claim: Any) -> bool:
    """Whether an output lists the sizes of all batches, at the same place in every run.

    The sizes must be equally spaced in the output, and the match must have probability below 1e-6 by chance.
    """
    steps = min(len(batches) for _, batches in runs)
    most = float(stats.binom.pmf(np.arange(claim.n + 1), claim.n, claim.sample_rate).max())
    places = set.intersection(*(set() if one is None else _sizes_at(one, batches) for one, batches in runs))
    count = 0 if runs[0][0] is None else runs[0][0].size
    return bool(places) and most ** ((steps - 1) * len(runs)) * count * _SIZE_STRIDES < _BY_CHANCE


def _sizes_at(numbers: Array, batches: list[list[int]]) -> set[tuple[int, int]]:
    """Return every (start, stride) at which an output lists the sizes of all batches, or a multiple of them.

    Number start + stride * t of an output, NaN for words, is then the size of batch t times a constant, for every t. A
    rate of records per second is such a multiple where every step takes the same time.
    """
    sizes = np.array([len(batch) for batch in batches], dtype=np.float64)
    if len(sizes) < _FEWEST_STEPS or len(set(sizes)) < 2:
        return set()
    last, scale, found = len(sizes) - 1, float(sizes @ sizes), set[tuple[int, int]]()
    for stride in range(1, min(_SIZE_STRIDES, (len(numbers) - 1) // last) + 1):
        windows = np.lib.stride_tricks.sliding_window_view(numbers, last * stride + 1)[:_SIZE_STARTS, ::stride]
        with np.errstate(all="ignore"):
            apart = np.abs(windows / (windows @ sizes / scale)[:, None] - sizes).max(axis=1)
        found |= {(int(start), stride) for start in np.flatnonzero(apart < _NEAR_SIZE)}
    return found


def _has_members(numbers: Array, batch: list[int], n: int) -> bool:
    """Whether an output lists a batch: its members in ascending order, or n numbers, 1 for members and 0 for others."""
    if not _FEWEST_STEPS <= len(batch) < n or max(batch) - min(batch) < len(batch):
        return False
    for row in (np.array(sorted(batch), dtype=float), np.isin(np.arange(n), batch).astype(float)):
        if len(numbers) >= len(row):
            windows = np.lib.stride_tricks.sliding_window_view(numbers, len(row))
            if np.asarray(windows == row).all(axis=1).any():
                return True
    return False
