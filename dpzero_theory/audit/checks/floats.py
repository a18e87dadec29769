"""Checks of floating-point noise: whether its last bits give the sum away, and whether its values come again."""

import math
from collections.abc import Iterator

import numpy as np
from scipy import stats

from dpzero_theory.audit import exact
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.check import Array

_FINEST_POWER = 32  # The finest grid whose spacing is tried has 2^-32 of the noise's standard deviation
_NEAR = 0.02  # A number is on a grid where it is within this share of the spacing
_CHANCE = 0.5 + 2 * _NEAR  # The largest probability that a number on a finer grid is on this one as well
_FLOATS_SEED = 1000  # The loop's seed in the first run whose floating-point numbers are looked at
_FEWEST_FLOAT_RUNS, _MOST_FLOAT_RUNS, _WANTED_FLOATS = 16, 128, 160
"""The fewest and the most runs looked at, and how many numbers they should have together."""
_FLOAT64_ROUNDING = 2.0**-50  # The relative rounding of float64 where one release is subtracted from another
_NO_NOISE = "the noise cannot be told from the rest"
_MEND_GRID = (
    "round the clipped contributions to the grid of the noise before they are summed and draw discrete noise on it"
    " (privacy.noise.discrete_gaussian), or draw the noise in the precision of the sum"
)

_EQUAL_WITHIN = 1e-7  # Two numbers of noise count as equal where they are closer than this many standard deviations
_COARSE = 1e-4  # Where releases are rounded to more than this many standard deviations, equal noise says nothing
_PAIRS_FACTOR, _PAIRS_MORE = 3, 20
"""A violation needs more equal pairs than this factor times the expected number, plus `_PAIRS_MORE`."""
_MEND_REPEATED = (
    "draw every number anew from a generator with the entropy of a key: no table or pool of noise, no seed of one or"
    " two bytes, no generator made again in each process or second"
)


def _on_grid(values: Array, spacing: float) -> Array:
    """Which of the values are on the grid."""
    turns = values / spacing
    return np.asarray(np.abs(turns - np.round(turns)) < _NEAR)


def _grids(std: float, count: float, finest: float) -> Iterator[float]:
    """The spacings to try, in a release: of the noise and of powers of two, in units of a release and of its sum."""
    for unit in (std, 2.0 ** math.floor(math.log2(std)), 2.0 ** math.floor(math.log2(std * count)) / count):
        for finer in range(2, _FINEST_POWER + 1):
            if unit * 2.0**-finer > finest:
                yield unit * 2.0**-finer


def _noise_and_sums(lab: Lab) -> tuple[Array, Array] | None:
    """The noise and the sum to which it was added, number by number; a sum of zero has nothing to give away."""
    changes, size = (
        lab.noise.repeatable,
        1 if lab.runs.base.releases is None else lab.runs.comparable(lab.runs.base).size,
    )
    count = min(_MOST_FLOAT_RUNS, max(_FEWEST_FLOAT_RUNS, -(-_WANTED_FLOATS // size)))
    seeds = range(_FLOATS_SEED, _FLOATS_SEED + count)
    pairs = [(lab.noise.residual(None, changes, seed), lab.runs.quiet(seed=seed, **changes)) for seed in seeds]
    whole = [(n.ravel(), q.ravel()) for n, q in pairs if n is not None and q is not None and n.shape == q.shape]
    if not whole:
        return None
    noise, sums = (np.concatenate(part) for part in zip(*whole, strict=True))
    used = (noise != 0) & (sums != 0)
    return (noise[used], sums[used]) if used.any() else None


def representable(lab: Lab, level: float) -> Verdict:
    """Look for a grid, from a quarter of the noise to 2^-32 of it, that the noise is on and the sum is not.

    Where both are integers on a lattice, every second one is on a grid twice as coarse by chance.
    """
    parts = None if lab.runs.repeatable is None else _noise_and_sums(lab)
    if lab.runs.repeatable is None or parts is None:
        return untested(_NO_NOISE)
    noise, sums = parts
    batch = float(lab.runs.repeatable.get("batch", lab.claim.batch))
    finest = _FLOAT64_ROUNDING / _NEAR * float(np.quantile(np.abs(sums) + np.abs(noise), 0.9))
    grids = list(_grids(lab.claim.noise_std(batch), batch if lab.claim.average == "mean" else 1.0, finest))
    for spacing in grids:
        off = np.logical_not(_on_grid(sums, spacing))
        hits = int(_on_grid(noise[off], spacing).sum())
        p = len(grids) * exact.at_least(hits, int(off.sum()), _CHANCE)
        if p < level:
            says = f"the noise is on a grid of {spacing:.3g} and the sums are not: a release modulo it is the sum"
            return violated(says, _MEND_GRID, p_value=p)
    finer = math.log2(lab.claim.noise_std(batch) / min(grids)) if grids else 0.0
    return held(
        f"on none of {len(grids)} grids is the noise without the sum",
        power=f"grids down to 2^-{finer:.0f} of the noise, not the gaps between the values of a float64 generator",
    )


def repeated(lab: Lab, level: float) -> Verdict:
    """Count pairs of equal values among all noise seen; coarse releases are not looked at."""
    if lab.noise.sample is None or lab.runs.repeatable is None:
        return untested(_NO_NOISE)
    values = np.sort(np.abs(lab.noise.sample.values.ravel()))
    output = lab.loop.run(seed=_FLOATS_SEED, **lab.runs.frozen, **lab.runs.repeatable)
    width = max(_EQUAL_WITHIN, 4 * _resolution(lab, np.abs(lab.runs.comparable(output))))
    if width > _COARSE:
        return untested("releases are rounded so much that equal noise says nothing")
    count, others = values.size, np.searchsorted(values, values + width, side="right")
    pairs = int((others - np.arange(1, count + 1)).sum())
    expected = count * (count - 1) / 2 * width / math.sqrt(math.pi) * 2
    by_chance = _PAIRS_FACTOR * expected + _PAIRS_MORE
    p = float(stats.poisson.sf(pairs - 1, by_chance))
    if p < level:
        says = f"{pairs} pairs among {count} numbers of noise are equal, where {expected:.2g} would be by chance"
        return violated(says, _MEND_REPEATED, p_value=p)
    return held(
        f"{pairs} pairs among {count} numbers of noise are equal",
        power=f"noise that takes fewer than about {count**2 / (2 * by_chance + 80):.2g} values",
    )


def _resolution(lab: Lab, releases: Array) -> float:
    """The spacing of the releases in standard deviations of the noise, by the bits that their numbers have."""
    batch = float((lab.runs.repeatable or {}).get("batch", lab.claim.batch))
    largest = float(np.quantile(releases, 0.9)) / lab.claim.noise_std(batch)
    return largest * 2.0 ** -min(_bits(releases * factor) for factor in (1.0, batch))


def _bits(values: Array) -> int:
    """How many significant bits nine in ten of the numbers need at most."""
    fractions, _ = np.frexp(values[values != 0])
    whole = [int(fraction * 2**53) for fraction in fractions]
    bits = [number.bit_length() - ((number & -number).bit_length() - 1) for number in whole]
    return int(np.quantile(bits, 0.9)) if bits else 53
