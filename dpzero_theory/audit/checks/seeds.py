"""Checks of where the noise comes from: an attacker must not be able to draw the same noise again."""

import hashlib
import importlib.util
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.audit import exact
from dpzero_theory.audit.checks.linear import linear_part
from dpzero_theory.audit.finding import UNTESTED, Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.runs import Changes, alike
from dpzero_theory.audit.sources import (
    KEY_BYTES,
    Call,
    generators_outside,
    known_entropy,
    noted_seeds,
    seed_of,
    set_state,
    state_of,
    stopped_clocks,
)
from dpzero_theory.check import Array

_TORCH = importlib.util.find_spec("torch") is not None
_MEND_SOURCE = (
    "draw the noise from the operating system's entropy (dpzero_theory.privacy.noise.SystemNoise, secrets, a generator"
    " seeded with os.urandom that is never saved), never from a seed that is known"
)
_NOT_APART = "the noise cannot be told from the rest: return `clean`, the releases before noise"
_SAME_SEED = 5  # The loop's seed in runs that differ only in the operating system's random bytes
_REDRAWN = 24  # Noise that is the same in so many runs with equal seeds is taken to come from the seed
_EQUAL_NOISE = 1e-4  # Two numbers of noise count as the same below this relative difference
_UNLIKE_OTHERS = 1_234_567_891  # A seed of the loop by which it is seen what else a run seeds with it
_SEARCHED_BITS = 32  # If fewer bits of a secret seed than this matter, it can be found by trying all values
_MOST_CALLS = 16  # At most this many calls that seed a generator with few bits are tried one by one
_SEEDS_END = 2**64  # Seeds of random generators are integers from 0 to below this
_MOST_NOTED = 4096  # The check considers only this many of the first seeds that a run gives to random generators
_DIRECTIONS_LONG = 4
"""Noise is searched for in about the first 4 d numbers that a generator draws, where d is the model's dimension."""


def from_seed(lab: Lab, level: float) -> Verdict:
    """Check that the noise is not a function of the loop's seed, or of the state of the global random generators.

    A loop may draw its batches or its initial weights from the operating system, so that runs with equal seeds release
    different numbers although their noise is the same. So the noise itself is compared, number by number.

    Where the seed is secret, a seed of which fewer than 32 bits matter is still a violation. The check holds where more
    of its bits matter and no two generators of a run are seeded alike: then the noise is as secret as the view says
    that the seed is. `lab` makes experiments on the audited loop; `level`, the probability of a false alarm, is not
    used. Returns the verdict.
    """
    if lab.runs.base.releases is None:
        return untested(lab.runs.why_no_releases)
    first, other, again = (lab.loop.run(seed=_SAME_SEED, world=world) for world in (6, 7, 6))
    by_seed, which = alike(first, other), ""
    if not by_seed and not alike(first, again):
        constant = _drawn_again(lab, (6,))
        if constant is None:
            return untested(f"runs with equal seeds release different numbers, but {_NOT_APART}")
        if not constant.any():
            said = "with equal seeds, of the loop and of all global generators, no number of the noise comes again"
            return held(said, power="a single number of noise that comes from a seed")
        with_others = _drawn_again(lab, (6, 7))
        by_seed = with_others is not None and bool(with_others.any())
        which = "" if constant.all() else f" ({int(constant.sum())} of {constant.size} numbers)"
    source = "the seed" if by_seed else "the state of the process's global generators, which any call may seed"
    if lab.view.seed == "public":
        says = f"the noise is a function of {source}{which}: two runs with it have the same noise"
        return violated(says, _MEND_SOURCE)
    bits = _bits_that_count(lab) if by_seed else None
    if bits is not None and bits < _SEARCHED_BITS:
        return violated(
            f"the noise is a function of {bits} bits of the seed{which}, which can all be tried", _MEND_SOURCE
        )
    said = f"the noise is a function of {source}{which}"
    if bits is not None:
        return untested(f"{said}, of which no more than {bits} bits matter: a key has more")
    if not by_seed:
        return untested(f"{said}: as secret as that is said to be")
    if _seeded_alike(lab):
        return untested(f"{said}, and a run seeds two generators alike: let each have its own part of the secret seed")
    return held(f"{said}, more than 32 bits of which matter; the view says that the seed is secret")


def _seeded_alike(lab: Lab) -> bool:
    """Whether a run seeds two random generators with the same numbers, so that both draw the same.

    `lab` makes the run, with a seed of the loop that a run's other integers are unlike.
    """
    with noted_seeds() as seeds:
        seeds.start()
        lab.runs.attempt(seed=_UNLIKE_OTHERS)
        given = [words for words in seeds.calls.values() if _UNLIKE_OTHERS in words]
    return len(set(given)) < len(given)


def follow_seed(lab: Lab) -> bool:
    """Whether some number of the noise is a function of the loop's seed alone, as runs of `lab` with one seed show."""
    if alike(*(lab.loop.run(seed=_SAME_SEED, world=world) for world in (6, 7))):
        return True
    drawn = _drawn_again(lab, (6, 7))
    return drawn is not None and bool(drawn.any())


def _drawn_again(lab: Lab, worlds: Sequence[int]) -> NDArray[np.bool_] | None:
    """Returns for each number of a run's noise whether it is the same in all runs with equal seeds.

    Each of the runs, made by `lab`, has other random bytes of the operating system. Runs are made until no number is
    the same in all, or so often that even numbers on a coarse lattice do not agree by chance. None is returned where
    the noise cannot be told from the sums. `worlds` are the seeds of the global random generators in these runs, in
    turn.
    """
    streamed = lab.runs.batches_repeat or lab.runs.streamed

    def noise(number: int) -> Array | None:
        stream, world = number + 1 if streamed else None, worlds[number % len(worlds)]
        return lab.noise.residual(None, lab.noise.repeatable, _SAME_SEED, stream=stream, world=world)

    return _constant(noise)


def _constant(noise: Callable[[int], Array | None]) -> NDArray[np.bool_] | None:
    """Returns for each number of the noise whether it is the same in 24 runs; runs end early where none is.

    Of runs with different numbers of steps, the steps that all of them made are compared.

    `noise` returns the noise of the run of a given number. None is returned where it cannot be told from the sums.
    """
    first = noise(0)
    if first is None:
        return None
    constant = np.full(first.shape, True)
    for number in range(1, _REDRAWN):
        other = noise(number)
        if other is None or other.shape[1:] != first.shape[1:]:
            return None
        both = min(len(first), len(other))
        first, other, constant = first[:both], other[:both], constant[:both]
        constant &= np.isclose(other, first, rtol=_EQUAL_NOISE, atol=0)
        if not constant.any():
            break
    return constant


def _bits_that_count(lab: Lab) -> int | None:
    """Returns how many low bits of the loop's seed determine its noise; None if more than 32 bits matter.

    It is the least tried number for which two seeds that differ only in the next higher bit give the same noise. `lab`
    makes experiments on the audited loop.
    """
    changes = lab.noise.repeatable
    plain = lab.noise.residual(None, changes, _SAME_SEED)
    for bits in (8, 16, 20, 24, 31, 32):
        other = lab.noise.residual(None, changes, _SAME_SEED + (1 << bits))
        if _equal(plain, other):
            return bits
    return None


def from_nothing(lab: Lab, level: float) -> Verdict:
    """Check that runs with other seeds have other noise.

    The noise must not come from a generator with a fixed seed, or with a seed made of the clock or of a few bytes.
    `lab` makes experiments on the audited loop; `level`, the probability of a false alarm, is not used. Returns the
    verdict.
    """
    changes = lab.noise.repeatable
    first, second = (lab.noise.residual(None, changes, seed) for seed in (21, 22))
    if first is None or second is None:
        return untested("the noise cannot be told from the rest")
    if _equal(first, second):
        return violated(
            "runs with different seeds have the same noise: its generator is always seeded alike", _MEND_SOURCE
        )
    with stopped_clocks():
        stopped = [lab.noise.residual(None, changes, seed) for seed in (21, 22)]
        timed = [lab.runs.attempt(seed=5, world=world) for world in (6, 7)]
    running = [lab.runs.attempt(seed=5, world=world) for world in (6, 7)]
    known = lab.view.seed == "public" and alike(*timed) and not alike(*running)
    if known or _equal(stopped[0], stopped[1]):
        return violated("the noise is a function of the clock: two runs at one time have the same", _MEND_SOURCE)
    if (seed := _seed_outside(lab)) is not None:
        says = f"a generator that is made once, outside of the run, from the seed {seed} draws the noise"
        return violated(f"{says}: a program that is started again has the same", _MEND_SOURCE)
    taken = _entropy(lab)
    if taken is not None and taken < KEY_BYTES:
        return violated(f"the noise is a function of {taken} random bytes, which can all be tried", _MEND_SOURCE)
    bits = _bits_of_seeds(lab)
    if bits is not None:
        says = f"a run seeds the generator of its noise with a number of about {bits} bits, which can all be tried"
        return violated(says, _MEND_SOURCE)
    return held("runs with different seeds, and at one time of the clock, have different noise")


def _seed_outside(lab: Lab) -> int | None:
    """Returns the seed, of fewer than 32 bits, of a generator that draws noise and is not made anew in each run.

    None is returned where there is none. Runs that begin with the generator in one state then have the same noise.
    `lab` makes the runs.
    """
    changes = {**lab.runs.frozen, **lab.noise.repeatable}
    kept = [(one, seed_of(one)) for one in generators_outside(lab.loop.train)]
    small = [(one, state_of(one), seed) for one, seed in kept if seed is not None and seed < 1 << _SEARCHED_BITS]
    if not small or lab.runs.attempt(seed=_SAME_SEED, **changes) is None:
        return None
    used = [(one, state, seed) for one, state, seed in small if repr(state_of(one)) != repr(state)]

    def noise(number: int) -> Array | None:
        return _noise_of_pair(lab, changes, {"world": _SAME_SEED + number}, begin)

    def begin() -> None:
        for one, state, _ in used:
            set_state(one, state)

    constant = _constant(noise) if used else None
    return used[0][2] if constant is not None and constant.any() else None


def _noise_of_pair(lab: Lab, changes: Changes, how: Changes, begin: Callable[[], None]) -> Array | None:
    """Returns the noise of a run, as the difference of a noisy and a quiet run that begin alike; None where one fails.

    Where the loop returns its sums before noise, they are subtracted.

    Args:
        lab: makes the runs.
        changes: changes of the loop's settings.
        how: the stream and the seed of the global generators, by name.
        begin: is called before each of the two runs.
    """
    rows = []
    for multiplier in (lab.claim.noise_multiplier, lab.runs.quiet_multiplier):
        begin()
        run = lab.runs.attempt(seed=_SAME_SEED, **how, noise_multiplier=multiplier, **changes)
        if run is None or run.releases is None:
            return None
        if run.clean is not None and run.clean.shape == run.releases.shape:
            return np.asarray(run.releases - run.clean)
        rows.append(lab.runs.comparable(run))
    return rows[0] - rows[1] if rows[0].shape == rows[1].shape else None


def _entropy(lab: Lab) -> int | None:
    """Returns how many bytes of the operating system's determine the noise of a run, or some of its numbers, else None.

    They are those that are drawn at code lines where less than a key is drawn: with other bytes at all other lines
    numbers of the noise stay the same. `lab` makes experiments on the audited loop.
    """
    changes = {**lab.runs.frozen, **lab.noise.repeatable}
    with known_entropy() as entropy:
        places: dict[str, int] = {}

        def noise(which: int) -> Array | None:
            def begin() -> None:
                places.update(entropy.places)
                entropy.start(1, [place for place, taken in places.items() if taken >= KEY_BYTES], which)

            return _noise_of_pair(lab, changes, {}, begin)

        if not _equal(noise(0), noise(0)) or not (small := [n for n in places.values() if n < KEY_BYTES]):
            return None
        constant = _constant(noise)
        return sum(small) if constant is not None and constant.any() else None


def _bits_of_seeds(lab: Lab) -> int | None:
    """Returns how many bits a seed has from which a run draws numbers of its noise; None where they are 32 or more.

    The seeds are those that a run draws by itself and gives to a random generator, as in
    `default_rng(secrets.randbits(16))`. How many bits they have is seen from how much they differ between runs. If the
    noise comes again where only such seeds are the same, it comes from them. `lab` makes experiments on the audited
    loop.
    """
    changes, apart = {**lab.runs.frozen, **lab.noise.repeatable}, lab.runs.batches_repeat or lab.runs.streamed
    with noted_seeds() as seeds:
        drawn: list[dict[Call, tuple[int, ...]]] = []
        few: dict[Call, int] = {}
        for number in range(_REDRAWN):
            seeds.start()
            if lab.runs.attempt(seed=_SAME_SEED, **changes) is None:
                return None
            drawn.append(dict(seeds.calls))
            if number and not (few := _few_bits(drawn)):
                return None
        values = dict(seeds.values)

        def noise(number: int) -> Array | None:
            how = {"stream": number + 1 if apart else None, "world": _SAME_SEED + number}
            return _noise_of_pair(lab, changes, how, seeds.start)

        tried = [list(few)] if sum(few.values()) < _SEARCHED_BITS else []
        for calls in (*tried, *([call] for call in list(few)[:_MOST_CALLS])):
            seeds.forced = {call: values[call] for call in calls}
            same = _constant(noise)
            seeds.forced = {}
            free = _constant(noise)
            if same is not None and free is not None and (same & ~free).any():
                return sum(few[call] for call in calls)
    return None


def _few_bits(drawn: list[dict[Call, tuple[int, ...]]]) -> dict[Call, int]:
    """Returns, for each call that seeds a generator in all of several runs, how many bits its seed has.

    Calls with seeds that are the same in all runs, or have 32 bits or more, are left out. `drawn` has the seeds of each
    run.
    """
    found = {}
    for call, first in drawn[0].items():
        all_words = [run.get(call, ()) for run in drawn]
        if all(len(words) == len(first) for words in all_words):
            bits = sum((max(word) - min(word)).bit_length() for word in zip(*all_words, strict=True))
            if 0 < bits < _SEARCHED_BITS:
                found[call] = bits
    return found


def _equal(first: Array | None, second: Array | None) -> bool:
    if first is None or second is None:
        return False
    return first.shape == second.shape and bool(np.allclose(first, second, rtol=1e-4, atol=0))


def streams(seed: int, count: int) -> Iterator[tuple[str, Array]]:
    """Yields, for each usual generator seeded with `seed`, its name and its first `count` standard normals.

    The generators are those of NumPy, Python and torch.
    """
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
    """Returns the normals that a torch generator with this seed draws in successive calls, as one array.

    Call k draws counts[k] numbers, in float64 if `double`, else in float32.
    """
    import torch

    generator = torch.Generator().manual_seed(seed % _SEEDS_END)
    kind = torch.float64 if double else torch.float32
    drawn = torch.cat([torch.randn(count, generator=generator, dtype=kind) for count in counts])
    return np.asarray(drawn.numpy(), dtype=np.float64)


def derived(seed: int, step: int, count: int) -> Iterator[tuple[str, Array]]:
    """Yields the names and first `count` standard normals of generators with seeds that are easily computed.

    Such seeds are sums, products, pairs and hashes of `seed`, a published number, and `step`, the number of the step.
    """
    seed = seed if seed >= 0 else seed % _SEEDS_END
    for child, sequence in enumerate(np.random.SeedSequence(seed).spawn(4)):
        yield f"numpy's child {child} of SeedSequence(seed)", np.random.default_rng(sequence).normal(size=count)
    for name, made in _seeds_of(seed, step).items():
        yield f"numpy.random.default_rng({name}).normal", np.random.default_rng(made).normal(size=count)
        if isinstance(made, int):
            yield f"numpy.random.RandomState({name}).randn", np.random.RandomState(made % 2**32).randn(count)
            if _TORCH:
                yield f"torch.manual_seed({name}), randn", _torch_normals(made, [count])


def _seeds_of(seed: int, step: int) -> dict[str, int | list[int]]:
    seeds: dict[str, int | list[int]] = {f"seed + {k}": seed + k for k in range(1, 9)}
    seeds |= {f"{k} * seed": k * seed for k in (2, 3, 10)} | {"seed ^ 1": seed ^ 1, "seed - 1": abs(seed - 1)}
    seeds |= {f"seed + {k} * step": seed + k * step for k in (1, 10, 100, 1000, 10_000)}
    seeds |= {"[seed, step]": [seed, step], "[step, seed]": [step, seed]}
    for name, digest in (("md5", hashlib.md5), ("sha256", hashlib.sha256)):
        hashed = digest(str(seed).encode(), usedforsecurity=False).digest()
        seeds |= {f"{name}(seed), {k} bytes": int.from_bytes(hashed[:k], "big") for k in (4, 8)}
    return seeds | {f"[seed, {k}]": [seed, k] for k in range(4)} | {f"[{k}, seed]": [k, seed] for k in range(4)}


def _moved(seeds: list[int], noted: list[int]) -> dict[str, Callable[[int], int]]:
    """Returns functions, by name, that map every published seed to a seed that the run gave to a random generator.

    A function adds a constant, or XORs with one.

    Args:
        seeds: the published seeds of the steps' directions.
        noted: the seeds that the run gave to random generators.
    """
    given, functions = set(noted[:_MOST_NOTED]), dict[str, Callable[[int], int]]()
    for sign, apply, undo in (("+", operator.add, operator.sub), ("^", operator.xor, operator.xor)):
        for constant in {undo(one, seeds[0]) for one in given} - {0} if seeds else ():
            if all(apply(seed, constant) in given for seed in seeds):
                functions[f"seed {sign} {constant}"] = partial(apply, constant)
    return functions


def _of_others(seed: int, others: Mapping[str, Callable[[int], int]], count: int) -> Iterator[tuple[str, Array]]:
    """Yields what usual generators draw from seeds that are computed from `seed`, each with its name.

    Each function of `others`, by name, computes such a seed, and each usual generator with it draws `count` standard
    normals.
    """
    for name, made in others.items():
        yield from ((f"{stream}, of {name}", drawn) for stream, drawn in streams(made(seed), count))


def from_directions(lab: Lab, level: float) -> Verdict:
    """Search for the noise of each step in what is shown, and in what generators draw from seeds that are published.

    The noise may be a linear function of what a run almost without noise shows or releases in the same step or another
    (`linear`), such as a later step's direction. In the stream of a published seed the noise may begin at any of the
    first numbers, at the same one in all steps. `lab` makes experiments on the audited loop. A sound loop is reported
    as violated with probability at most `level`. Returns the verdict.
    """
    linear = linear_part(lab)
    if linear is not None and linear.p < level / 2:
        says = f"the noise follows from what a run shows or sums without noise: {linear.where}"
        return violated(says, _MEND_SOURCE, p_value=linear.p)
    found = _in_streams(lab, level / 2)
    if found.status != UNTESTED or linear is None:
        return found
    return held(
        "no noise goes with a number that is shown, or summed, without it, in the same step or another",
        power=f"a correlation of {linear.seen(level / 2):.2f} of a number of the noise with one that is shown",
        p_value=linear.p,
    )


def _in_streams(lab: Lab, level: float) -> Verdict:
    """Searches for the noise in what generators draw from published seeds; the arguments are those of
    `from_directions`."""
    with noted_seeds() as noted:
        run = lab.loop.run(**lab.runs.paired(31), **lab.runs.frozen, **(lab.runs.repeatable or {}))
    residual = lab.noise.residual(None, lab.noise.repeatable, 31)
    if run.seeds is None:
        return untested("the loop publishes no seeds of steps (an output `seeds`)")
    if residual is None or len(residual) != len(run.seeds) or len(residual) < 4:
        return untested("the noise of the steps cannot be told from the rest")
    k = residual.shape[1]
    d = int(lab.loop.settings.get("d", 16))
    count = _DIRECTIONS_LONG * d + 4 * k + 64
    others = _moved(run.seeds, noted.noted)
    table = []
    for step, seed in enumerate(run.seeds):
        row = dict([*streams(seed, count), *derived(seed, step, k), *_of_others(seed, others, k)])
        if _TORCH and d > 0:
            row["torch.manual_seed(seed), randn after a direction"] = _torch_normals(seed, [d, k + 1])[d:]
        table.append(row)
    worst, where, tests = 1.0, "", 0
    for name in table[0]:
        drawn = np.array([row[name] for row in table])
        for offset in range(drawn.shape[1] - k + 1):
            tests += 1
            p = exact.correlation(residual.ravel(), drawn[:, offset : offset + k].ravel())
            if p < worst:
                worst, where = p, f"{name}, from its number {offset} on"
    p = min(1.0, worst * tests)
    if p < level:
        return violated(f"the noise is what the published seed of its step gives: {where}", _MEND_SOURCE, p_value=p)
    return held(f"none of {tests} places in streams of the published seeds has the noise", p_value=p)
