"""What is shown without noise: in outputs, in what is printed, in every file written."""

import struct
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from scipy import stats

from dpzero_theory.audit import datasets
from dpzero_theory.audit.coupling import CLIPPED, LARGER, coupled
from dpzero_theory.audit.finding import Check, Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.runs import same
from dpzero_theory.audit.tokens import Chunk, Position, Shown, Token, contents, tokens, unpacked, where
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation

_FACTORS = (1.0, 8.0, 64.0, 512.0)
"""Of the noise multiplier, so that whatever has noise differs."""
_MEND = "show nothing that is computed from the records without noise, or pay for it as a release of its own"
_CONFIRMING = 20
"""Runs on each of two data sets: of what is no leak, one thing in all on one and another in all on the other has
probability below 4^-20.
"""
_RUNS = (2, 8, 10)
"""The same, a few at first."""
_STEPS, _STRIDES, _PLACES = 4, 64, 1000
"""Fewer steps may agree by chance; how far apart, and from how many places on, sizes of batches are looked for."""
_DRAWS, _SEEDS = range(11, 27), 4
"""Seeds of batches, and of how many sizes are looked for."""
_BY_CHANCE = 1e-6
_Contents = list[tuple[str, list[Token]]]
_DIGITS, _SHORTEST = 4, 4
"""A number is recognised by more digits, or by so many bytes."""
_ROUNDING = 1e-2
_COUPLED = 3
_SEED = 2027


def unnoised(lab: Lab, level: float) -> Verdict:
    """Numbers that change with one record and do not change with the noise.

    Runs on the data and on a neighbour in turn, with noise of four sizes. What is equal in all runs on the data, equal
    in all runs on the neighbour, and different between them, has no noise in it. The same with all records
    exchanged.
    """
    tried = False
    for what, pair, changes in _neighbours(lab):
        runs = _turns(lab, pair, changes, _FACTORS)
        if runs is None:
            continue
        tried = True
        places = sorted(_leaks(*runs))
        if places and (sure := _confirmed(lab, pair, changes, places)):
            return violated(f"{where(sure[0])}: it depends on {what} and not on the noise", _MEND)
    if (says := _of_batches(lab)) is not None:
        return violated(says, _MEND)
    if (place := _presence(lab)) is not None:
        return violated(f"{where(place)}: it depends on who is in the batch, where the releases do not", _MEND)
    place = _beyond(lab)
    if place is not None:
        return violated(f"{where(place)}: it depends on a record where the releases do not", _MEND)
    if not tried:
        return untested("the loop fails on a neighbour of its data")
    if not lab.runs.noise_follows:
        return untested(
            "the noise ignores its setting, so that only runs with other seeds could be compared: none shows it"
        )
    count = len(tokens(lab.runs.base))
    return held(
        f"each of {count} numbers and words in outputs, prints and files varies with the noise, or not with the records"
    )


def _neighbours(lab: Lab) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Two data sets, what they differ in, and settings to compare them with."""
    records = lab.loop.records
    other = lab.influence.pair.first if lab.influence.pair is not None else next(iter(datasets.extremes(records)))
    alike = datasets.filled(records, datasets.random_like(records[0], np.random.default_rng(_SEED), 1.0))
    worlds = {"one record": datasets.replaced(records, 0, other), "the records": alike}
    for (what, data), changes in product(
        worlds.items(), (lab.runs.all_records | lab.runs.frozen, lab.runs.all_records, {})
    ):
        yield what, [records, data], changes


def _confirmed(lab: Lab, pair: list[Any], changes: dict[str, Any], places: list[Position]) -> list[Position]:
    """Those that stay so in many runs with much noise: a word that hangs on the noise may agree by chance in a few."""
    runs = _turns(lab, pair, changes, tuple(_FACTORS[-1] + k for k in range(_CONFIRMING)))
    sure = set() if runs is None else set(_leaks(*runs))
    return [place for place in places if place in sure]


def _of_batches(lab: Lab) -> str | None:
    """What an output says of the batches, on whose secrecy amplification rests: members, sizes."""
    claim = lab.claim
    if claim.sample_rate == 1 or claim.sampling in ("full", "fixed-order"):
        return None
    runs = list(_with_batches(lab))
    if claim.relation == Relation.ADD_REMOVE and runs and (name := _with_sizes(runs, claim.n, claim.sample_rate)):
        return f"{name}: it has the sizes of the batches, which follow who is in the data"
    for shown, batches in runs[:1]:
        if len(members := _with_members(shown, batches, claim.n)) > 1:
            return f"{members[0]}: it says who is in the batches, on whose secrecy the claim rests"
    return None


def _with_batches(lab: Lab) -> Iterator[tuple[_Contents, list[list[int]]]]:
    """Of several runs, what is shown and the batches: from the loop's own lists, else from the scan."""
    for k in range(_SEEDS):
        run = lab.runs.base if k == 0 else lab.loop.run(seed=_DRAWS[k])
        batches = run.batches
        if batches is None and lab.influence.scan is not None and k < len(lab.influence.scan.included):
            batches = [np.flatnonzero(row).tolist() for row in lab.influence.scan.included[k]]
        if batches:
            yield [one for name, value in run.shown.items() for one in contents(name, value)], batches


def _with_sizes(runs: list[tuple[_Contents, list[list[int]]]], n: int, rate: float) -> str | None:
    """Where the sizes of all batches of all runs are, in one place and at equal distances, and not by chance."""
    steps = min(len(batches) for _, batches in runs)
    chance = float(stats.binom.pmf(np.arange(n + 1), n, rate).max()) ** (steps * len(runs))
    for name, content in runs[0][0]:
        places = _sizes_at(content, runs[0][1])
        for shown, batches in runs[1:]:
            places &= _sizes_at(dict(shown).get(name, []), batches)
        if places and chance * len(content) * _STRIDES < _BY_CHANCE:
            return name
    return None


def _with_members(shown: _Contents, batches: list[list[int]], n: int) -> list[str]:
    """For each batch that is shown, where: its members one after the other, or n numbers that are 1 for these."""
    numbers = {name: np.array([token for token in one if isinstance(token, float)]) for name, one in shown}
    found = []
    for batch in batches:
        rows = [np.array(sorted(batch), dtype=float), np.isin(np.arange(n), batch).astype(float)]
        if _STEPS <= len(batch) < n and max(batch) - min(batch) >= len(batch):  # else any count has it
            found += [name for name, each in numbers.items() if any(_is_in(row, each) for row in rows)][:1]
    return found


def _is_in(row: Array, numbers: Array) -> bool:
    if len(numbers) < len(row):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(numbers, len(row))
    return bool(np.asarray(windows == row).all(axis=1).any())


def _sizes_at(content: list[Token], batches: list[list[int]]) -> set[tuple[int, int]]:
    """From where on, and how far apart, the size of every batch is there."""
    sizes = [len(batch) for batch in batches]
    if len(sizes) < _STEPS or len(set(sizes)) < 2:
        return set()
    last = len(sizes) - 1
    starts = [k for k, token in enumerate(content) if token == sizes[0]][:_PLACES]
    return {
        (start, stride)
        for start in starts
        for stride in range(1, min(_STRIDES, (len(content) - 1 - start) // last) + 1)
        if all(content[start + stride * t] == size for t, size in enumerate(sizes))
    }


def _presence(lab: Lab) -> Position | None:
    """A place that follows whether records were in the batch which add nothing to a release.

    One step is made with them and without them. What always differs is the number of records, and public.
    """
    claim = lab.claim
    if claim.relation != Relation.ADD_REMOVE or lab.runs.repeatable != {} or claim.n < 3 or claim.sample_rate == 1:
        return None
    how = {"steps": 1, "noise_multiplier": lab.runs.quiet_multiplier, **lab.runs.frozen}
    for count in (1, claim.n // 4 or 1):
        data, less = lab.loop.records, lab.loop.records
        for place in range(claim.n - count, claim.n):
            data, less = (
                datasets.replaced(data, place, datasets.scaled(data[0], 0.0)),
                datasets.removed(less, len(less) - 1),
            )
        found = [_settled(lab, [data, less], {**how, "seed": seed}) for seed in _DRAWS]
        seen = [places for places in found if places is not None]
        sometimes = set().union(*seen) - set(seen[0]).intersection(*seen) if seen else set()
        if sometimes:
            return min(sometimes)
    return None


def _turns(
    lab: Lab, data: list[Any], changes: dict[str, Any], factors: tuple[float, ...]
) -> tuple[list[Shown], list[Shown]] | None:
    found: tuple[list[Shown], list[Shown]] = ([], [])
    for k, factor in enumerate(factors):
        for world in (0, 1):
            how = {"noise_multiplier": lab.claim.noise_multiplier * factor} if lab.runs.noise_follows else {}
            seed = 11 if lab.runs.noise_follows else 11 + k
            outcome = lab.runs.attempt(data[world], seed=seed, **how, **changes)
            if outcome is None:
                return None
            found[world].append(tokens(outcome))
    return found


def _leaks(first: list[Shown], second: list[Shown]) -> Iterator[Position]:
    """Places with one thing in all the first runs, and another one, or none, in all the second."""
    for place in first[0].keys() | second[0].keys():
        here, there = first[0].get(place), second[0].get(place)
        alike = (all(run.get(place) == one for run in runs) for runs, one in ((first, here), (second, there)))
        if here != there and all(alike):
            yield place


def _beyond(lab: Lab) -> Position | None:
    """A number that differs between data whose releases without noise are equal: it is computed from more than these.

    The data differ in one record, which is clipped to the same contribution: it is 1024 times as large, so that a
    contribution that is clipped is the same to the last bit, in the first step at least.
    """
    if lab.runs.repeatable is None:
        return None
    clipped = [datasets.scaled(lab.loop.records[0], factor) for factor in CLIPPED]
    pairs = [
        [datasets.replaced(lab.loop.records, 0, datasets.scaled(record, factor)) for factor in (1.0, LARGER)] * 2
        for record in (*clipped, *datasets.extremes(lab.loop.records))
    ]
    every = [data for worlds in pairs for data in worlds]
    for numbers, how in ((range(_COUPLED), {}), (range(1), {"steps": 1})):
        for number, found in zip(numbers, coupled(lab.runs, every, numbers, **how), strict=False):
            for k, worlds in enumerate(pairs):
                places = differing(found[4 * k : 4 * k + 4])
                if places and (sure := places & _differing_again(lab, worlds[:2], number, how)):
                    return min(sure)
    for worlds in pairs:
        for noise in (0.0, lab.runs.quiet_multiplier):
            if places := _settled(lab, worlds[:2], {"seed": 11, "noise_multiplier": noise, **lab.runs.all_records}):
                return min(places)
    return None


def _differing_again(lab: Lab, worlds: list[datasets.Records], number: int, how: dict[str, Any]) -> set[Position]:
    """As `differing`, in many coupled runs of this number: few digits of a digest under a secret key may agree."""
    found = next(coupled(lab.runs, worlds * _CONFIRMING, [number], **how), None)
    return set() if found is None else differing(found) or set()


def _settled(lab: Lab, worlds: Sequence[datasets.Records], how: dict[str, Any]) -> set[Position] | None:
    """As `differing`, in few runs on each of two data sets and then in many, as words may agree by chance."""
    runs: list[LoopOutput | None] = []
    for count in _RUNS:
        runs += [lab.runs.attempt(world, **how) for _ in range(count) for world in worlds]
        found = differing(runs)
        if not found:
            break
    return found


def differing(runs: Sequence[LoopOutput | None]) -> set[Position] | None:
    """The places where runs with equal releases differ; None where releases do.

    runs: of two data sets in turn, as some things always change.
    """
    done = [run for run in runs if run is not None and run.releases is not None]
    rows = [np.asarray(run.releases) for run in done[:2]]
    if len(done) < len(runs) or not same(rows[0], rows[1]):
        return None
    exact, seen = np.array_equal(rows[0], rows[1]), [tokens(run) for run in done]
    return {place for place in _leaks(seen[::2], seen[1::2]) if _apart(seen[0].get(place), seen[1].get(place), exact)}


def _apart(a: Token | None, b: Token | None, exact: bool) -> bool:
    """Whether two differ by more than what equal releases leave to rounding; exact: they leave nothing to it."""
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) > _ROUNDING * (1 + abs(a))
    return a is not None and b is not None and (exact or not isinstance(a, Chunk))


def canaries(lab: Lab, level: float) -> Verdict:
    """Numbers of the records themselves, as text, float32 and float64, in outputs, prints and files."""
    values = {x for x in datasets.numbers(lab.loop.records[0]) if len(f"{abs(x):.12g}".replace(".", "")) > _DIGITS}
    if len(values) < 1:
        return untested("the records have no numbers of many digits that could be recognised")
    wanted = {struct.pack("<d", x): x for x in values} | {struct.pack("<f", x): x for x in values if abs(x) < 1e38}
    wanted |= {f"{abs(x):.7g}".encode(): x for x in values}
    for name, value in lab.runs.base.shown.items():
        for inner, raw in _raw(name, value):
            hits = {x for pattern, x in wanted.items() if pattern in raw}
            chance = min(1.0, len(wanted) / len(values) * len(raw) * 256.0**-_SHORTEST)
            if len(hits) > len(values) / 2 and stats.binom.sf(len(hits) - 1, len(values), chance) < _BY_CHANCE:
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


FAMILY = (
    Check("un-noised", "Is anything shown that has no noise in it?", unnoised, random=False),
    Check("records-shown", "Are records in anything that is written?", canaries, random=False),
)
