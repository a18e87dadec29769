"""Floating-point noise that gives the sum away: a grid that the noise is on and the sum is not."""

import math
from collections.abc import Iterator

import numpy as np

from dpzero_theory.audit import exact
from dpzero_theory.audit.finding import Check, Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.check import Array

_FINEST = 15
_NEAR, _SHARE = 0.02, 0.5
"""A number is on a grid within this share of its spacing; a sample is, where this share of its numbers is."""
_SEEDS = range(1000, 1008)
_MEND = (
    "round the clipped contributions to the grid of the noise before they are summed and draw discrete noise on it"
    " (privacy.noise.discrete_gaussian), or draw the noise in the precision of the sum"
)


def _on_grid(values: Array, spacing: float) -> float:
    """The share of the values that is."""
    turns = values / spacing
    return float((np.abs(turns - np.round(turns)) < _NEAR).mean())


def _grids(std: float, count: float) -> Iterator[float]:
    """Spacings, in a release: of the noise itself, of powers of two, and of those of the sum, `count` as much."""
    for unit in (std, 2.0 ** math.floor(math.log2(std)), 2.0 ** math.floor(math.log2(std * count)) / count):
        for finer in range(2, _FINEST + 1):
            yield unit * 2.0**-finer


def representable(lab: Lab, level: float) -> Verdict:
    """Noise and sums on grids from a quarter of the noise to 2^-15 of it."""
    if lab.mode is None or lab.sample is None:
        return untested("the noise cannot be told from the rest")
    batch = float(lab.mode.get("batch", lab.claim.batch))
    noise = lab.sample.values.ravel() * lab.claim.noise_std(batch)
    quiet = [lab.quiet(seed=seed, **lab.mode) for seed in _SEEDS]
    sums = np.concatenate([np.asarray(rows).ravel() for rows in quiet if rows is not None])
    sums, noise = sums[sums != 0], noise[noise != 0]
    if not sums.size or not noise.size:
        return untested("releases or noise are all zero")
    grids = list(_grids(float(noise.std()), batch if lab.claim.average == "mean" else 1.0))
    for spacing in grids:
        share = _on_grid(noise, spacing)
        p = len(grids) * exact.binomial(round(share * noise.size), noise.size, 2 * _NEAR)
        if share > _SHARE > _on_grid(sums, spacing) and p < level:
            says = f"the noise is on a grid of {spacing:.3g} and the sums are not: a release modulo it is the sum"
            return violated(says, _MEND, p_value=p)
    return held(
        f"on none of {len(grids)} grids is the noise without the sum",
        power="grids down to 2^-15 of the noise; finer leaks of float64 noise would not be seen",
    )


FAMILY = (Check("representable", "Do the last bits of a release give the sum away?", representable),)
