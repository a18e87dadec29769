"""Checks of floating-point noise: whether the last bits of a release give its sum away, and whether values repeat."""

import math
from collections.abc import Iterator

import numpy as np
from scipy import stats

from dpzero_theory.audit import exact
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.runs import significant_bits
from dpzero_theory.check import Array

_FINEST_POWER = 32
"""The finest grid on which noise is looked for has a spacing of 2 to minus this power of its standard deviation."""

_NEAR = 0.02
"""A number counts as on a grid if it is within this share of the grid's spacing of a multiple of the spacing."""

_CHANCE = 0.5 + 2 * _NEAR
"""An upper bound on the probability that a number of noise is on a grid by chance.

Noise that is on a grid twice as fine is on the tried grid with probability 1/2.
"""
_FLOATS_SEED = 1000  # The loop's seed in the first run whose floating-point noise is tested
_FEWEST_FLOAT_RUNS, _MOST_FLOAT_RUNS, _WANTED_FLOATS = 16, 128, 160
"""The fewest and the most runs in which floating-point noise is tested, and how many numbers they should give."""
_FLOAT64_ROUNDING = 2.0**-50  # The relative rounding error, in float64, of the difference of two releases
_NO_NOISE = "the noise cannot be told from the rest"
_MEND_GRID = (
    "round the clipped contributions to the grid of the noise before they are summed and draw discrete noise on it"
    " (privacy.noise.discrete_gaussian), or draw the noise in the precision of the sum"
)

_EQUAL_WITHIN = 1e-7
"""Two numbers of noise count as equal where they are closer than this many standard deviations of the noise."""

_COARSE = 1e-4
"""The largest spacing of rounded releases, in standard deviations of the noise, for which noise is searched for equal
numbers. On a coarser grid sound noise has equal numbers too."""
_PAIRS_FACTOR, _PAIRS_MORE = 3, 20
"""How many pairs of equal numbers of noise are allowed.

It is `_PAIRS_FACTOR` times as many as a continuous law gives on average, plus `_PAIRS_MORE`.
"""
_MEND_REPEATED = (
    "draw every number anew from a generator with the entropy of a key: no table or pool of noise, no seed of one or"
    " two bytes, no generator made again in each process or second"
)


def _on_grid(values: Array, spacing: float) -> Array:
    """Whether each of `values` is within `_NEAR` times the spacing of a multiple of `spacing`."""
    turns = values / spacing
    return np.asarray(np.abs(turns - np.round(turns)) < _NEAR)


def _grids(std: float, count: float, finest: float) -> Iterator[float]:
    """Yields the spacings of the grids on which noise is looked for, in the unit of a release, all above `finest`.

    They are 2^-2 to 2^-32 of: the noise's standard deviation `std`, the power of two below it, and the spacing that is
    a power of two in the undivided sum, since a release is that sum over `count`.
    """
    for unit in (std, 2.0 ** math.floor(math.log2(std)), 2.0 ** math.floor(math.log2(std * count)) / count):
        for finer in range(2, _FINEST_POWER + 1):
            if unit * 2.0**-finer > finest:
                yield unit * 2.0**-finer


def _noise_and_sums(lab: Lab) -> tuple[Array, Array] | None:
    """Returns the noise, and the sums to which it was added, as two vectors; None where they cannot be separated.

    Numbers whose sum or noise is exactly 0 are left out. `lab` makes experiments on the audited loop.
    """
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
    """Look for a grid, the multiples of a spacing, that the noise is on and the sum is not.

    A release modulo that spacing would give the sum away. Spacings from a quarter of the noise's standard deviation to
    2^-32 of it are tried. Noise on a finer grid, as lattice noise is, falls on a grid twice as coarse with probability
    1/2, and the test allows for that. `lab` makes experiments on the audited loop. A sound loop is reported as violated
    with probability at most `level`. Returns the verdict.
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
    """Count pairs of equal numbers among all noise seen: too many mean a pool of noise or a seed of few bits.

    Where releases are coarsely rounded the check cannot be made. `lab` makes experiments on the audited loop. A sound
    loop is reported as violated with probability at most `level`. Returns the verdict.
    """
    if lab.noise.sample is None or lab.runs.repeatable is None:
        return untested(_NO_NOISE)
    values = np.sort(np.abs(lab.noise.sample.values.ravel()))
    output = lab.loop.run(**lab.runs.paired(_FLOATS_SEED), **lab.runs.frozen, **lab.runs.repeatable)
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
    """Returns the rounding of `releases`, by their significant bits, in units of the noise's standard deviation.

    `lab` has the claimed noise.
    """
    batch = float((lab.runs.repeatable or {}).get("batch", lab.claim.batch))
    largest = float(np.quantile(releases, 0.9)) / lab.claim.noise_std(batch)
    return largest * 2.0 ** -min(significant_bits(releases * factor) for factor in (1.0, batch))
