"""Checks whether a run shows its noise, or the seed or the state of the generator that drew it."""

import math
import re
from collections.abc import Iterator

import numpy as np
from scipy import stats

from dpzero_theory.audit import exact
from dpzero_theory.audit.checks import batches
from dpzero_theory.audit.checks.seeds import follow_seed, streams
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.tokens import DIGEST, Token, contents, unpacked
from dpzero_theory.check import Array

_SHOWN_SEED = 41  # The loop's seed in the runs whose outputs are searched for the noise and the generator that drew it
_INTEGER = re.compile(DIGEST + rb"|(?<![\d.])(\d{5,20})(?![\d.])")
"""The pattern of an integer that may be a seed.

It has 5 to 20 digits and is not part of a hexadecimal digest or of a decimal number.
"""
_MOST_TRIED = 50  # At most this many of the integers that a run shows are tried as seeds of the noise
_GENERATOR_NAMES = (b"bit_generator", b"PCG64", b"MT19937", b"Philox", b"SFC64")
"""Words of which one is in every saved state of a NumPy generator."""
_TORCH_STATE = 5056  # The size in bytes of a saved state of torch's CPU generator
_FEWEST_NUMBERS = 4
"""A run with fewer numbers of noise than this is not searched for its noise, as a match could be chance."""

_NOISE_STRIDES = 8
"""Consecutive numbers of the noise are looked for in an output at distances of 1 to this many of its numbers."""
_NOISE_STARTS = 1000  # The noise is looked for in an output from each of this many first numbers of it on
_NEAR_NOISE = 3e-3
"""An output counts as the noise where the sine of the angle between the two vectors is below this.

Rounding an output to a few digits makes a smaller angle.
"""
_NEARER_THAN_RELEASES = 1e-2
"""An output that is the noise must be nearer to it than the releases, which contain it.

The sine of the angle between output and noise must be below this share of that between releases and noise.
"""
_TOLD_SEEDS = (1234577, 2718281, 3141593)  # Seeds of the loop in the runs that are searched for their own seed
_MEND_SHOWN = "keep the noise and its generator out of outputs and checkpoints: seed it anew when training goes on"


def shown(lab: Lab, level: float) -> Verdict:
    """Search what a run shows for states of random generators, a secret seed, the noise, and integers that seeded it.

    States and integers that a second run with the same seed shows too are left out: they did not make fresh noise.
    `lab` makes experiments on the audited loop. A sound loop is reported as violated with probability at most `level`.
    Returns the verdict.
    """
    changes = {**lab.runs.frozen, **(lab.runs.repeatable or {})}
    first = lab.runs.attempt(**lab.runs.paired(_SHOWN_SEED), **changes)
    second = lab.runs.attempt(seed=_SHOWN_SEED, **changes)
    if first is None or second is None:
        return untested("the loop fails")
    there = dict(_contents(second))
    for name, raw in _contents(first):
        if _is_state(raw) and there.get(name) not in (None, raw):
            says = f"{name} has the state of a generator that the loop's seed does not make: its numbers can be drawn"
            return violated(says, _MEND_SHOWN)
    if lab.view.seed == "secret" and (says := _seed_told(lab)):
        return violated(
            says, "show neither the seed nor a number from which it follows; show a digest, or draw from a key"
        )
    known = set(_integers(second))
    seeds = [number for number in dict.fromkeys(_integers(first)) if number not in known][:_MOST_TRIED]
    quiet = None if lab.runs.repeatable is None else lab.runs.quiet(seed=_SHOWN_SEED, **lab.runs.repeatable)
    released, noise = _with_noise(lab, first, quiet)
    told = noise.size > 0
    if (output := _itself(first, released, noise, level)) is not None:
        return violated(f"{output} has the noise in it: subtracted from the releases it leaves the sums", _MEND_SHOWN)
    if not told and (seeds or first.shown.keys() - {"releases"}):
        return untested("the noise cannot be told from the rest, so that nobody can look for it in what is shown")
    if not seeds:
        return held("no state of a generator, no new integer and no noise is shown")
    p_values = {
        f"{name} from {seed}": exact.correlation(noise, drawn[: noise.size])
        for seed in seeds
        for name, drawn in streams(seed, noise.size)
        if drawn.size >= noise.size
    }
    name, p = min(p_values.items(), key=lambda pair: pair[1])
    p = min(1.0, p * len(p_values))
    if p < level:
        return violated(f"the noise is drawn by a generator whose seed is shown: {name}", _MEND_SHOWN, p_value=p)
    return held(f"none of {len(seeds)} integers that are shown is the seed of the noise", p_value=p)


def _seed_told(lab: Lab) -> str:
    """Says which number, in what runs show, is the loop's secret seed plus a constant; empty where none is.

    A seed that makes neither noise nor batches may be shown. `lab` makes the runs.
    """
    runs = [lab.runs.attempt(seed=seed) for seed in _TOLD_SEEDS]
    told = [
        {number - seed for number in _integers(run)} if run else set()
        for seed, run in zip(_TOLD_SEEDS, runs, strict=True)
    ]
    constants = set.intersection(*told)
    if not constants:
        return ""
    makes = [name for name, so in (("noise", follow_seed(lab)), ("batches", batches.source(lab) == "the seed")) if so]
    more = min(constants, key=abs)
    what = "the secret seed" if more == 0 else f"the secret seed {'plus' if more > 0 else 'minus'} {abs(more)}"
    return f"a number that is shown is {what}, which makes the {' and the '.join(makes)}" if makes else ""


def _with_noise(lab: Lab, run: LoopOutput, quiet: Array | None) -> tuple[Array, Array]:
    """Returns the numbers that a run releases and the noise in them, two vectors; empty where that cannot be told.

    `quiet` has the releases of the same run almost without noise. Where one of the two ends earlier, by what it
    released, the vectors are of the steps that both made.
    """
    if quiet is None or run.releases is None:
        return np.empty(0), np.empty(0)
    rows = lab.runs.comparable(run)
    both = min(len(rows), len(quiet)) if rows.shape[1:] == quiet.shape[1:] else 0
    return rows[:both].ravel(), (rows[:both] - quiet[:both]).ravel() if both else np.empty(0)


def _itself(run: LoopOutput, released: Array, noise: Array, level: float) -> str | None:
    """Returns the name of an output that contains the noise times a constant; None where there is none.

    The angle between the output's numbers and the noise must be far smaller than that between the releases and the
    noise. None is also returned where numbers that have nothing to do with the noise, whose direction is uniform on the
    sphere, could come as near with probability above `level`.

    Args:
        run: the run whose outputs are searched.
        released: the numbers that it released with that noise in them, one vector.
        noise: the numbers of noise of the run, one vector.
        level: the largest probability of a match by chance.
    """
    if noise.size < _FEWEST_NUMBERS:
        return None
    near = min(_NEAR_NOISE, _NEARER_THAN_RELEASES * float(_apart(released[None], noise)[0]))
    shown = [one for output, value in run.shown.items() for one in contents(output, value)]
    if 2 * stats.beta.cdf((1 - math.sqrt(1 - near**2)) / 2, *[(noise.size - 1) / 2] * 2) * _windows(shown) > level:
        return None
    for name, content in shown:
        numbers = _floats(content)
        for stride in range(1, _NOISE_STRIDES + 1):
            if (span := (noise.size - 1) * stride + 1) <= numbers.size:
                windows = np.lib.stride_tricks.sliding_window_view(numbers, span)[:_NOISE_STARTS, ::stride]
                if float(_apart(windows, noise).min()) < near:
                    return name
    return None


def _windows(shown: list[tuple[str, list[Token]]]) -> int:
    """An upper bound on how many sequences of numbers from the outputs `shown` of a run are compared with its noise.

    A sequence has as many numbers as the noise. It begins at one of an output's first `_NOISE_STARTS` numbers, and
    takes each following one, or every second, or so on up to every `_NOISE_STRIDES`-th.
    """
    return sum(_NOISE_STRIDES * min(_NOISE_STARTS, len(content)) for _, content in shown)


def _floats(content: list[Token]) -> Array:
    return np.array([token for token in content if isinstance(token, float)])


def _apart(rows: Array, noise: Array) -> Array:
    """Returns the sine of the angle between each row of `rows` and the vector `noise`; 1 where it is undefined."""
    with np.errstate(all="ignore"):
        rest = rows - np.outer(rows @ noise / (noise @ noise), noise)
        return np.asarray(np.nan_to_num(np.sqrt((rest**2).sum(axis=1) / (rows**2).sum(axis=1)), nan=1.0, posinf=1.0))


def _contents(outcome: LoopOutput) -> Iterator[tuple[str, bytes]]:
    """Yields names and bytes of the outputs of the run `outcome`.

    An output of the type bytes is the content of a file: of a zip archive each member is yielded, of another compressed
    file what is in it, else the bytes themselves (`tokens.unpacked`). The bytes of an array of them, such as a state of
    torch's generators, are yielded unchanged, a text encoded, and any other value as its encoded `repr`.
    """
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
    """Yields the integers of five or more digits that the run `outcome` shows, except those in hexadecimal digests."""
    for _, raw in _contents(outcome):
        yield from (int(digits) for digits in _INTEGER.findall(raw) if digits)


def _is_state(raw: bytes) -> bool:
    return len(raw) == _TORCH_STATE or any(name in raw for name in _GENERATOR_NAMES)
