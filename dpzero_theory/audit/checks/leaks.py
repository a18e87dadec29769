"""What is shown without noise: in outputs, in what is printed, in every file written."""

import struct
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from dpzero_theory.audit import datasets
from dpzero_theory.audit.finding import Check, Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab, same
from dpzero_theory.audit.loop import Outcome
from dpzero_theory.audit.tokens import Chunk, Place, Shown, Token, contents, tokens, unpacked, where
from dpzero_theory.privacy.relation import Relation

_FACTORS = (1.0, 8.0, 64.0, 512.0)
"""Of the noise multiplier, so that whatever has noise differs."""
_MEND = "show nothing that is computed from the records without noise, or pay for it as a release of its own"
_CONFIRMING = 20
"""Runs on each of two data sets."""
_STEPS, _STRIDES, _PLACES = 4, 64, 1000
"""Fewer steps may agree by chance; how far apart, and from how many places on, sizes of batches are looked for."""
_DIGITS = 4
_ROUNDING = 1e-2
_CLIPPED, _LARGER, _COUPLED, _AGAIN = (8.0, -8.0), 1024.0, 3, 4
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
    if (name := _shows_sizes(lab)) is not None:
        return violated(f"{name}: it has the sizes of the Poisson batches, which follow who is in the data", _MEND)
    place = _beyond(lab)
    if place is not None:
        return violated(f"{where(place)}: it depends on a record where the releases do not", _MEND)
    if not tried:
        return untested("the loop fails on a neighbour of its data")
    if not lab.follows:
        return untested(
            "the noise ignores its setting, so that only runs with other seeds could be compared: none shows it"
        )
    count = len(tokens(lab.base))
    return held(
        f"each of {count} numbers and words in outputs, prints and files varies with the noise, or not with the records"
    )


def _neighbours(lab: Lab) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Two data sets, what they differ in, and settings to compare them with."""
    records = lab.loop.records
    other = lab.pair.first if lab.pair is not None else next(iter(datasets.extremes(records)))
    alike = datasets.filled(records, datasets.random_like(records[0], np.random.default_rng(_SEED), 1.0))
    worlds = {"one record": datasets.replaced(records, 0, other), "the records": alike}
    for (what, data), changes in product(worlds.items(), (lab.all_records | lab.frozen, lab.all_records, {})):
        yield what, [records, data], changes


def _confirmed(lab: Lab, pair: list[Any], changes: dict[str, Any], places: list[Place]) -> list[Place]:
    """Those that stay so in many runs with much noise: a word that hangs on the noise may agree by chance in a few.

    Under the claim, one thing in all of k runs on the data and another in all on the neighbour has probability below
    4^-k and a little more.
    """
    runs = _turns(lab, pair, changes, tuple(_FACTORS[-1] + k for k in range(_CONFIRMING)))
    sure = set() if runs is None else set(_leaks(*runs))
    return [place for place in places if place in sure]


def _shows_sizes(lab: Lab) -> str | None:
    """An output with the size of every batch in it, at equal distances, where sizes are as secret as members are."""
    if lab.claim.relation != Relation.ADD_REMOVE or lab.claim.sampling != "poisson":
        return None
    batches = lab.base.batches
    sizes = [len(batch) for batch in batches] if batches else []
    if not sizes and lab.scan is not None:
        sizes = [int(size) for size in lab.scan.included[0].sum(axis=1)]
    if len(sizes) < _STEPS or len(set(sizes)) < 2:
        return None
    for name, value in lab.base.shown.items():
        for inner, content in contents(name, value):
            if _has(content, sizes):
                return inner
    return None


def _has(content: list[Token], sizes: list[int]) -> bool:
    last = len(sizes) - 1
    starts = [k for k, token in enumerate(content) if token == sizes[0]][:_PLACES]
    return any(
        all(content[start + stride * t] == size for t, size in enumerate(sizes))
        for start in starts
        for stride in range(1, min(_STRIDES, (len(content) - 1 - start) // last) + 1)
    )


def _turns(
    lab: Lab, data: list[Any], changes: dict[str, Any], factors: tuple[float, ...]
) -> tuple[list[Shown], list[Shown]] | None:
    found: tuple[list[Shown], list[Shown]] = ([], [])
    for k, factor in enumerate(factors):
        for world in (0, 1):
            how = {"noise_multiplier": lab.claim.noise_multiplier * factor} if lab.follows else {}
            seed = 11 if lab.follows else 11 + k
            outcome = lab.attempt(data[world], seed=seed, **how, **changes)
            if outcome is None:
                return None
            found[world].append(tokens(outcome))
    return found


def _leaks(first: list[Shown], second: list[Shown]) -> Iterator[Place]:
    """Places with one thing in all the first runs, and another one, or none, in all the second."""
    for place in first[0].keys() | second[0].keys():
        here, there = first[0].get(place), second[0].get(place)
        alike = (all(run.get(place) == one for run in runs) for runs, one in ((first, here), (second, there)))
        if here != there and all(alike):
            yield place


def _beyond(lab: Lab) -> Place | None:
    """A number that differs between data whose releases without noise are equal: it is computed from more than these.

    The data differ in one record, which is clipped to the same contribution: it is 1024 times as large, so that a
    contribution that is clipped is the same to the last bit.
    """
    if lab.mode is None:
        return None
    clipped = [datasets.scaled(lab.loop.records[0], factor) for factor in _CLIPPED]
    pairs = [
        [datasets.replaced(lab.loop.records, 0, datasets.scaled(record, factor)) for factor in (1.0, _LARGER)] * 2
        for record in (*clipped, *datasets.extremes(lab.loop.records))
    ]
    for found in lab.coupled([data for worlds in pairs for data in worlds], _COUPLED):
        for four in zip(found[::4], found[1::4], found[2::4], found[3::4], strict=True):
            if (place := _more(four)) is not None:
                return place
    for worlds in pairs:
        for noise in (0.0, lab.quiet_noise):
            how = {"seed": 11, "noise_multiplier": noise, **lab.all_records}
            runs = [lab.attempt(world, **how) for world in worlds]
            if _more(runs) is None:
                continue
            runs += [lab.attempt(world, **how) for _ in range(_AGAIN) for world in worlds]
            if (place := _more(runs)) is not None:
                return place
    return None


def _more(runs: Sequence[Outcome | None]) -> Place | None:
    """A place where runs with equal releases differ. runs: of two data sets in turn, as some things always change."""
    done = [run for run in runs if run is not None and run.releases is not None]
    rows = [np.asarray(run.releases) for run in done[:2]]
    if len(done) < len(runs) or not same(rows[0], rows[1]):
        return None
    exact, seen = np.array_equal(rows[0], rows[1]), [tokens(run) for run in done]
    for place in _leaks(seen[::2], seen[1::2]):
        if _apart(seen[0].get(place), seen[1].get(place), exact):
            return place
    return None


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
    for name, value in lab.base.shown.items():
        for inner, raw in _raw(name, value):
            hits = {x for pattern, x in wanted.items() if pattern in raw}
            if len(hits) > len(values) / 2:
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
