"""Checks that the noise is as large as claimed, Gaussian, drawn anew for every number, and hides the sum's last bits.

A check is a function (lab, level) -> verdict. It runs the audited training loop by experiments of `lab`, a `Lab`. If
the loop does what it claims, the check reports a violation with probability at most `level`.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy import stats

from dpzero_theory.audit import exact
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.report import Check, Verdict, held, untested, violated
from dpzero_theory.audit.runs import NOT_REPEATABLE
from dpzero_theory.check import Array

# Names of checks that noise violates if it can be drawn again. Such noise may violate the checks of this module for
# that reason alone, so the report names the checks in `_KNOWN` as the cause
_KNOWN = ("noise-fixed", "noise-from-seed")
_HARDLY_ANY = 1e-6  # With this share of the claimed batch size, nearly all Poisson batches are empty
_EMPTY_SEEDS = range(70, 74)  # The loop's seeds in the runs with empty batches
_NO_SAMPLE = f"the noise cannot be told from the rest: {NOT_REPEATABLE}"
_TAILS = (2.0, 2.5, 3.0)  # The share of noise is tested that is farther from 0 than these many standard deviations
_MIDDLE = (0.1, 0.25, 0.5, 1.0)  # The share of noise is tested that is nearer to 0 than these many standard deviations
_SHORT = 1.645 / 2
"""With probability 95%, the distance of the empirical distribution function of N values from the normal one, at a given
point, is less than the true function's distance by at most this number over sqrt(N)."""
_LAGS = 40  # Correlation of noise is tested between steps, and between numbers of a step, less than 40 apart
_EQUAL = 1e-6  # Two absolute values of noise count as equal if their relative difference is below this
_MORE_PAIRS, _PAIRS = 3.0, 20.0
"""How many pairs of equal absolute values a sample may have on average: 3 times those of Gaussian noise, plus 20."""
_ROUNDED = 1e-9  # Absolute values that differ by less than this share of their median are equal up to rounding
_FINEST_POWER = 32  # The finest grid that is tried has a spacing of 2^-32 standard deviations of the noise
_NEAR = 0.02  # A number counts as on a grid if it is within this share of the spacing of a multiple of the spacing
_CHANCE = 0.5 + 2 * _NEAR
"""An upper bound on the probability that a number is near a multiple of a tested spacing by chance: multiples of half
the spacing are, with probability 1/2."""
_SEEDS = range(1000, 1128)  # The loop's seeds, in order, in the runs of `_noise_and_sums`
_FEWEST_RUNS, _WANTED = 16, 160  # `_noise_and_sums` makes at least 16 runs, and more until it has 160 numbers of noise
_FLOAT64 = 2.0**-50  # The relative rounding error of the difference of two releases in float64
_MEND_GRID = (
    "round the clipped contributions to the grid of the noise before they are summed and draw discrete noise on it"
    " (privacy.noise.discrete_gaussian), or draw the noise in the precision of the sum"
)
_MEND_SIZE = (
    "noise of standard deviation noise_multiplier * clip, once a step, on the sum over all micro-batches and ranks, on"
    " every coordinate; divide it by the same denominator as the sum, and by nothing else; add it in float32 or wider"
)
_MEND_NEW = (
    "draw new noise for every step, every coordinate and every run from a generator with the entropy of a key; never"
    " seed or copy the generator in a loop, and take no noise from a table (noise that is correlated on purpose, as in"
    " DP-FTRL and BandMF, is not audited here)"
)
_STEP_SIZE = (
    "; here releases are computed from weights, as if every step had the setting step_size: if it has not, since it"
    " follows a schedule, return `releases`, and if it follows the records, pay for what it takes from them"
)


def _tested_parts(values: Array) -> Iterator[tuple[str, Array]]:
    # Yields the parts of a sample of noise, shape (runs, steps, numbers), that are tested, by a name for the report
    _, steps, numbers = values.shape
    yield "all numbers", values
    if steps > 1:
        for step in range(steps):
            yield f"step {step}", values[:, step]
        yield "the sum over all steps", values.sum(axis=1) / np.sqrt(steps)  # The root keeps the variance of one step
    if 1 < numbers <= 512:
        for number in range(numbers):
            yield f"number {number} of each step", values[:, :, number]


def _least(values: Array) -> tuple[float, str, float]:
    # Returns the smallest p-value, over the parts, of a test for too little noise, times the number of parts (at most
    # 1); and that part's name and standard deviation, in units of the claimed one
    tests = [(_too_little(float((part**2).sum()), part.size), name, part) for name, part in _tested_parts(values)]
    p, name, part = min(tests, key=lambda test: test[0])
    return min(1.0, p * len(tests)), name, float(np.sqrt((part**2).mean()))


def _size(lab: Lab, level: float) -> Verdict:
    if lab.noise.sample is None:
        return untested(_NO_SAMPLE)
    samples: list[tuple[str, Callable[[], Array | None]]] = [
        ("as claimed", lambda: lab.noise.sample),
        *lab.noise.others(),
    ]
    lost: list[str] = []
    for name, sample in samples:
        values = sample()
        if values is None:
            lost.append(name)
            continue
        p, where, std = _least(values)
        if p * len(samples) < level:
            says = f"noise of {std:.3g} times the standard deviation that is claimed, {where}, {name}"
            mend = _MEND_SIZE + (_STEP_SIZE if lab.loop.from_weights else "")
            return violated(says, mend, p_value=p * len(samples))
    if _silent(lab):
        return violated("a step whose batch is empty has no noise: it tells that nobody was drawn", _MEND_SIZE)
    count, std = lab.noise.sample.size, float(np.sqrt((lab.noise.sample**2).mean()))
    # With probability 95%, the test of all numbers reports noise with less than this share of the claimed standard
    # deviation
    least = math.sqrt(float(stats.chi2.ppf(level / (4 * len(samples)), count)) / float(stats.chi2.ppf(0.95, count)))
    power = f"all numbers together: less than {least:.2f} of what is claimed"
    says = f"noise of {std:.3g} times the claimed standard deviation ({count} numbers)"
    return held(says + (f"; not seen: {', '.join(lost)}" if lost else ""), power=power)


def _too_little(squares: float, count: int) -> float:
    # Returns the probability that the squares of `count` N(0, 1) numbers sum to at most `squares`
    return float(stats.chi2.cdf(squares, count))


def _silent(lab: Lab) -> bool:
    # Returns whether steps with empty Poisson batches have no noise; False for other samplings, or if the noise is
    # unknown
    if lab.claim.sampling != "poisson":
        return False
    rows = [lab.noise.residual(None, {"batch": lab.claim.batch * _HARDLY_ANY}, seed) for seed in _EMPTY_SEEDS]
    return all(row is not None and row.size > 0 and not row.any() for row in rows)


def _gaussian(lab: Lab, level: float) -> Verdict:
    if lab.noise.sample is None:
        return untested(_NO_SAMPLE)
    values = lab.noise.sample.ravel()
    far = np.abs(values)
    tests = {
        f"too many values within {t:g} standard deviations": exact.at_least(
            int((far <= t).sum()), values.size, 1 - 2 * float(stats.norm.sf(t))
        )
        for t in _MIDDLE
    }
    more = float(stats.chi2.sf(float((values**2).sum()), values.size)) < level / 20
    # More noise than claimed does no harm: then only too many values near 0 count as a violation
    if not more:
        tests |= {"its distance from the normal law": float(stats.kstest(values, "norm").pvalue)}
        tests |= {
            f"too few values beyond {t:g} standard deviations": float(
                stats.binom.cdf(int((far > t).sum()), values.size, 2 * stats.norm.sf(t))
            )
            for t in _TAILS
        }
    name, p = min(tests.items(), key=lambda pair: pair[1])
    p = min(1.0, p * (len(tests) + 1))
    if p < level:
        mend = "Gaussian noise, without truncation, clamping or another law; or claim the law that is drawn"
        return violated(f"the noise is not Gaussian: {name}", mend, p_value=p)
    if more:
        return held("more noise than is claimed, so that only its middle is compared", p_value=p)
    # The distance between distribution functions that is noticed with probability 95%: the smallest that the test
    # reports, plus the amount by which the observed distance may be below the true one
    distance = float(np.sqrt(np.log(2 / (level / 10)) / (2 * values.size))) + _SHORT / float(np.sqrt(values.size))
    says, power = (
        f"{values.size} numbers fit the Gaussian that is claimed",
        f"distribution functions {distance:.3f} apart",
    )
    return held(says, power=f"{power} or more", p_value=p)


def _independence(lab: Lab, level: float) -> Verdict:
    if lab.noise.sample is None:
        return untested(_NO_SAMPLE)
    values = lab.noise.sample
    _, steps, numbers = values.shape
    tests, by_chance = dict[str, float](), _equal_by_chance(values)
    for lag in range(1, min(steps, _LAGS)):
        tests[f"steps {lag} apart"] = exact.correlation(values[:, lag:].ravel(), values[:, :-lag].ravel())
        alike = np.isclose(np.abs(values[:, lag:]), np.abs(values[:, :-lag]), rtol=_EQUAL, atol=0)
        tests[f"steps {lag} apart, in size"] = exact.at_least(int(alike.sum()), alike.size, by_chance)
    for number in range(1, min(numbers, _LAGS)):
        near = values[..., number:].ravel(), values[..., :-number].ravel()
        tests[f"numbers {number} apart"] = exact.correlation(*near)
    tests["runs with other seeds"] = exact.correlation(values[1:].ravel(), values[:-1].ravel())
    tests["pairs of numbers that are equal"] = _pairs(values)
    name, p = min(tests.items(), key=lambda pair: pair[1])
    p = min(1.0, p * len(tests))
    if p < level:
        return violated(f"the noise is not independent: {name}", _MEND_NEW, p_value=p)
    where = "of steps one apart" if steps > 1 else "of runs with other seeds"
    count = (values[:, 1:] if steps > 1 else values[1:]).size
    # A cosine above `edge` in the sample is reported, as its p-value is below the level. A true correlation of
    # `seen` is, with probability 95%: the cosine is smaller by at most 1.645/sqrt(count) with this probability
    edge = 1 - 2 * stats.beta.ppf(level / len(tests) / 2, (count - 1) / 2, (count - 1) / 2)
    seen = float(min(1.0, edge + stats.norm.ppf(0.95) / math.sqrt(count)))
    return held(f"no correlation among {len(tests)} kinds", power=f"a correlation {where} of {seen:.2f}", p_value=p)


def _equal_by_chance(values: Array) -> float:
    # Returns an estimate, from above, of the probability that two numbers of noise have equal absolute values to six
    # digits: twice the share of such pairs among all numbers, plus 1e-6
    sizes = np.sort(np.abs(values.ravel()))
    after = np.searchsorted(sizes, sizes * (1 + _EQUAL), side="right") - np.arange(1, sizes.size + 1)
    return float(min(1.0, _EQUAL + 2 * after.sum() / max(1, sizes.size * (sizes.size - 1) / 2)))


def _pairs(values: Array) -> float:
    # Returns the p-value of the number of pairs with equal absolute values, of which noise from a pool, or from a seed
    # of few bits, has too many. Values are equal up to 1e-6 of their median or, if that is more, up to four times the
    # smallest gap that is no rounding error, to which noise may be rounded. If the claim is true, the number of pairs
    # is taken to be Poisson with mean 3 times the number expected of normal noise, plus 20
    sizes = np.sort(np.abs(values.ravel()))
    gaps, middle = np.diff(sizes), float(np.median(sizes))
    width = max(_EQUAL * middle, 4 * float(gaps[gaps > _ROUNDED * middle].min(initial=middle)))
    pairs = int((np.searchsorted(sizes, sizes + width, side="right") - np.arange(1, sizes.size + 1)).sum())
    expected = sizes.size * (sizes.size - 1) * width / np.sqrt(np.pi)
    return float(stats.poisson.sf(pairs - 1, _MORE_PAIRS * expected + _PAIRS))


def _off_grids(lab: Lab, level: float) -> Verdict:
    # If the noise consists of multiples of a spacing, and the sum does not, a release modulo the spacing reveals the
    # sum. Spacings of 2^-2 to 2^-32 of three units are tried: the standard deviation of the noise, the power of two
    # below it, and, for a mean, the power of two below the standard deviation of the noise on the sum, over the batch
    # size
    parts = None if lab.runs.repeatable is None else _noise_and_sums(lab)
    if lab.runs.repeatable is None or parts is None:
        return untested("the noise cannot be told from the rest")
    noise, sums = parts
    batch = float(lab.runs.repeatable.get("batch", lab.claim.batch))
    std, count = lab.claim.noise_std(batch), batch if lab.claim.average == "mean" else 1.0
    finest = _FLOAT64 / _NEAR * float(np.quantile(np.abs(sums) + np.abs(noise), 0.9))
    units = (std, 2.0 ** math.floor(math.log2(std)), 2.0 ** math.floor(math.log2(std * count)) / count)
    grids = [unit * 2.0**-k for unit in units for k in range(2, _FINEST_POWER + 1) if unit * 2.0**-k > finest]
    for spacing in grids:
        off = np.logical_not(_on_grid(sums, spacing))
        p = len(grids) * exact.at_least(int(_on_grid(noise[off], spacing).sum()), int(off.sum()), _CHANCE)
        if p < level:
            says = f"the noise is on a grid of {spacing:.3g} and the sums are not: a release modulo it is the sum"
            return violated(says, _MEND_GRID, p_value=p)
    finer = math.log2(std / min(grids)) if grids else 0.0
    return held(
        f"on none of {len(grids)} grids is the noise without the sum",
        power=f"grids down to 2^-{finer:.0f} of the noise, not the gaps between the values of a float64 generator",
    )


def _on_grid(values: Array, spacing: float) -> Array:
    turns = values / spacing
    return np.asarray(np.abs(turns - np.round(turns)) < _NEAR)


def _noise_and_sums(lab: Lab) -> tuple[Array, Array] | None:
    # Returns the noise of several runs and the sums to which it was added, as two vectors in the unit of releases, or
    # None if they cannot be separated. Zeros, which are multiples of every spacing, are left out
    found: list[Array] = []
    for k, seed in enumerate(_SEEDS):
        parts = lab.noise.parts(None, lab.noise.repeat_changes, seed)
        if parts is None:
            return None
        found.append(np.array([parts.noise.ravel(), parts.sums.ravel()]))
        if k + 1 >= _FEWEST_RUNS and sum(one.shape[1] for one in found) >= _WANTED:
            break
    noise, sums = np.concatenate(found, axis=1)
    used = (noise != 0) & (sums != 0)
    return (noise[used], sums[used]) if used.any() else None


CHECKS = (
    Check("noise-size", "Is the noise as large as claimed, everywhere?", _size, core=True, follows=_KNOWN),
    Check("noise-law", "Is the noise Gaussian?", _gaussian, follows=(*_KNOWN, "noise-size")),
    Check("noise-independence", "Is every noise new?", _independence, follows=_KNOWN),
    Check("representable", "Do the last bits of a release give the sum away?", _off_grids),
)
"""The checks of this module, in the order of the report."""
