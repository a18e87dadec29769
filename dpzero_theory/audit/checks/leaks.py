"""Checks that nothing computed from the records is shown without noise: in outputs, prints or files of a run."""

import struct
from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any

import numpy as np
from scipy import stats

from dpzero_theory.audit import datasets
from dpzero_theory.audit.checks.batch_leaks import BY_CHANCE, of_batches
from dpzero_theory.audit.coupling import CLIPPED, LARGER, coupled
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.runs import SEED, same
from dpzero_theory.audit.tokens import Chunk, Position, Shown, Token, contents, tokens, unpacked, where
from dpzero_theory.privacy.relation import Relation

_FACTORS = (1.0, 8.0, 64.0, 512.0)
"""Multiples of the claimed noise at which runs are compared, so that every output with noise in it differs."""

_MEND_LEAK = "show nothing that is computed from the records without noise, or pay for it as a release of its own"
_CONFIRMING = 20
"""How many runs on each of two data sets confirm a leak.

A random word that is no leak has one value in all runs on one data set and another value in all runs on the other with
probability below 4^-20.
"""
_BAD_RECORDS = 2  # So many forms of a record with NaN or infinity are tried
_CONFIRMING_ROUNDS = (2, 8, 10)
"""The 20 runs that confirm a leak, in three rounds, so that most chance differences are dismissed after two runs."""
_PRESENCE_SEEDS = range(SEED, SEED + 16)
"""The loop's seeds in runs in which a given record may or may not be in the batch."""

_LEAK_DIGITS = 4
"""Numbers of a record with this many digits or fewer are not searched for in outputs, as they match by chance."""

_LEAK_BYTES = 4
"""The size in bytes of float32, the shortest binary form in which a record's number is searched for in outputs."""

_LEAK_ROUNDING = 1e-2  # Two numbers a and b that differ by at most this times 1 + |a| may differ by rounding alone
_LEAK_DRAWS = 3
"""How many draws of the noise coupled runs, which have equal noise on different data, are compared under."""

_LOUDEST = 1e10
"""The multiple of the claimed noise at which releases on all data sets are equal up to rounding.

With the small step size of coupled runs, weights then move about ten times as far as they do in training.
"""

_LEAK_SEED = 2027  # The seed with which the random record is drawn that replaces every record in one of the data sets


def unnoised(lab: Lab, level: float) -> Verdict:
    """Look for anything a run shows that changes with a record but not with the noise.

    Runs are made in turn on the data and on a data set with one other record, with noise of four sizes. A number or
    word that is equal in all runs on the first, equal in all runs on the second, and different between the two has no
    noise in it. The same is done with a data set in which all records are others. Clocks tick only when they are read,
    so that the time a run takes differs between runs only where the run does. `lab` makes experiments on the audited
    loop; `level`, the probability of a false alarm, is not used. Returns the verdict.
    """
    with lab.loop.clocks_that_tick():
        return _unnoised(lab)


def _unnoised(lab: Lab) -> Verdict:
    tried = False
    for what, pair, changes in _neighbours(lab):
        runs = _turns(lab, pair, changes, _FACTORS)
        if runs is None:
            continue
        tried = True
        places = sorted(_leaks(*runs))
        if places and (sure := _confirmed(lab, pair, changes, places)):
            return violated(f"{where(sure[0])}: it depends on {what} and not on the noise", _MEND_LEAK)
    if (says := of_batches(lab)) is not None:
        return violated(says, _MEND_LEAK)
    if (place := _presence(lab)) is not None:
        return violated(f"{where(place)}: it depends on who is in the batch, where the releases do not", _MEND_LEAK)
    place = _beyond(lab)
    if place is not None:
        return violated(f"{where(place)}: it depends on a record where the releases do not", _MEND_LEAK)
    if not tried:
        return untested("the loop fails on a neighbour of its data")
    if not lab.runs.noise_obeyed:
        return untested(
            "the noise ignores its setting, so that only runs with other seeds could be compared: none shows it"
        )
    count = len(tokens(lab.runs.base))
    return held(
        f"each of {count} numbers and words in outputs, prints and files varies with the noise, or not with the records"
    )


def _neighbours(lab: Lab) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Yields pairs of data sets that are compared: what they differ in (in words), the two data sets, and settings.

    The settings are changes of the loop's under which the two are compared. `lab` has the loop and its data.
    """
    records = lab.loop.records
    other = lab.influence.pair.first if lab.influence.pair is not None else next(iter(datasets.extremes(records)))
    alike = datasets.filled(records, datasets.random_like(records[0], np.random.default_rng(_LEAK_SEED), 1.0))
    worlds = {"one record": datasets.replaced(records, 0, other), "the records": alike}
    for (what, data), changes in product(
        worlds.items(), (lab.runs.all_records | lab.runs.frozen, lab.runs.all_records, {})
    ):
        yield what, [records, data], changes
    bad = islice(datasets.poisoned(records[0]), _BAD_RECORDS)
    for record in bad if lab.view.records == "any" else ():
        data = datasets.replaced(records, 0, record)
        base = lab.runs.attempt(data, seed=SEED, **lab.runs.all_records, **lab.runs.frozen)
        if base is not None and base.releases is not None and np.isfinite(base.releases).all():
            yield "whether a record is finite", [records, data], lab.runs.all_records | lab.runs.frozen


def _confirmed(lab: Lab, pair: list[Any], changes: dict[str, Any], places: list[Position]) -> list[Position]:
    """Returns those of some positions in a run's outputs that still tell two data sets apart in further runs.

    In 20 runs on each data set, with much more noise, `_leaks` must find the position again.

    Args:
        lab: makes runs of the loop.
        pair: the two data sets.
        changes: changes of the loop's settings.
        places: the positions.
    """
    runs = _turns(lab, pair, changes, tuple(_FACTORS[-1] + k for k in range(_CONFIRMING)))
    sure = set() if runs is None else set(_leaks(*runs))
    return [place for place in places if place in sure]


def _presence(lab: Lab) -> Position | None:
    """Returns a position in the outputs that shows whether certain records were in the batch; None where none does.

    No release shows that. One step is made on data whose last records are all zeros and one on data without them, under
    several seeds. They are compared where their releases are equal. A position that differs under every seed shows how
    many records there are, which is public; one that differs under some seeds depends on the batch. `lab` makes
    experiments on the audited loop.
    """
    claim = lab.claim
    if (
        claim.relation != Relation.ADD_REMOVE
        or lab.runs.repeatable != {}
        or lab.runs.streamed
        or claim.n < 3
        or claim.sample_rate == 1
    ):
        return None
    how = {"steps": 1, "noise_multiplier": lab.runs.quiet_multiplier, **lab.runs.frozen}
    for count in (1, claim.n // 4 or 1):
        data, less = lab.loop.records, lab.loop.records
        for place in range(claim.n - count, claim.n):
            data, less = (
                datasets.replaced(data, place, datasets.scaled(data[0], 0.0)),
                datasets.removed(less, len(less) - 1),
            )
        each = [_settled(lab, [data, less], {**how, "seed": seed}) for seed in _PRESENCE_SEEDS]
        seen = [places for places in each if places is not None]
        sometimes = set().union(*seen) - set(seen[0]).intersection(*seen) if seen else set()
        if sometimes:
            return min(sometimes)
    return None


def _turns(
    lab: Lab, data: list[Any], changes: dict[str, Any], factors: tuple[float, ...]
) -> tuple[list[Shown], list[Shown]] | None:
    """Returns what runs on the first and on the second data set show, as two lists; None where the loop fails.

    For each factor, in turn, one run is made on each data set with that multiple of the claimed noise. Where the loop
    ignores the noise setting, each pair of runs has its own seed instead.

    Args:
        lab: makes runs of the loop.
        data: the two data sets.
        changes: changes of the loop's settings.
        factors: the multiples of the claimed noise.
    """
    shown: tuple[list[Shown], list[Shown]] = ([], [])
    for k, factor in enumerate(factors):
        for world in (0, 1):
            how = {"noise_multiplier": lab.claim.noise_multiplier * factor} if lab.runs.noise_obeyed else {}
            same = lab.runs.paired(SEED if lab.runs.noise_obeyed else SEED + k)
            outcome = lab.runs.attempt(data[world], **same, **how, **changes)
            if outcome is None:
                return None
            shown[world].append(tokens(outcome))
    return shown


def _leaks(first: list[Shown], second: list[Shown]) -> Iterator[Position]:
    """Yields each position in the outputs that tells two data sets apart in every run.

    It has one number or word in all runs of `first`, and another, or none, in all runs of `second`.
    """
    for place in first[0].keys() | second[0].keys():
        here, there = first[0].get(place), second[0].get(place)
        alike = (all(run.get(place) == one for run in runs) for runs, one in ((first, here), (second, there)))
        if here != there and all(alike):
            yield place


def _beyond(lab: Lab) -> Position | None:
    """Returns a position in the outputs that differs between two data sets on which all releases are equal, or None.

    What stands there is computed from more than the releases. The data sets differ in one record, which is clipped in
    both and 1024 times as large in one. As 1024 is a power of two, the clipped contribution is the same to the last
    bit, in the first step at least. Or one record or all are others, and the noise, which is the same on
    both, is so large that the releases are equal up to rounding. `lab` makes experiments on the audited loop.
    """
    if lab.runs.repeatable is None:
        return None
    clipped = [datasets.scaled(lab.loop.records[0], factor) for factor in CLIPPED]
    pairs = [
        [datasets.replaced(lab.loop.records, 0, datasets.scaled(record, factor)) for factor in (1.0, LARGER)] * 2
        for record in (*clipped, *datasets.extremes(lab.loop.records))
    ]
    turned = datasets.scaled(lab.loop.records[0], -1.0)
    others = [
        datasets.replaced(lab.loop.records, 0, record) for record in (turned, *datasets.extremes(lab.loop.records))
    ]
    alike = datasets.random_like(lab.loop.records[0], np.random.default_rng(_LEAK_SEED), 1.0)
    drowned = [
        [lab.loop.records, data] * 2
        for data in (*others, datasets.each_scaled(lab.loop.records, -1.0), datasets.filled(lab.loop.records, alike))
    ]
    loud = {"noise_multiplier": lab.claim.noise_multiplier * _LOUDEST}
    for tried, numbers, how in (
        (pairs, range(_LEAK_DRAWS), {}),
        (pairs, range(1), {"steps": 1}),
        (drowned if lab.runs.noise_obeyed else [], range(_LEAK_DRAWS), loud),
    ):
        every = [data for worlds in tried for data in worlds]
        for number, outputs in zip(numbers, coupled(lab.runs, every, numbers, **how) if tried else (), strict=False):
            for k, worlds in enumerate(tried):
                places = differing(outputs[4 * k : 4 * k + 4])
                if places and (sure := places & _differing_again(lab, worlds[:2], number, how)):
                    return min(sure)
    for worlds in pairs:
        for noise in (0.0, lab.runs.quiet_multiplier):
            if places := _settled(lab, worlds[:2], {"seed": SEED, "noise_multiplier": noise, **lab.runs.all_records}):
                return min(places)
    return None


def _differing_again(lab: Lab, worlds: list[datasets.Records], number: int, how: dict[str, Any]) -> set[Position]:
    """Returns the positions in the outputs that still differ in 20 coupled runs on each data set, so not by chance.

    Coupled runs draw the same random numbers. `lab` makes the runs, `worlds` are the two data sets, `number` selects
    the random numbers, and `how` has changes of the loop's settings.
    """
    outputs = next(coupled(lab.runs, worlds * _CONFIRMING, [number], **how), None)
    return set() if outputs is None else differing(outputs) or set()


def _settled(lab: Lab, worlds: Sequence[datasets.Records], how: dict[str, Any]) -> set[Position] | None:
    """Returns the positions in the outputs where runs differ on two data sets with equal releases.

    None is returned where the releases differ. A random text or number may differ by chance between few runs. So, as
    long as any position differs, another round of runs is made, up to three rounds with 20 runs on each data set. All
    runs so far are compared by `differing`: a position is returned only if what it shows is the same in all runs on
    each data set, and differs between the two. `lab` makes the runs, `worlds` are the two data sets, and `how` has
    changes of the loop's settings.
    """
    runs: list[LoopOutput | None] = []
    for count in _CONFIRMING_ROUNDS:
        runs += [lab.runs.attempt(world, **how) for _ in range(count) for world in worlds]
        places = differing(runs)
        if not places:
            break
    return places


def differing(runs: Sequence[LoopOutput | None]) -> set[Position] | None:
    """Returns the positions in outputs that tell two data sets apart although the releases are equal.

    None is returned where the releases differ. `runs` are runs on the first and on the second data set in turn. A
    position counts if the number or piece of text there is the same in all runs on each data set, and differs between
    the two by more than rounding.
    """
    done = [run for run in runs if run is not None and run.releases is not None]
    rows = [np.asarray(run.releases) for run in done[:2]]
    if len(done) < len(runs) or not same(rows[0], rows[1]):
        return None
    exact, seen = np.array_equal(rows[0], rows[1]), [tokens(run) for run in done]
    return {place for place in _leaks(seen[::2], seen[1::2]) if _apart(seen[0].get(place), seen[1].get(place), exact)}


def _apart(a: Token | None, b: Token | None, exact: bool) -> bool:
    """Whether what two runs show at one position differs by more than rounding explains.

    `a` and `b` are the two different numbers or words there, None where a run shows nothing at that position; the
    answer is False if either is None. `exact` says whether the releases of the two runs are equal to the last bit. Only
    then is a difference between binary chunks, which rounding may change as a whole, counted.
    """
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) > _LEAK_ROUNDING * (1 + abs(a))
    return a is not None and b is not None and (exact or not isinstance(a, Chunk))


def canaries(lab: Lab, level: float) -> Verdict:
    """Search outputs, prints and files for the numbers of the first record, as text, float32 and float64.

    `lab` makes experiments on the audited loop; `level`, the probability of a false alarm, is not used. Returns the
    verdict.
    """
    values = {x for x in datasets.numbers(lab.loop.records[0]) if len(f"{abs(x):.12g}".replace(".", "")) > _LEAK_DIGITS}
    if len(values) < 1:
        return untested("the records have no numbers of many digits that could be recognised")
    wanted = {struct.pack("<d", x): x for x in values} | {struct.pack("<f", x): x for x in values if abs(x) < 1e38}
    wanted |= {f"{abs(x):.7g}".encode(): x for x in values}
    for name, value in lab.runs.base.shown.items():
        for inner, raw in _raw(name, value):
            hits = {x for pattern, x in wanted.items() if pattern in raw}
            chance = min(1.0, len(wanted) / len(values) * len(raw) * 256.0**-_LEAK_BYTES)
            if len(hits) > len(values) / 2 and stats.binom.sf(len(hits) - 1, len(values), chance) < BY_CHANCE:
                return violated(
                    f"{inner} has the first record's own numbers in it", "write no records, embeddings or caches"
                )
    return held(f"none of {len(values)} numbers of a record is in outputs, prints or files")


def _raw(name: str, value: Any) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, bytes):
        yield from unpacked(name, value)
    elif isinstance(value, str):
        yield name, value.encode()
    else:
        for inner, tokens in contents(name, value):
            yield inner, b" ".join(struct.pack("<d", x) if isinstance(x, float) else x for x in tokens)
