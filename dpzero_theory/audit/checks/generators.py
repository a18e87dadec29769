"""Whether the noise is shown, or what lets it be drawn again: the seed of its generator, or the generator's state."""

import math
import re
from collections.abc import Iterator

import numpy as np
from scipy import stats

from dpzero_theory.audit import exact
from dpzero_theory.audit.checks.seeds import streams
from dpzero_theory.audit.finding import Check, Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.tokens import DIGEST, Token, contents, unpacked
from dpzero_theory.check import Array

_SEED = 41
_INTEGER = re.compile(DIGEST + rb"|(?<![\d.])(\d{5,20})(?![\d.])")
_MOST = 50
"""Integers that are tried as seeds."""
_NAMES = (b"bit_generator", b"PCG64", b"MT19937", b"Philox", b"SFC64")
"""In what NumPy writes of a generator's state."""
_TORCH = 5056
"""Bytes of torch's on the CPU."""
_FEWEST, _STRIDES, _PLACES = 4, 8, 1000
"""Numbers of noise to look for, how far apart they may be, and from how many places on."""
_CLOSE, _CLOSER = 3e-3, 1e-2
"""Of the sine of an angle: what printing few digits leaves, and of that of the releases."""
_MEND = "keep the noise and its generator out of outputs and checkpoints: seed it anew when training goes on"


def shown(lab: Lab, level: float) -> Verdict:
    """States of generators, the noise itself, and integers that are its seeds; of what equal seeds give anew."""
    changes = {**lab.runs.frozen, **(lab.runs.repeatable or {})}
    first, second = (lab.runs.attempt(seed=_SEED, **changes) for _ in (0, 1))
    if first is None or second is None:
        return untested("the loop fails")
    there = dict(_contents(second))
    for name, raw in _contents(first):
        if _is_state(raw) and there.get(name) not in (None, raw):
            says = f"{name} has the state of a generator that the loop's seed does not make: its numbers can be drawn"
            return violated(says, _MEND)
    known = set(_integers(second))
    seeds = [number for number in dict.fromkeys(_integers(first)) if number not in known][:_MOST]
    quiet = None if lab.runs.repeatable is None else lab.runs.quiet(seed=_SEED, **lab.runs.repeatable)
    told = quiet is not None and first.releases is not None and lab.runs.comparable(first).shape == quiet.shape
    noise = (lab.runs.comparable(first) - np.asarray(quiet)).ravel() if told else np.empty(0)
    if (output := _itself(lab, first, noise, level)) is not None:
        return violated(f"{output} has the noise in it: subtracted from the releases it leaves the sums", _MEND)
    if not seeds:
        return held("no state of a generator and no new integer is shown")
    if not told:
        return untested("the noise cannot be told from the rest")
    found = {
        f"{name} from {seed}": exact.correlation(noise, drawn[: noise.size])
        for seed in seeds
        for name, drawn in streams(seed, noise.size)
        if drawn.size >= noise.size
    }
    name, p = min(found.items(), key=lambda pair: pair[1])
    p = min(1.0, p * len(found))
    if p < level:
        return violated(f"the noise is drawn by a generator whose seed is shown: {name}", _MEND, p_value=p)
    return held(f"none of {len(seeds)} integers that are shown is the seed of the noise", p_value=p)


def _itself(lab: Lab, run: LoopOutput, noise: Array, level: float) -> str | None:
    """An output whose numbers are the noise times a constant, far more nearly than the releases are, and than chance.

    Numbers that have nothing to do with the noise are as near to it as a direction of the sphere is.
    """
    if noise.size < _FEWEST:
        return None
    near = min(_CLOSE, _CLOSER * float(_apart(lab.runs.comparable(run).ravel()[None], noise)[0]))
    shown = [one for output, value in run.shown.items() for one in contents(output, value)]
    if 2 * stats.beta.cdf((1 - math.sqrt(1 - near**2)) / 2, *[(noise.size - 1) / 2] * 2) * _windows(shown) > level:
        return None
    for name, content in shown:
        numbers = _floats(content)
        for stride in range(1, _STRIDES + 1):
            if (span := (noise.size - 1) * stride + 1) <= numbers.size:
                windows = np.lib.stride_tricks.sliding_window_view(numbers, span)[:_PLACES, ::stride]
                if float(_apart(windows, noise).min()) < near:
                    return name
    return None


def _windows(shown: list[tuple[str, list[Token]]]) -> int:
    """How many are looked at, at most."""
    return sum(_STRIDES * min(_PLACES, len(content)) for _, content in shown)


def _floats(content: list[Token]) -> Array:
    return np.array([token for token in content if isinstance(token, float)])


def _apart(rows: Array, noise: Array) -> Array:
    """How far each row is from a multiple of the noise: the sine of their angle; 1 for what is not finite."""
    with np.errstate(all="ignore"):
        rest = rows - np.outer(rows @ noise / (noise @ noise), noise)
        return np.asarray(np.nan_to_num(np.sqrt((rest**2).sum(axis=1) / (rows**2).sum(axis=1)), nan=1.0, posinf=1.0))


def _contents(outcome: LoopOutput) -> Iterator[tuple[str, bytes]]:
    """Everything shown as bytes; arrays of bytes as they are."""
    for name, value in outcome.shown.items():
        if isinstance(value, bytes):
            yield from unpacked(name, value)
        elif isinstance(value, str):
            yield name, value.encode()
        elif getattr(value, "dtype", None) is not None and str(value.dtype).endswith("uint8"):
            yield name, np.asarray(value).tobytes()
        else:
            yield name, repr(value).encode()


def _integers(outcome: LoopOutput) -> Iterator[int]:
    """Of five digits or more, none of those in a digest."""
    for _, raw in _contents(outcome):
        yield from (int(digits) for digits in _INTEGER.findall(raw) if digits)


def _is_state(raw: bytes) -> bool:
    return len(raw) == _TORCH or any(name in raw for name in _NAMES)


FAMILY = (Check("noise-shown", "Is the noise shown, its seed, or its generator's state?", shown),)
"""One check."""
