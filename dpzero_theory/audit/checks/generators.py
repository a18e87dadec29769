"""Whether what is shown lets the noise be drawn again: the seed of its generator, or the generator's state."""

import re
from collections.abc import Iterator

import numpy as np

from dpzero_theory.audit import exact
from dpzero_theory.audit.checks.seeds import streams
from dpzero_theory.audit.finding import Check, Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import Outcome
from dpzero_theory.audit.tokens import unpacked

_SEED = 41
_INTEGER = re.compile(rb"(?<![\d.])\d{5,20}(?![\d.])")
_MOST = 50
"""Integers that are tried as seeds."""
_NAMES = (b"bit_generator", b"PCG64", b"MT19937", b"Philox", b"SFC64")
"""In what NumPy writes of a generator's state."""
_TORCH = 5056
"""Bytes of torch's on the CPU."""
_MEND = "keep the generator of the noise out of outputs and checkpoints: seed it anew when training goes on"


def shown(lab: Lab, level: float) -> Verdict:
    """States of generators, and integers that are seeds of the noise; of what equal seeds of the loop give anew."""
    changes = {**lab.frozen, **(lab.mode or {})}
    first, second = (lab.attempt(seed=_SEED, **changes) for _ in (0, 1))
    if first is None or second is None:
        return untested("the loop fails")
    there = dict(_contents(second))
    for name, raw in _contents(first):
        if _is_state(raw) and there.get(name) not in (None, raw):
            says = f"{name} has the state of a generator that the loop's seed does not make: its numbers can be drawn"
            return violated(says, _MEND)
    known = {number for _, raw in _contents(second) for number in _INTEGER.findall(raw)}
    seeds = [
        int(number)
        for number in dict.fromkeys(n for _, raw in _contents(first) for n in _INTEGER.findall(raw))
        if number not in known
    ][:_MOST]
    quiet = None if lab.mode is None else lab.quiet(seed=_SEED, **lab.mode)
    if not seeds:
        return held("no state of a generator and no new integer is shown")
    if quiet is None or first.releases is None or lab.seen(first).shape != quiet.shape:
        return untested("the noise cannot be told from the rest")
    noise = (lab.seen(first) - quiet).ravel()
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


def _contents(outcome: Outcome) -> Iterator[tuple[str, bytes]]:
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


def _is_state(raw: bytes) -> bool:
    return len(raw) == _TORCH or any(name in raw for name in _NAMES)


FAMILY = (Check("noise-shown", "Is the seed or the state of the noise shown?", shown),)
"""One check."""
