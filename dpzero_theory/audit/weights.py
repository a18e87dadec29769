"""Whether weights say what was released: they do where each step moves them by the step size times its release.

They do not under momentum, a schedule of step sizes or an adaptive method: such loops have to return their releases.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpzero_theory.audit import datasets
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import Loop
from dpzero_theory.check import Array

_LOUDER, _LEAST = 64.0, 6.4
"""Of the noise multiplier, and how much more noise is then to be seen at least."""
_SEEDS = range(40, 48)
_ALONG, _LONGER = 1e-6, 1e-2
"""Two steps are one direction where their cosine is this near 1, and of one length within this share."""


def lab_of(loop: Loop, runs: int, variations: Mapping[str, Mapping[str, Any]]) -> Lab:
    """Where weights are what is seen and do not say what was released, one that takes no releases from them."""
    others = tuple((name, dict(changes)) for name, changes in variations.items())
    lab = Lab(loop, runs, others)
    if loop.from_weights and (why := _unlike_releases(lab)):
        loop.weights_trusted = False
        lab = Lab(loop, runs, others)
        lab.why_not = why
    return lab


def _unlike_releases(lab: Lab) -> str:
    """Why the weights do not say what was released; empty where nothing speaks against it.

    Ten times the noise is to be seen where 64 times is asked for (of 8 steps or more, a Gaussian misses that with
    probability below 1e-7), and quiet steps in one direction are to be of one length.
    """
    if lab.repeats(lab.all_records) and _along_one_line(lab):
        return "weights move along one direction in a step, as in zeroth-order training: return the releases"
    if lab.repeats(lab.all_records) and _louder(lab) < _LEAST:
        return "weights do not move in proportion to the noise, as under Adam: return the releases"
    rows = lab.quiet(**lab.all_records) if lab.frozen else None
    if rows is not None and len(rows) > 1 and _stretched(rows):
        return "weights move by more in some steps than in others, as under momentum or a schedule: return the releases"
    return ""


def _along_one_line(lab: Lab) -> bool:
    """Whether, for every seed, the noise moves the weights by a multiple of what other records move them by."""
    data = datasets.filled(lab.loop.records, datasets.random_like(lab.loop.records[0], np.random.default_rng(0), 1.0))
    cosines = []
    for seed in _SEEDS:
        noisy = lab.attempt(seed=seed, **lab.all_records)
        rows = [lab.quiet(world, seed=seed, **lab.all_records) for world in (None, data)]
        if noisy is None or noisy.releases is None or any(row is None for row in rows):
            return False
        base, other, loud = (np.asarray(row)[0] for row in (*rows, noisy.releases))
        lengths = np.linalg.norm(other - base) * np.linalg.norm(loud - base)
        cosines.append(abs(float((other - base) @ (loud - base))) / lengths if lengths and base.size > 1 else 0.0)
    return bool(min(cosines) > 1 - _ALONG)


def _louder(lab: Lab) -> float:
    """How much more noise the first step has under a louder multiplier; nothing where only the louder one shows."""
    found = []
    for multiplier in (lab.claim.noise_multiplier * _LOUDER, lab.claim.noise_multiplier):
        runs = [lab.attempt(seed=seed, noise_multiplier=multiplier, **lab.all_records) for seed in _SEEDS]
        quiet = [lab.attempt(seed=seed, noise_multiplier=lab.quiet_noise, **lab.all_records) for seed in _SEEDS]
        pairs = [
            (run.releases[0] - other.releases[0]) ** 2
            for run, other in zip(runs, quiet, strict=True)
            if run is not None and other is not None and run.releases is not None and other.releases is not None
        ]
        found.append(float(np.sum(pairs)))
    if found[1] == 0:
        return 0.0 if found[0] > 0 else np.inf
    return float(np.sqrt(found[0] / found[1]))


def _stretched(rows: Array) -> bool:
    lengths = np.sqrt((rows**2).sum(axis=1))
    if not (lengths > 0).all():
        return False
    along = rows @ rows[0] / (lengths * lengths[0]) > 1 - _ALONG
    return bool((along & (np.abs(lengths / lengths[0] - 1) > _LONGER)).any())
