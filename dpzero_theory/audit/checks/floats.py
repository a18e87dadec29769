"""Floating-point noise that gives the sum away: on a grid that the sum is not on, or with values drawn again."""

import math
from collections.abc import Iterator

import numpy as np
from scipy import stats

from dpzero_theory.audit import exact
from dpzero_theory.audit.finding import Check, Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.check import Array

_FINEST = 32
_NEAR = 0.02
"""A number is on a grid within this share of its spacing."""
_CHANCE = 0.5 + 2 * _NEAR
"""That a number which is on a finer grid is on this one, at most."""
_FIRST_SEED, _RUNS, _MOST_RUNS, _WANTED = 1000, 16, 128, 160
_ROUNDING = 2.0**-50
"""Of a release: what float64 leaves when one is taken from another."""
_WHY = "the noise cannot be told from the rest"
_MEND = (
    "round the clipped contributions to the grid of the noise before they are summed and draw discrete noise on it"
    " (privacy.noise.discrete_gaussian), or draw the noise in the precision of the sum"
)

_WIDTH, _COARSE = 1e-7, 1e-4
"""Of a standard deviation: numbers closer than that are equal; beyond it releases are coarse."""
_SLACK, _FEW = 3, 20
_AGAIN = (
    "draw every number anew from a generator with the entropy of a key: no table or pool of noise, no seed of one or"
    " two bytes, no generator made again in each process or second"
)


def _on_grid(values: Array, spacing: float) -> Array:
    """Which of the values are."""
    turns = values / spacing
    return np.asarray(np.abs(turns - np.round(turns)) < _NEAR)


def _grids(std: float, count: float, finest: float) -> Iterator[float]:
    """Spacings, in a release: of the noise itself, of powers of two, and of those of the sum, `count` as much."""
    for unit in (std, 2.0 ** math.floor(math.log2(std)), 2.0 ** math.floor(math.log2(std * count)) / count):
        for finer in range(2, _FINEST + 1):
            if unit * 2.0**-finer > finest:
                yield unit * 2.0**-finer


def _noise_and_sums(lab: Lab) -> tuple[Array, Array] | None:
    """Noise and the sum that it was added to, number by number; a sum of zero has nothing to give away."""
    changes, size = (
        lab.noise.repeatable,
        1 if lab.runs.base.releases is None else lab.runs.comparable(lab.runs.base).size,
    )
    seeds = range(_FIRST_SEED, _FIRST_SEED + min(_MOST_RUNS, max(_RUNS, -(-_WANTED // size))))
    pairs = [(lab.noise.residual(None, changes, seed), lab.runs.quiet(seed=seed, **changes)) for seed in seeds]
    whole = [(n.ravel(), q.ravel()) for n, q in pairs if n is not None and q is not None and n.shape == q.shape]
    if not whole:
        return None
    noise, sums = (np.concatenate(part) for part in zip(*whole, strict=True))
    used = (noise != 0) & (sums != 0)
    return (noise[used], sums[used]) if used.any() else None


def representable(lab: Lab, level: float) -> Verdict:
    """Noise on grids from a quarter of it to 2^-32 of it, where the sum that it was added to is not.

    Of integers on a lattice that both are on, every second is on a grid twice as coarse, by chance.
    """
    found = None if lab.runs.repeatable is None else _noise_and_sums(lab)
    if lab.runs.repeatable is None or found is None:
        return untested(_WHY)
    noise, sums = found
    batch = float(lab.runs.repeatable.get("batch", lab.claim.batch))
    finest = _ROUNDING / _NEAR * float(np.quantile(np.abs(sums) + np.abs(noise), 0.9))
    grids = list(_grids(lab.claim.noise_std(batch), batch if lab.claim.average == "mean" else 1.0, finest))
    for spacing in grids:
        off = np.logical_not(_on_grid(sums, spacing))
        hits = int(_on_grid(noise[off], spacing).sum())
        p = len(grids) * exact.at_least(hits, int(off.sum()), _CHANCE)
        if p < level:
            says = f"the noise is on a grid of {spacing:.3g} and the sums are not: a release modulo it is the sum"
            return violated(says, _MEND, p_value=p)
    finer = math.log2(lab.claim.noise_std(batch) / min(grids)) if grids else 0.0
    return held(
        f"on none of {len(grids)} grids is the noise without the sum",
        power=f"grids down to 2^-{finer:.0f} of the noise, not the gaps between the values of a float64 generator",
    )


def repeated(lab: Lab, level: float) -> Verdict:
    """Pairs of equal values among all noise seen, against those of a Gaussian; coarse releases are not looked at."""
    if lab.noise.sample is None or lab.runs.repeatable is None:
        return untested(_WHY)
    values = np.sort(np.abs(lab.noise.sample.values.ravel()))
    found = lab.loop.run(seed=_FIRST_SEED, **lab.runs.frozen, **lab.runs.repeatable)
    width = max(_WIDTH, 4 * _resolution(lab, np.abs(lab.runs.comparable(found))))
    if width > _COARSE:
        return untested("releases are rounded so much that equal noise says nothing")
    count, others = values.size, np.searchsorted(values, values + width, side="right")
    pairs = int((others - np.arange(1, count + 1)).sum())
    expected = count * (count - 1) / 2 * width / math.sqrt(math.pi) * 2
    p = float(stats.poisson.sf(pairs - 1, _SLACK * expected + _FEW))
    if p < level:
        says = f"{pairs} pairs among {count} numbers of noise are equal, where {expected:.2g} would be by chance"
        return violated(says, _AGAIN, p_value=p)
    return held(
        f"{pairs} pairs among {count} numbers of noise are equal",
        power=f"noise that takes fewer than about {count**2 / (2 * (_SLACK * expected + _FEW) + 80):.2g} values",
    )


def _resolution(lab: Lab, releases: Array) -> float:
    """The spacing of the releases, in standard deviations of the noise: by the bits that their numbers have."""
    batch = float((lab.runs.repeatable or {}).get("batch", lab.claim.batch))
    largest = float(np.quantile(releases, 0.9)) / lab.claim.noise_std(batch)
    return largest * 2.0 ** -min(_bits(releases * factor) for factor in (1.0, batch))


def _bits(values: Array) -> int:
    """Significant bits of nine in ten of the numbers."""
    fractions, _ = np.frexp(values[values != 0])
    whole = [int(fraction * 2**53) for fraction in fractions]
    bits = [number.bit_length() - ((number & -number).bit_length() - 1) for number in whole]
    return int(np.quantile(bits, 0.9)) if bits else 53


FAMILY = (
    Check("representable", "Do the last bits of a release give the sum away?", representable),
    Check("noise-repeated", "Do numbers of the noise come again?", repeated),
)
