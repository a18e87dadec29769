"""What is shown without noise: in outputs, in what is printed, in every file written."""

import io
import re
import struct
import zipfile
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from dpzero_theory.audit import datasets
from dpzero_theory.audit.finding import Check, Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab, same
from dpzero_theory.audit.loop import Outcome

_FACTORS = (1.0, 8.0, 64.0, 512.0)
"""Of the noise multiplier, so that whatever has noise differs."""
_NUMBER = re.compile(rb"[-+]?(?:\d+\.\d+|\.\d+|\d+)(?:[eE][-+]?\d+)?")
_MEND = "show nothing that is computed from the records without noise, or pay for it as a release of its own"
_DIGITS = 4
_ROUNDING = 1e-2
_SEED = 2027
_Place = tuple[str, int]
_Token = float | bytes
_Shown = dict[_Place, _Token]


def numbers(outcome: Outcome, seen: Any) -> _Shown:
    """Every number shown, by where it stands."""
    found: _Shown = {}
    for name, value in outcome.shown.items():
        for inner, content in _contents(name, value):
            found |= {(inner, k): token for k, token in enumerate(content)}
    return found


def _contents(name: str, value: Any) -> Iterator[tuple[str, list[_Token]]]:
    if isinstance(value, bytes):
        for inner, raw in _unpacked(name, value):
            yield inner, _tokens(raw)
    elif isinstance(value, str):
        yield name, _read(value.encode())
    else:
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        try:
            array = np.asarray(value)
            flat = array.astype(np.float64).ravel()
        except (TypeError, ValueError):
            yield name, _read(repr(value).encode())
            return
        yield name, list[_Token](flat.tolist())


def _unpacked(name: str, raw: bytes) -> Iterator[tuple[str, bytes]]:
    """The members of an archive (numpy's and torch's files are archives), else the file."""
    if raw[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            for member in archive.namelist():
                yield f"{name}/{member.partition('/')[2] or member}", archive.read(member)
    else:
        yield name, raw


def _tokens(raw: bytes) -> list[_Token]:
    """Numbers of a text, words of four bytes of anything else."""
    if b"\0" not in raw[:4096] and all(byte < 128 for byte in raw[:4096]):
        return _read(raw)
    skip = 128 if raw[:6] == b"\x93NUMPY" else 0
    return [raw[k : k + 4] for k in range(skip, len(raw) - 3, 4)]


def _read(text: bytes) -> list[_Token]:
    return [float(token) for token in _NUMBER.findall(text)]


def unnoised(lab: Lab, level: float) -> Verdict:
    """Numbers that change with one record and do not change with the noise.

    Runs on the data and on a neighbour in turn, with noise of four sizes. What is equal in all runs on the data, equal
    in all runs on the neighbour, and different between them, has no noise in it. The same with all records
    exchanged.
    """
    records = lab.loop.records
    other = lab.pair.first if lab.pair is not None else next(iter(datasets.extremes(records)))
    alike = datasets.filled(records, datasets.random_like(records[0], np.random.default_rng(_SEED), 1.0))
    worlds = {"one record": datasets.replaced(records, 0, other), "the records": alike}
    tried = False
    for (what, data), changes in product(worlds.items(), (lab.all_records | lab.frozen, lab.all_records, {})):
        runs = _turns(lab, [records, data], changes)
        if runs is None:
            continue
        tried = True
        place = _leak(*runs)
        if place is not None:
            return violated(f"{place[0]}, number {place[1]}: it depends on {what} and not on the noise", _MEND)
    place = _beyond(lab)
    if place is not None:
        says = f"{place[0]}, number {place[1]}: it depends on a record where the releases do not"
        return violated(says, _MEND)
    if not tried:
        return untested("the loop fails on a neighbour of its data")
    if not lab.follows:
        return untested(
            "the noise ignores its setting, so that only runs with other seeds could be compared: none shows it"
        )
    count = len(numbers(lab.base, lab.view))
    return held(f"each of {count} numbers in outputs, prints and files varies with the noise, or not with the records")


def _turns(lab: Lab, data: list[Any], changes: dict[str, Any]) -> tuple[list[_Shown], list[_Shown]] | None:
    found: tuple[list[_Shown], list[_Shown]] = ([], [])
    for k, factor in enumerate(_FACTORS):
        for world in (0, 1):
            how = {"noise_multiplier": lab.claim.noise_multiplier * factor} if lab.follows else {}
            seed = 11 if lab.follows else 11 + k
            outcome = lab.attempt(data[world], seed=seed, **how, **changes)
            if outcome is None:
                return None
            found[world].append(numbers(outcome, lab.view))
    return found


def _leak(first: list[_Shown], second: list[_Shown]) -> _Place | None:
    for place, token in first[0].items():
        there = second[0].get(place)
        if there is None or token == there:
            continue
        if all(run.get(place) == token for run in first) and all(run.get(place) == there for run in second):
            return place
    return None


def _beyond(lab: Lab) -> _Place | None:
    """A number that differs between data whose releases without noise are equal: it is computed from more than these.

    The data differ in one record, which is clipped to the same contribution: it is a thousand times as large.
    """
    if lab.mode is None:
        return None
    for record in datasets.extremes(lab.loop.records):
        worlds = [datasets.replaced(lab.loop.records, 0, datasets.scaled(record, factor)) for factor in (1.0, 1e3)]
        for noise in (0.0, lab.quiet_noise):
            how = {"seed": 11, "noise_multiplier": noise, **lab.all_records}
            runs = [lab.attempt(world, **how) for world in (*worlds, *worlds)]
            if any(run is None or run.releases is None for run in runs):
                continue
            first, second, *again = (run for run in runs if run is not None)
            if same(np.asarray(first.releases), np.asarray(second.releases)):
                seen = [numbers(run, lab.view) for run in (first, second, *again)]
                for place, token in seen[0].items():
                    other = seen[1].get(place)
                    if token == seen[2].get(place) and other == seen[3].get(place) and _apart(token, other):
                        return place
                break
    return None


def _apart(a: _Token, b: _Token | None) -> bool:
    """Whether two numbers differ by more than what equal releases leave to rounding."""
    return isinstance(a, float) and isinstance(b, float) and abs(a - b) > _ROUNDING * (1 + abs(a))


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
        yield from _unpacked(name, value)
    elif isinstance(value, str):
        yield name, value.encode()
    else:
        for inner, tokens in _contents(name, value):
            yield inner, b" ".join(struct.pack("<d", x) if isinstance(x, float) else x for x in tokens)


FAMILY = (
    Check("un-noised", "Is anything shown that has no noise in it?", unnoised, random=False),
    Check("records-shown", "Are records in anything that is written?", canaries, random=False),
)
