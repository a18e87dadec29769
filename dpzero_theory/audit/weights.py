"""Tests whether the releases of a loop can be computed from the weights that it shows.

They can where each step changes the weights by minus the step size times the release. Under momentum, a schedule of
step sizes or an adaptive method they cannot, and such a loop has to return its releases.
"""

import numpy as np
from scipy import stats

from dpzero_theory.audit import datasets
from dpzero_theory.audit.loop import Loop
from dpzero_theory.audit.runs import LoopRuns
from dpzero_theory.check import Array

_NOISE_FACTOR = 64.0
"""The factor by which the noise multiplier is raised to see whether the noise on the weights grows with it."""

_CHANCE = 1e-7  # The probability with which Gaussian noise in proportion to its multiplier is taken for another
_LEAST_DEVIATION = 2.0  # The growth of the noise may always differ from `_NOISE_FACTOR` by this factor
_PROBED_SEEDS = range(40, 48)
_SAME_DIRECTION = 1e-6  # Two steps of the weights count as parallel if their cosine exceeds 1 minus this
_SAME_LENGTH = 1e-2  # Two steps of the weights count as equally long up to this relative difference


def runs_of(loop: Loop) -> LoopRuns:
    """Returns the runs of `loop` that the audit's checks use.

    They take releases from the loop's weights only where that is valid; elsewhere the attribute `why_no_releases` says
    why not.
    """
    runs = LoopRuns(loop)
    if loop.from_weights and (why := _unlike_releases(runs)):
        loop.weights_trusted = False
        runs = LoopRuns(loop)
        runs.why_no_releases = why
    return runs


def _unlike_releases(runs: LoopRuns) -> str:
    """Returns why the loop's releases cannot be computed from its weights; empty where nothing speaks against it.

    In runs almost without noise, parallel steps must have equal lengths. With 64 times the noise multiplier the weights
    must show about 64 times the noise: see `_in_proportion`.
    """
    if runs.repeats(runs.all_records) and _along_one_line(runs):
        return "weights move along one direction in a step, as in zeroth-order training: return the releases"
    if runs.repeats(runs.all_records) and not _in_proportion(runs):
        return "weights do not move in proportion to the noise, as under Adam: return the releases"
    rows = runs.quiet(**runs.all_records) if runs.frozen else None
    if rows is not None and len(rows) > 1 and _stretched(rows):
        return "weights move by more in some steps than in others, as under momentum or a schedule: return the releases"
    return ""


def _along_one_line(runs: LoopRuns) -> bool:
    """Whether noise and other records change the first step of the weights along the same line, for every seed.

    In zeroth-order training they do, since both change only the factor of the direction.
    """
    records = runs.loop.records
    data = datasets.filled(records, datasets.random_like(records[0], np.random.default_rng(0), 1.0))
    cosines = []
    for seed in _PROBED_SEEDS:
        noisy = runs.attempt(seed=seed, **runs.all_records)
        rows = [runs.quiet(world, seed=seed, **runs.all_records) for world in (None, data)]
        if noisy is None or noisy.releases is None or any(row is None for row in rows):
            return False
        base, other, loud = (np.asarray(row)[0] for row in (*rows, noisy.releases))
        lengths = np.linalg.norm(other - base) * np.linalg.norm(loud - base)
        cosines.append(abs(float((other - base) @ (loud - base))) / lengths if lengths and base.size > 1 else 0.0)
    return bool(min(cosines) > 1 - _SAME_DIRECTION)


def _in_proportion(runs: LoopRuns) -> bool:
    """Whether the noise on the weights grows in the first step as its multiplier does, when that is raised 64 times.

    The growth is the ratio of two root mean squares. For independent Gaussian noise its square, divided by 64^2, has
    the F distribution with as many degrees of freedom as there are numbers in each mean. The growth must lie within
    that distribution's quantiles at 1e-7 and 1 - 1e-7, or within a factor of 2 of 64. Weights that show no noise at
    either multiplier pass; a loop without noise is left to other checks.
    """
    squares = []
    for multiplier in (runs.claim.noise_multiplier * _NOISE_FACTOR, runs.claim.noise_multiplier):
        pairs = [
            [
                runs.attempt(seed=seed, noise_multiplier=m, **runs.all_records)
                for m in (multiplier, runs.quiet_multiplier)
            ]
            for seed in _PROBED_SEEDS
        ]
        rows = [[one.releases[0] for one in pair if one and one.releases is not None] for pair in pairs]
        squares.append(np.array([(row[0] - row[1]) ** 2 for row in rows if len(row) == 2]))
    loud, base = squares
    if not (loud.any() and base.any()):
        return not (loud.any() or base.any())
    deviation = max(_LEAST_DEVIATION, float(np.sqrt(stats.f.isf(_CHANCE, loud.size, base.size))))
    growth = float(np.sqrt(loud.mean() / base.mean()))
    return 1 / deviation <= growth / _NOISE_FACTOR <= deviation


def _stretched(rows: Array) -> bool:
    """Whether some step of the weights, a row of `rows`, is parallel to the first one but of another length."""
    lengths = np.sqrt((rows**2).sum(axis=1))
    if not (lengths > 0).all():
        return False
    along = rows @ rows[0] / (lengths * lengths[0]) > 1 - _SAME_DIRECTION
    return bool((along & (np.abs(lengths / lengths[0] - 1) > _SAME_LENGTH)).any())
