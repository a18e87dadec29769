"""Checks of where the noise comes from: an attacker must not be able to draw the same noise again, nor be shown it.

A check is a function (lab, level) -> verdict. It runs the audited training loop by experiments of `lab`, a `Lab`. If
the loop does what it claims, the check reports a violation with probability at most `level`.
"""

import hashlib
import importlib.util
import math
import random
import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpzero_theory.audit import exact
from dpzero_theory.audit.checks import batches
from dpzero_theory.audit.checks.leaks import DIGEST, contents, unpacked
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.report import Check, Verdict, held, untested, violated
from dpzero_theory.audit.runs import alike
from dpzero_theory.check import Array

_TORCH = importlib.util.find_spec("torch") is not None
_MEND_SOURCE = (
    "draw the noise from the operating system's entropy (dpzero_theory.privacy.noise.SystemNoise, secrets, a generator"
    " seeded with os.urandom that is never saved), never from a seed that is known"
)
_NOT_APART = "the noise cannot be told from the rest: return `clean`, the releases before noise"
_SEED = 5  # The loop's seed in runs that differ in other sources of randomness, or in one bit of the seed
_REDRAWN = 24  # Noise that is the same in this many runs with equal seeds is taken to come from the seed
_SAME = 1e-4  # Two numbers of noise are the same if their relative difference is below this
_TRIED_BITS = (8, 16, 20, 24, 31)
"""Two seeds are compared that differ by 2^8, then by 2^16 and so on. If they give equal noise, only lower bits of the
seed are taken to matter, and an attacker can try all values of these."""
_KEY_BYTES = 8  # A seed of fewer random bytes can be found by trying all values
_MOST_BYTES = 64  # If a run reads at most this many random bytes, each is changed in turn, to see if the noise changes
_SEEDS_END = 2**64  # Seeds of random generators are integers in [0, 2^64)
_LONG = 4  # Noise is looked for in about the first 4 d numbers of a generator, for a model of d weights
_DIRECTIONS_SEED = 31  # The loop's seed in the run whose published seeds of directions are tried

_SHOWN_SEED = 41  # The loop's seed in the runs whose outputs are searched for the noise and the generator that drew it
_INTEGER = re.compile(DIGEST + rb"|(?<![\d.])(\d{5,20})(?![\d.])")
"""Matches hexadecimal strings, and as group 1 integers of 5 to 20 digits outside of these and of decimal numbers."""
_MOST_TRIED = 50  # At most this many of the integers that a run shows are tried as seeds of the noise
_GENERATORS = (b"bit_generator", b"PCG64", b"MT19937", b"Philox", b"SFC64")
"""Every saved state of a NumPy generator contains one of these words."""
_TORCH_STATE = 5056  # The size, in bytes, of a saved state of torch's CPU generator
_FEWEST_NUMBERS = 4  # Fewer numbers of noise are not looked for, since chance may match them
_NOISE_STRIDES, _NOISE_STARTS = 8, 1000
"""The noise is looked for in the numbers a, a + k, a + 2 k, ... of an output, with k = 1 to 8 and a < 1000."""
_NEAR_NOISE = 3e-3  # An output counts as the noise if the sine of the angle between the two vectors is below this
_NEARER_THAN = 1e-2  # The sine must also be below this share of the sine between the noise and the releases
_TOLD_SEEDS = (1234577, 2718281, 3141593)  # The loop's seeds in the runs whose outputs are searched for the seed
_MEND_SHOWN = "keep the noise and its generator out of outputs and checkpoints: seed it anew when training goes on"


def _noise_from_seed(lab: Lab, level: float) -> Verdict:
    # Violated if noise can be drawn again from the loop's seed, unless the seed is secret and more than 31 of its bits
    # matter, or from the state of the global generators
    if lab.runs.base.releases is None:
        return untested("the loop returns neither releases nor a trajectory with a step_size among its settings")
    first, other, again = (lab.loop.run(seed=_SEED, global_seed=number) for number in (6, 7, 6))
    by_seed, which = alike(first, other), ""
    # Runs with equal seeds may have the same noise but other releases, because batches or initial weights come from the
    # operating system's random bytes. The noise itself is compared then
    if not by_seed and not alike(first, again):
        constant = _drawn_again(lab, (6,))
        if constant is None:
            return untested(f"runs with equal seeds release different numbers, but {_NOT_APART}")
        if not constant.any():
            said = "with equal seeds, of the loop and of all global generators, no number of the noise comes again"
            return held(said, power="a single number of noise that comes from a seed")
        by_seed = bool(np.any(_drawn_again(lab, (6, 7))))
        which = "" if constant.all() else f" ({int(constant.sum())} of {constant.size} numbers)"
    source = "the seed" if by_seed else "the state of the process's global generators, which any call may seed"
    says = f"the noise is a function of {source}{which}"
    if lab.view.seed == "public":
        return violated(f"{says}: two runs with it have the same noise", _MEND_SOURCE)
    if not by_seed:
        return untested(f"{says}: as secret as that is said to be")
    plain = lab.noise.residual(None, lab.noise.repeat_changes, _SEED)
    for bits in _TRIED_BITS:
        if _equal(plain, lab.noise.residual(None, lab.noise.repeat_changes, _SEED + (1 << bits))):
            says = f"the noise is a function of {bits} bits of the seed{which}, which can all be tried"
            return violated(says, _MEND_SOURCE)
    return held(f"{says}, more than 31 bits of which matter; the view says that the seed is secret")


def _noise_follows_seed(lab: Lab) -> bool:
    if alike(*(lab.loop.run(seed=_SEED, global_seed=number) for number in (6, 7))):
        return True
    return bool(np.any(_drawn_again(lab, (6, 7))))


def _drawn_again(lab: Lab, global_seeds: Sequence[int]) -> NDArray[np.bool_] | None:
    # Returns for each number of the noise, shape (steps, numbers of a step), whether it is the same in 24 runs with the
    # same seed of the loop, `global_seeds` in turn as seeds of the global generators, and different random bytes of the
    # operating system. None if the noise is unknown
    apart = lab.runs.batches_need_stream or lab.runs.streamed
    first: Array | None = None
    constant = np.empty(0, dtype=bool)
    for number in range(_REDRAWN):
        how = {"stream": number + 1 if apart else None, "global_seed": global_seeds[number % len(global_seeds)]}
        noise = lab.noise.residual(None, lab.noise.repeat_changes, _SEED, **how)
        if noise is None or (first is not None and noise.shape[1:] != first.shape[1:]):
            return None
        first = noise if first is None else first
        both = min(len(first), len(noise))
        constant = np.isclose(noise[:both], first[:both], rtol=_SAME, atol=0) & (constant[:both] if number else True)
        if not constant.any():
            break
    return constant


def _equal(first: Array | None, second: Array | None) -> bool:
    if first is None or second is None:
        return False
    return first.shape == second.shape and bool(np.allclose(first, second, rtol=_SAME, atol=0))


def _noise_fixed(lab: Lab, level: float) -> Verdict:
    # Violated if the noise follows from a constant, the clock or fewer than 8 random bytes: it can be drawn again
    changes = lab.noise.repeat_changes
    first, second = (lab.noise.residual(None, changes, seed) for seed in (21, 22))
    if first is None or second is None:
        return untested("the noise cannot be told from the rest")
    if _equal(first, second):
        return violated(
            "runs with different seeds have the same noise: its generator is always seeded alike", _MEND_SOURCE
        )
    with lab.loop.clocks(0.0):
        stopped = [lab.noise.residual(None, changes, seed) for seed in (21, 22)]
        timed = [lab.runs.attempt(seed=_SEED, global_seed=number) for number in (6, 7)]
    running = [lab.runs.attempt(seed=_SEED, global_seed=number) for number in (6, 7)]
    known = lab.view.seed == "public" and alike(*timed) and not alike(*running)
    if known or _equal(stopped[0], stopped[1]):
        return violated("the noise is a function of the clock: two runs at one time have the same", _MEND_SOURCE)
    streamed = [lab.noise.residual(None, changes, seed, stream=1) for seed in (21, 22)]
    taken, matter = lab.loop.entropy.taken, 0
    if 0 < taken <= _MOST_BYTES and _equal(*streamed):
        for place in range(taken):
            with lab.loop.entropy.inverted(place):
                matter += not _equal(streamed[0], lab.noise.residual(None, changes, 21, stream=1))
        if matter < _KEY_BYTES:
            of = f"{matter} of the " if matter < taken else ""
            says = f"the noise is a function of {of}{taken} random bytes, which can all be tried"
            return violated(says, _MEND_SOURCE)
    return held("runs with different seeds, and at one time of the clock, have different noise")


def _streams(seed: int, count: int) -> Iterator[tuple[str, Array]]:
    # Yields the first `count` normal numbers of common random generators with this seed, by a name for the report
    seed = seed if seed >= 0 else seed % _SEEDS_END
    python = random.Random(seed)
    yield "numpy.random.default_rng(seed).normal", np.random.default_rng(seed).normal(size=count)
    yield "numpy.random.RandomState(seed).randn", np.random.RandomState(seed % 2**32).randn(count)
    yield "random.Random(seed).gauss", np.array([python.gauss(0.0, 1.0) for _ in range(count)])
    if _TORCH:
        yield "torch.manual_seed(seed), randn of all", _torch_normals(seed, [count])
        yield "torch.manual_seed(seed), randn one by one", _torch_normals(seed, [1] * count)
        yield "torch.manual_seed(seed), float64", _torch_normals(seed, [count], double=True)


def _torch_normals(seed: int, counts: Sequence[int], double: bool = False) -> Array:
    # Returns sum(counts) normal numbers, by one call for each count: torch's numbers depend on how many a call asks for
    import torch

    generator = torch.Generator().manual_seed(seed % _SEEDS_END)
    kind = torch.float64 if double else torch.float32
    drawn = torch.cat([torch.randn(count, generator=generator, dtype=kind) for count in counts])
    return np.asarray(drawn.numpy(), dtype=np.float64)


def _derived(seed: int, step: int) -> Iterator[tuple[str, int]]:
    # Yields seeds that a loop may compute from a step's published seed and the step's number, by a name for the report
    seed = seed if seed >= 0 else seed % _SEEDS_END
    yield from ((f"seed + {k}", seed + k) for k in range(1, 9))
    yield from ((f"seed + {k} * step", seed + k * step) for k in (1, 10, 100, 1000))
    for name, digest in (("md5", hashlib.md5), ("sha256", hashlib.sha256)):
        hashed = digest(str(seed).encode(), usedforsecurity=False).digest()
        yield from ((f"{name}(seed), {k} bytes", int.from_bytes(hashed[:k], "big")) for k in (4, 8))


def _noise_from_directions(lab: Lab, level: float) -> Verdict:
    # Tests whether a step's noise is in the numbers of a generator with the step's published seed, beginning at the
    # same number in all steps
    run = lab.loop.run(**lab.runs.paired(_DIRECTIONS_SEED), **lab.runs.frozen, **lab.noise.repeat_changes)
    noise = lab.noise.residual(None, lab.noise.repeat_changes, _DIRECTIONS_SEED)
    if run.seeds is None:
        return untested("the loop publishes no seeds of steps (an output `seeds`)")
    if noise is None or len(noise) != len(run.seeds) or len(noise) < 4:
        return untested("the noise of the steps cannot be told from the rest")
    numbers, d = int(noise.shape[1]), int(lab.loop.settings.get("d", 16))
    table = []
    for step, seed in enumerate(run.seeds):
        row: dict[str, Array] = dict(_streams(seed, _LONG * d + 4 * numbers + 64))
        for name, made in _derived(seed, step):
            row[f"numpy.random.default_rng({name}).normal"] = np.random.default_rng(made).normal(size=numbers)
            if _TORCH:
                row[f"torch.manual_seed({name}), randn"] = _torch_normals(made, [numbers])
        if _TORCH and d > 0:
            row["torch.manual_seed(seed), randn after a direction"] = _torch_normals(seed, [d, numbers + 1])[d:]
        table.append(row)
    tests: list[tuple[float, str]] = []
    for name in table[0]:
        drawn = np.array([row[name] for row in table])
        for offset in range(drawn.shape[1] - numbers + 1):
            p = exact.correlation(noise.ravel(), drawn[:, offset : offset + numbers].ravel())
            tests.append((p, f"{name}, from its number {offset} on"))
    worst, where = min(tests)
    p = min(1.0, worst * len(tests))
    if p < level:
        return violated(f"the noise is what the published seed of its step gives: {where}", _MEND_SOURCE, p_value=p)
    return held(f"none of {len(tests)} places in streams of the published seeds has the noise", p_value=p)


def _noise_shown(lab: Lab, level: float) -> Verdict:
    # What a second run with the same seed also shows does not come from fresh noise, and is left out
    changes = {**lab.runs.frozen, **(lab.runs.repeatable or {})}
    first = lab.runs.attempt(**lab.runs.paired(_SHOWN_SEED), **changes)
    second = lab.runs.attempt(seed=_SHOWN_SEED, **changes)
    if first is None or second is None:
        return untested("the loop fails")
    there = dict(_contents(second))
    for name, raw in _contents(first):
        is_state = len(raw) == _TORCH_STATE or any(word in raw for word in _GENERATORS)
        if is_state and there.get(name) not in (None, raw):
            says = f"{name} has the state of a generator that the loop's seed does not make: its numbers can be drawn"
            return violated(says, _MEND_SHOWN)
    if lab.view.seed == "secret" and (says := _seed_told(lab)):
        mend = "show neither the seed nor a number from which it follows; show a digest, or draw from a key"
        return violated(says, mend)
    known = set(_integers(second))
    seeds = [number for number in dict.fromkeys(_integers(first)) if number not in known][:_MOST_TRIED]
    quiet = None if lab.runs.repeatable is None else lab.runs.quiet(seed=_SHOWN_SEED, **lab.runs.repeatable)
    released, noise = _with_noise(lab, first, quiet)
    if (output := _output_with_noise(first, released, noise, level)) is not None:
        return violated(f"{output} has the noise in it: subtracted from the releases it leaves the sums", _MEND_SHOWN)
    if not noise.size and (seeds or first.shown.keys() - {"releases"}):
        return untested("the noise cannot be told from the rest, so that nobody can look for it in what is shown")
    tests = [
        (exact.correlation(noise, drawn), f"{name} from {seed}")
        for seed in seeds
        for name, drawn in _streams(seed, noise.size)
    ]
    if not tests:
        return held("no state of a generator, no new integer and no noise is shown")
    worst, name = min(tests)
    p = min(1.0, worst * len(tests))
    if p < level:
        return violated(f"the noise is drawn by a generator whose seed is shown: {name}", _MEND_SHOWN, p_value=p)
    return held(f"none of {len(seeds)} integers that are shown is the seed of the noise", p_value=p)


def _seed_told(lab: Lab) -> str:
    # Returns a sentence for the report if each of three runs with different seeds shows its seed plus a constant (which
    # may be 0); "" if not, or if neither noise nor batches follow from the seed, so that it may be shown
    runs = [lab.runs.attempt(seed=seed) for seed in _TOLD_SEEDS]
    told = [
        {number - seed for number in _integers(run)} if run else set()
        for seed, run in zip(_TOLD_SEEDS, runs, strict=True)
    ]
    constants = set.intersection(*told)
    if not constants:
        return ""
    by_seed = {"noise": _noise_follows_seed(lab), "batches": batches.source(lab) == "the seed"}
    makes = [name for name, made in by_seed.items() if made]
    more = min(constants, key=abs)
    what = "the secret seed" if more == 0 else f"the secret seed {'plus' if more > 0 else 'minus'} {abs(more)}"
    return f"a number that is shown is {what}, which makes the {' and the '.join(makes)}" if makes else ""


def _with_noise(lab: Lab, run: LoopOutput, quiet: Array | None) -> tuple[Array, Array]:
    # Returns the numbers that a run releases and the noise in them, as two vectors of one length, empty if the noise is
    # unknown. `quiet` are the releases of a run that is the same but has almost no noise
    if quiet is None or run.releases is None:
        return np.empty(0), np.empty(0)
    rows = lab.runs.comparable(run)
    both = min(len(rows), len(quiet)) if rows.shape[1:] == quiet.shape[1:] else 0
    return rows[:both].ravel(), (rows[:both] - quiet[:both]).ravel() if both else np.empty(0)


def _output_with_noise(run: LoopOutput, released: Array, noise: Array, level: float) -> str | None:
    # Returns the name of an output that contains the noise times a constant, or None. An output must be much nearer to
    # the noise than the releases are, which contain it too
    if noise.size < _FEWEST_NUMBERS:
        return None
    near = min(_NEAR_NOISE, _NEARER_THAN * float(_sine(released[None], noise)[0]))
    shown = [one for output, value in run.shown.items() for one in contents(output, value)]
    windows = sum(_NOISE_STRIDES * min(_NOISE_STARTS, len(content)) for _, content in shown)
    # None if unrelated numbers would match the noise with a probability above the level
    if 2 * stats.beta.cdf((1 - math.sqrt(1 - near**2)) / 2, *[(noise.size - 1) / 2] * 2) * windows > level:
        return None
    for name, content in shown:
        numbers = np.array([token for token in content if isinstance(token, float)])
        for stride in range(1, _NOISE_STRIDES + 1):
            if (span := (noise.size - 1) * stride + 1) <= numbers.size:
                tried = np.lib.stride_tricks.sliding_window_view(numbers, span)[:_NOISE_STARTS, ::stride]
                if float(_sine(tried, noise).min()) < near:
                    return name
    return None


def _sine(rows: Array, noise: Array) -> Array:
    # Returns the sine of the angle between each row and the noise; 1 if it is undefined, as for a row of zeros
    with np.errstate(all="ignore"):
        rest = rows - np.outer(rows @ noise / (noise @ noise), noise)
        return np.asarray(np.nan_to_num(np.sqrt((rest**2).sum(axis=1) / (rows**2).sum(axis=1)), nan=1.0, posinf=1.0))


def _contents(outcome: LoopOutput) -> Iterator[tuple[str, bytes]]:
    # Yields (name, bytes) for what an attacker sees: files unpacked, uint8 arrays, text, and the repr of other outputs
    for name, value in outcome.shown.items():
        if isinstance(value, bytes):
            yield from unpacked(name, value)
        elif str(getattr(value, "dtype", "")).endswith("uint8"):
            yield name, np.asarray(value).tobytes()
        else:
            yield name, value.encode() if isinstance(value, str) else repr(value).encode()


def _integers(outcome: LoopOutput) -> Iterator[int]:
    for _, raw in _contents(outcome):
        yield from (int(digits) for digits in _INTEGER.findall(raw) if digits)


CHECKS = (
    Check(
        "noise-from-seed",
        "Can the noise be drawn again from a seed?",
        _noise_from_seed,
        core=True,
        random=False,
        follows=("noise-fixed",),
    ),
    Check("noise-fixed", "Is the noise the same in every run, or a function of the clock?", _noise_fixed, random=False),
    Check(
        "noise-from-directions",
        "Is the noise in the stream of the published directions?",
        _noise_from_directions,
        follows=("noise-fixed", "noise-from-seed"),
    ),
    Check("noise-shown", "Is the noise shown, its seed, or its generator's state?", _noise_shown),
)
"""The checks of this module, in the order of the report."""
