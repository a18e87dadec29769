"""Checks that a run shows nothing that is computed from the records without noise, in its outputs, prints or files.

All that a run shows is split into tokens: numbers, words, hexadecimal digests, or four bytes of a binary file. Two runs
are compared token by token.

A check is a function (lab, level) -> verdict. It runs the audited training loop by experiments of `lab`, a `Lab`, and
replaces the clocks of the process meanwhile. `level`, the probability of a false alarm, is not used here.
"""

import gzip
import io
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, product
from typing import Any

import numpy as np
from scipy import stats

from dpzero_theory.audit import datasets
from dpzero_theory.audit.claim import Claim
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.report import Check, Verdict, held, untested, violated
from dpzero_theory.audit.runs import SEED, same
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation

_TICK = 1e-3  # Clocks advance by this many seconds when they are read, so measured times depend only on what a run does
_FACTORS = (1.0, 8.0, 64.0, 512.0)
"""The multiples of the claimed noise in the runs on a data set, so that each output with noise in it changes."""
_MEND_LEAK = "show nothing that is computed from the records without noise, or pay for it as a release of its own"
_CONFIRMING = 20
"""A suspected leak is confirmed by this many runs on each of two data sets. A value that every run draws at random
looks like one, with one value in all runs on one data set and another in all others, with probability <= 2 * 4^-20."""
_BAD_RECORDS = 2  # The number of forms of a record with NaN or infinity that are tried, as each takes many runs
_CLIPPED, _LARGER = (8.0, -8.0), 1024.0
"""`_CLIPPED` are factors by which a record is scaled so that the loop clips it. `_LARGER` is a power of two by which it
is scaled further, which does not change a bit of its clipped contribution."""
_SHOWN_ROUNDING = 1e-2  # Two numbers a and b that differ by at most this times (1 + |a|) may differ by rounding alone
_DRAWS = 3  # The number of draws of the noise under which runs with equal noise on different data are compared
_LOUDEST = 1e10  # Equal noise of this multiple of the claimed one makes releases on all data sets equal up to rounding
_RECORD_SEED = 2027  # The seed of the random record whose copies make up one of the data sets
_FEWEST_MATCHED = 4  # Fewer members of a batch, or sizes of batches, are not looked for, since chance may match them
_SIZE_STRIDES, _SIZE_STARTS = 64, 1000
"""Sizes of batches are looked for in the numbers a, a + k, a + 2 k, ... of an output, with k = 1 to 64 and a < 1000."""
_NEAR_SIZE = 0.05  # A number times a constant counts as the size of a batch if the two differ by less than this
_BY_CHANCE = 1e-6  # An output counts as sizes of batches if unrelated numbers would match with probability below this
_Token = float | bytes
"""A part of what a run shows, as `contents` cuts it: a number as a float; or, as bytes, a word of text, a string of 16
or more hexadecimal digits, or four bytes of a binary file."""
_Position = tuple[str, int]
"""The name of an output, and the index of a number or word (`_Token`) in it. Index -1 stands for how many it has."""


class _Chunk(bytes):
    # A token of 16 or more hexadecimal digits, or of four bytes of a binary file. Such tokens are compared in runs with
    # noise of several sizes (`_leaking`), but not in runs whose releases are equal up to rounding (`_differ`), since
    # rounding may change all digits of a hash and all bits of a binary number
    pass


_Shown = dict[_Position, _Token]
"""What an attacker sees of a run: every number or word (`_Token`) by the name of the output and its index in that."""

_NUMBER = rb"[-+]?(?:\d+\.\d+|\.\d+|\d+)(?:[eE][-+]?\d+)?"
_HEX = rb"[0-9A-Fa-f-]"
DIGEST = rb"(?<![0-9A-Za-z.])(?=" + _HEX + rb"*\d)(?=" + _HEX + rb"*[A-Fa-f])" + _HEX + rb"{16,}(?![0-9A-Za-z])"
"""A regular expression for 16 or more hexadecimal digits or hyphens, with a decimal digit and a letter among them."""
_TOKEN = re.compile(rb"(" + DIGEST + rb")|(" + _NUMBER + rb")|(?:(?!" + DIGEST + rb")[^\s\d])+")
_PACKED: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"\x78\x9c": zlib.decompress,
    b"\x78\xda": zlib.decompress,
}
"""Functions that decompress a file, by the first bytes of such a file."""
_NPY = b"\x93NUMPY"


def _unnoised(lab: Lab, level: float) -> Verdict:
    # Makes runs in turn on the data and on a data set with one record, or all, exchanged, with noise of four sizes. A
    # number or word that is shown has no noise in it if it is the same in all runs on each data set, but not on both
    with lab.loop.clocks(_TICK):
        tried = False
        for what, pair, changes in _data_pairs(lab):
            runs = _run_in_turn(lab, pair, changes, _FACTORS)
            if runs is None:
                continue
            tried = True
            places = set(_leaking(*runs))
            again = _run_in_turn(lab, pair, changes, [_FACTORS[-1] + k for k in range(_CONFIRMING)]) if places else None
            if again and (sure := places & set(_leaking(*again))):
                return violated(f"{_in_words(min(sure))}: it depends on {what} and not on the noise", _MEND_LEAK)
        if (says := _of_batches(lab)) is not None:
            return violated(says, _MEND_LEAK)
        if (place := _beyond_releases(lab)) is not None:
            return violated(f"{_in_words(place)}: it depends on a record where the releases do not", _MEND_LEAK)
    if not tried:
        return untested("the loop fails on a neighbour of its data")
    if not lab.runs.noise_obeyed:
        return untested("the noise ignores its setting, so that only runs with other seeds could be compared")
    count = len(_tokens(lab.runs.base))
    return held(f"each of {count} numbers and words that are shown varies with the noise, or not with the records")


def _data_pairs(lab: Lab) -> Iterator[tuple[str, list[Records], dict[str, Any]]]:
    # Yields what two data sets differ in, in words; the two data sets, the loop's own first; and changes of settings
    records = lab.loop.records
    other = lab.influence.pair.first if lab.influence.pair is not None else next(iter(datasets.extremes(records)))
    alike = datasets.filled(records, datasets.random_like(records[0], np.random.default_rng(_RECORD_SEED), 1.0))
    data_sets = {"one record": datasets.replaced(records, 0, other), "the records": alike}
    ways: tuple[dict[str, Any], ...] = (lab.runs.all_records | lab.runs.frozen, lab.runs.all_records, {})
    for (what, data), changes in product(data_sets.items(), ways):
        yield what, [records, data], changes
    bad = islice(datasets.poisoned(records[0]), _BAD_RECORDS)
    for record in bad if lab.view.records == "any" else ():
        data = datasets.replaced(records, 0, record)
        base = lab.runs.attempt(data, seed=SEED, **ways[0])
        if base is not None and base.releases is not None and np.isfinite(base.releases).all():
            yield "whether a record is finite", [records, data], ways[0]


def _run_in_turn(
    lab: Lab, data: list[Records], changes: dict[str, Any], factors: Sequence[float]
) -> tuple[list[_Shown], list[_Shown]] | None:
    # Returns what runs show on each of two data sets, with one run for each multiple in `factors` of the claimed noise,
    # or for as many seeds if the loop ignores the noise setting. What has noise in it changes from run to run. None if
    # a run fails
    shown: tuple[list[_Shown], list[_Shown]] = ([], [])
    for k, factor in enumerate(factors):
        for which in (0, 1):
            how = {"noise_multiplier": lab.claim.noise_multiplier * factor} if lab.runs.noise_obeyed else {}
            alike = lab.runs.paired(SEED if lab.runs.noise_obeyed else SEED + k)
            output = lab.runs.attempt(data[which], **alike, **how, **changes)
            if output is None:
                return None
            shown[which].append(_tokens(output))
    return shown


def _leaking(first: list[_Shown], second: list[_Shown]) -> Iterator[_Position]:
    # Yields positions (output, index) that tell two data sets apart: all runs on the first show one number or word
    # there, or none, and all runs on the second show one other, or none
    for place in first[0].keys() | second[0].keys():
        here, there = first[0].get(place), second[0].get(place)
        alike = (all(run.get(place) == one for run in runs) for runs, one in ((first, here), (second, there)))
        if here != there and all(alike):
            yield place


def _beyond_releases(lab: Lab) -> _Position | None:
    # Returns the position (output, index) of a number or word that tells two data sets apart although all runs release
    # the same numbers, or None. The data sets differ in one record, which is clipped in both and 1024 times as large in
    # one; or they differ in one or all records, and equal noise is so large that releases are equal up to rounding
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
    others += [datasets.scaled(records, -1.0), datasets.filled(records, alike)]
    drowned = [[records, data] for data in others if lab.runs.noise_obeyed]
    loud = {"noise_multiplier": lab.claim.noise_multiplier * _LOUDEST}
    for pairs, draws, how in ((clipped, _DRAWS, {}), (clipped, 1, {"steps": 1}), (drowned, _DRAWS, loud)):
        every = [data for pair in pairs for data in (*pair, *pair)]
        for number, outputs in enumerate(lab.runs.coupled(every, range(draws), **how) if pairs else ()):
            for k, pair in enumerate(pairs):
                if places := _differing(outputs[4 * k : 4 * k + 4]):
                    # What also differs in 20 more runs on each data set hardly does so by chance.
                    again = next(lab.runs.coupled(pair * _CONFIRMING, [number], **how), None)
                    if again is not None and (sure := places & (_differing(again) or set())):
                        return min(sure)
    return None


def _differing(runs: Sequence[LoopOutput | None]) -> set[_Position] | None:
    # `runs` are runs with equal noise on one data set and on another in turn. Returns the places in outputs at which
    # all runs on one data set show one number or word, and all runs on the other show another, by more than rounding.
    # None if the releases differ, or if a run failed or released nothing
    done = [run for run in runs if run is not None and run.releases is not None]
    if len(done) < len(runs) or not same(np.asarray(done[0].releases), np.asarray(done[1].releases)):
        return None
    seen = [_tokens(run) for run in done]
    return {place for place in _leaking(seen[::2], seen[1::2]) if _differ(seen[0].get(place), seen[1].get(place))}


def _differ(a: _Token | None, b: _Token | None) -> bool:
    # Returns whether two numbers or words that are shown differ by more than rounding. False for hexadecimal digits or
    # bytes of a binary file, of which rounding may change all bits, and if one run shows none (None)
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) > _SHOWN_ROUNDING * (1 + abs(a))
    return a is not None and b is not None and not isinstance(a, _Chunk)


def _of_batches(lab: Lab) -> str | None:
    # Returns a sentence for the report about an output that lists the sizes or the members of batches. None if there is
    # no such output, the claim does not need secret batches, or their members are unknown to the audit
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


def _with_sizes(runs: Sequence[tuple[Array | None, list[list[int]]]], claim: Claim) -> bool:
    # Returns whether one output lists the sizes of all batches, at the same places in every run. `runs` are pairs (the
    # output's numbers, or None if a run has no such output; the batches)
    steps = min(len(batches) for _, batches in runs)
    # An unrelated number matches a size with at most the probability of the likeliest size. Numbers are compared up to
    # a common factor, which can make one number of each run match in any case
    most = float(stats.binom.pmf(np.arange(claim.n + 1), claim.n, claim.sample_rate).max())
    places = set.intersection(*(set() if one is None else _sizes_at(one, batches) for one, batches in runs))
    count = 0 if runs[0][0] is None else runs[0][0].size
    return bool(places) and most ** ((steps - 1) * len(runs)) * count * _SIZE_STRIDES < _BY_CHANCE


def _sizes_at(numbers: Array, batches: list[list[int]]) -> set[tuple[int, int]]:
    # Returns all pairs (start < 1000, stride <= 64) for which number start + stride * t of an output (NaN for a word)
    # is c times the size of batch t, with one c for all t; none for fewer than 4 batches or equal sizes. The factor c
    # also finds records per second
    sizes = np.array([len(batch) for batch in batches], dtype=np.float64)
    if len(sizes) < _FEWEST_MATCHED or len(set(sizes)) < 2:
        return set()
    last, scale, found = len(sizes) - 1, float(sizes @ sizes), set[tuple[int, int]]()
    for stride in range(1, min(_SIZE_STRIDES, (len(numbers) - 1) // last) + 1):
        windows = np.lib.stride_tricks.sliding_window_view(numbers, last * stride + 1)[:_SIZE_STARTS, ::stride]
        with np.errstate(all="ignore"):
            apart = np.abs(windows / (windows @ sizes / scale)[:, None] - sizes).max(axis=1)
        found |= {(int(start), stride) for start in np.flatnonzero(apart < _NEAR_SIZE)}
    return found


def _has_members(numbers: Array, batch: list[int], n: int) -> bool:
    # Returns whether an output lists a batch, by ascending indices of its records, or by n numbers that are 1 for
    # records in the batch and 0 for others. False for batches that match by chance: few records, all n, or consecutive
    # ones
    if not _FEWEST_MATCHED <= len(batch) < n or max(batch) - min(batch) < len(batch):
        return False
    for row in (np.array(sorted(batch), dtype=float), np.isin(np.arange(n), batch).astype(float)):
        if len(numbers) >= len(row):
            windows = np.lib.stride_tricks.sliding_window_view(numbers, len(row))
            if np.asarray(windows == row).all(axis=1).any():
                return True
    return False


def _tokens(outcome: LoopOutput) -> _Shown:
    placed: _Shown = {}
    for name, value in outcome.shown.items():
        for inner, content in contents(name, value):
            placed |= {(inner, k): token for k, token in enumerate(content)} | {(inner, -1): float(len(content))}
    return placed


def _in_words(place: _Position) -> str:
    return f"{place[0]}, {'how much there is' if place[1] < 0 else f'number {place[1]}'}"


def contents(name: str, value: Any) -> Iterator[tuple[str, list[_Token]]]:
    """Yield pairs (name, tokens) for an output. Tokens are the pieces in which the outputs of two runs are compared.

    A token is a number, as a float; or, as bytes, a word, a digest (16 or more hexadecimal digits that are not all
    decimal), or four bytes of a binary file. Text is cut at white space and around numbers: "loss=0.5s" gives b"loss=",
    0.5 and b"s". NaN is the word b"nan".

    Args:
        name: the output's name.
        value: a string; an array, tensor, number or nested list of numbers, which gives its entries; the content of a
            file as bytes; or another object, such as a dictionary, whose repr is taken. Gzip and zlib files are
            decompressed. Each member of a zip archive is yielded separately, under a name of its own. A file of
            `numpy.save` gives its entries. Other files are text if their first 4096 bytes are ASCII without NUL.
    """
    if isinstance(value, bytes):
        for inner, raw in unpacked(name, value):
            yield inner, _of_bytes(raw)
    elif isinstance(value, str):
        yield name, _of_text(value.encode())
    else:
        yield name, _of_value(value)


def _of_value(value: Any) -> list[_Token]:
    # Returns the entries of an array, tensor or number; the numbers and words in the repr of any other value
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    try:
        numbers = np.asarray(value).astype(np.float64).ravel().tolist()
    except (TypeError, ValueError):
        return _of_text(repr(value).encode())
    return [b"nan" if math.isnan(x) else x for x in numbers]  # A float NaN would differ from itself


def unpacked(name: str, raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield pairs (name, bytes): one for each member of a zip archive; for any other file one, decompressed if
    possible.

    Zip archives (such as files of `numpy.savez` and `torch.save`), gzip and zlib files are recognised by their first
    bytes. A damaged or encrypted file is yielded as it is.

    Args:
        name: the file's name, which is put before the names of the members of an archive.
        raw: the file's bytes.
    """
    if raw[:2] == b"PK":
        with suppress(zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error):
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                members = [(member, archive.read(member)) for member in archive.namelist()]
            yield from ((f"{name}/{member.partition('/')[2] or member}", content) for member, content in members)
            return
    for start, unpack in _PACKED.items():
        if raw.startswith(start):
            try:
                raw = unpack(raw)
            except (OSError, EOFError, ValueError, zlib.error):
                break
    yield name, raw


def _of_bytes(raw: bytes) -> list[_Token]:
    if raw.startswith(_NPY):
        try:
            return _of_value(np.load(io.BytesIO(raw), allow_pickle=False))
        except (OSError, ValueError):
            pass
    if b"\0" not in raw[:4096] and all(byte < 128 for byte in raw[:4096]):
        return _of_text(raw)
    return [_Chunk(raw[k : k + 4]) for k in range(0, len(raw) - 3, 4)]


def _of_text(raw: bytes) -> list[_Token]:
    return [
        _Chunk(match[1]) if match[1] else float(match[2]) if match[2] else match[0] for match in _TOKEN.finditer(raw)
    ]


CHECKS = (Check("un-noised", "Is anything shown that has no noise in it?", _unnoised, core=True, random=False),)
"""The checks of this module, in the order of the report."""
