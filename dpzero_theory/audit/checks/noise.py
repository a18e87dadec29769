"""Checks that the noise is as large as claimed, Gaussian, and drawn anew for every number of every step."""

from collections.abc import Callable, Iterator

import numpy as np

from dpzero_theory.audit import exact
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.noise import NoiseSample
from dpzero_theory.audit.runs import NOT_REPEATABLE
from dpzero_theory.check import Array

_HARDLY_ANY = 1e-6  # A run whose expected batch is this share of the claimed one has only empty batches
_EMPTY_SEEDS = range(70, 74)  # The loop's seeds in the runs with empty batches
_NO_SAMPLE = f"the noise cannot be told from the rest: {NOT_REPEATABLE}"
_TAILS = (2.0, 2.5, 3.0)
"""The shares of the noise farther from 0 than these many standard deviations are compared with a Gaussian's."""

_MIDDLE = (0.1, 0.25, 0.5, 1.0)
"""The shares of the noise nearer to 0 than these many standard deviations are compared with a Gaussian's too."""

_SHORT = 1.645 / 2
"""A difference of two distribution functions at a point is seen as smaller than it is by this over the root of the
number of values, or more, with a probability of at most 5%: a share has a variance of at most 1/4."""
_LAGS = 40  # Numbers of noise fewer than this many steps, or coordinates of a step, apart are tested for correlation
_EQUAL_DIGITS = 1e-6  # Two numbers of noise count as equal in absolute value below this relative difference
_STEP_SIZE = (
    "; here releases are computed from weights, as if every step had the setting step_size: if it has not, since it"
    " follows a schedule, return `releases`, and if it follows the records, pay for what it takes from them"
)
_MEND_SIZE = (
    "noise of standard deviation noise_multiplier * clip, once a step, on the sum over all micro-batches and ranks, on"
    " every coordinate; divide it by the same denominator as the sum, and by nothing else"
)


def _parts(noise: NoiseSample) -> Iterator[tuple[str, Array]]:
    """Yields, with names, the parts of a sample of noise whose size is tested.

    They are all of it, each step, each coordinate of a step, and the sum over all steps divided by the root of their
    number.
    """
    values = noise.values
    _, steps, numbers = values.shape
    yield "all numbers", values
    if steps > 1:
        for step in range(steps):
            yield f"step {step}", values[:, step]
        yield "the sum over all steps", values.sum(axis=1) / np.sqrt(steps)
    if 1 < numbers <= 512:
        for number in range(numbers):
            yield f"number {number} of each step", values[:, :, number]


def _least(noise: NoiseSample) -> tuple[float, str, float]:
    """Tests each part of a sample of noise for too little noise, and describes the part with the smallest p-value.

    Returns that p-value times the number of parts, the part's name, and its standard deviation over the claimed one.
    """
    tests = [(exact.too_little(float((part**2).sum()), part.size), name, part) for name, part in _parts(noise)]
    p, name, part = min(tests, key=lambda test: test[0])
    return min(1.0, p * len(tests)), name, float(np.sqrt((part**2).mean()))


def size(lab: Lab, level: float) -> Verdict:
    """Test that the noise is not smaller than claimed, on several data sets and under several settings.

    All numbers together, each step, each coordinate and the sum over all steps are tested. `lab` makes experiments on
    the audited loop. A sound loop is reported as violated with probability at most `level`. Returns the verdict.
    """
    if lab.noise.sample is None:
        return untested(_NO_SAMPLE)
    samples: list[tuple[str, Callable[[], NoiseSample | None]]] = [
        ("as claimed", lambda: lab.noise.sample),
        *lab.noise.worlds(),
    ]
    seen: dict[str, float] = {}
    lost: list[str] = []
    for name, sample in samples:
        sampled = sample()
        if sampled is None:
            lost.append(name)
            continue
        p, where, std = _least(sampled)
        seen[name] = float(np.sqrt((sampled.values**2).mean()))
        if p * len(samples) < level:
            return violated(
                f"noise of {std:.3g} times the standard deviation that is claimed, {where}, {name}",
                _MEND_SIZE + (_STEP_SIZE if lab.loop.from_weights else ""),
                p_value=p * len(samples),
                worlds=seen,
            )
    if _silent(lab):
        return violated("a step whose batch is empty has no noise: it tells that nobody was drawn", _MEND_SIZE)
    count = lab.noise.sample.values.size
    power = (
        f"all numbers together: less than {exact.least_seen(count, level / (4 * len(samples))):.2f} of what is claimed"
    )
    says = f"noise of {seen['as claimed']:.3g} times the claimed standard deviation ({count} numbers)"
    return held(says + (f"; not seen: {', '.join(lost)}" if lost else ""), power=power, worlds=seen)


def _silent(lab: Lab) -> bool:
    """Whether releases have no noise in runs of `lab` whose Poisson batches are all empty."""
    if lab.claim.sampling != "poisson":
        return False
    rows = [lab.noise.residual(None, {"batch": lab.claim.batch * _HARDLY_ANY}, seed) for seed in _EMPTY_SEEDS]
    return all(row is not None and row.size > 0 and not row.any() for row in rows)


def law(lab: Lab, level: float) -> Verdict:
    """Test that the noise is Gaussian: by Kolmogorov's test, and by the shares of values far from 0 and near it.

    Where there is more noise than claimed, only the shares near 0 are tested: adding anything independent to the
    claimed Gaussian cannot raise them. `lab` makes experiments on the audited loop. A sound loop is reported as
    violated with probability at most `level`. Returns the verdict.
    """
    if lab.noise.sample is None:
        return untested(_NO_SAMPLE)
    values = lab.noise.sample.values.ravel()
    plot = {"quantiles": np.quantile(values, np.linspace(0.005, 0.995, 60)).tolist()}
    tests = {f"too many values within {t:g} standard deviations": exact.many_within(values, t) for t in _MIDDLE}
    more = exact.too_much(float((values**2).sum()), values.size) < level / 20
    if not more:
        tests |= {"its distance from the normal law": exact.gaussian(values)}
        tests |= {f"too few values beyond {t:g} standard deviations": exact.few_beyond(values, t) for t in _TAILS}
    name, p = min(tests.items(), key=lambda pair: pair[1])
    p = min(1.0, p * (len(tests) + 1))
    if p < level:
        mend = "Gaussian noise, without truncation, clamping or another law; or claim the law that is drawn"
        return violated(f"the noise is not Gaussian: {name}", mend, p_value=p, **plot)
    if more:
        return held("more noise than is claimed, so that only its middle is compared", p_value=p, **plot)
    # the distance that is found, and by how much the one that is seen falls short of it with a probability of 5%
    distance = float(np.sqrt(np.log(2 / (level / 10)) / (2 * values.size))) + _SHORT / float(np.sqrt(values.size))
    return held(
        f"{values.size} numbers fit the Gaussian that is claimed",
        power=f"distribution functions {distance:.3f} apart or more",
        p_value=p,
        **plot,
    )


def independence(lab: Lab, level: float) -> Verdict:
    """Test that noises of different steps, of different coordinates and of runs with other seeds are uncorrelated.

    `lab` makes experiments on the audited loop. A sound loop is reported as violated with probability at most `level`.
    Returns the verdict.
    """
    if lab.noise.sample is None:
        return untested(_NO_SAMPLE)
    values = lab.noise.sample.values
    _, steps, numbers = values.shape
    tests, by_chance = dict[str, float](), _equal_by_chance(values)
    for lag in range(1, min(steps, _LAGS)):
        tests[f"steps {lag} apart"] = exact.correlation(values[:, lag:].ravel(), values[:, :-lag].ravel())
        tests[f"steps {lag} apart, in size"] = _copies(values[:, lag:], values[:, :-lag], by_chance)
    for number in range(1, min(numbers, _LAGS)):
        tests[f"numbers {number} apart"] = exact.correlation(
            values[..., number:].ravel(), values[..., :-number].ravel()
        )
    tests["runs with other seeds"] = exact.correlation(values[1:].ravel(), values[:-1].ravel())
    name, p = min(tests.items(), key=lambda pair: pair[1])
    p = min(1.0, p * len(tests))
    if p < level:
        mend = (
            "draw new noise for every step, every coordinate and every run; never seed or copy the generator in a loop"
            " (noise that is correlated on purpose, as in DP-FTRL and BandMF, is not audited here; privacy.matrix says"
            " what it costs)"
        )
        return violated(f"the noise is not independent: {name}", mend, p_value=p)
    where = "of steps one apart" if steps > 1 else "of runs with other seeds"
    seen = exact.least_correlation((values[:, 1:] if steps > 1 else values[1:]).size, level / len(tests))
    return held(f"no correlation among {len(tests)} kinds", power=f"a correlation {where} of {seen:.2f}", p_value=p)


def _copies(a: Array, b: Array, by_chance: float) -> float:
    """The one-sided p-value of how many entries of two vectors of noise agree, in absolute value, to six digits.

    Entries of `a` and `b` at the same index are compared. `by_chance` is an upper bound on the probability that two
    entries of independent noise agree so.
    """
    return exact.at_least(int(np.isclose(np.abs(a), np.abs(b), rtol=_EQUAL_DIGITS, atol=0).sum()), a.size, by_chance)


def _equal_by_chance(values: Array) -> float:
    """An upper estimate of the probability that two numbers of noise agree in absolute value to six digits.

    It is twice the share of all pairs of `values` whose absolute values agree, which means that they differ by at most
    1e-6 of the smaller one, plus that 1e-6. The share is large for noise on a lattice, whose values agree often.
    """
    sizes = np.sort(np.abs(values.ravel()))
    after = np.searchsorted(sizes, sizes * (1 + _EQUAL_DIGITS), side="right") - np.arange(1, sizes.size + 1)
    return float(min(1.0, _EQUAL_DIGITS + 2 * after.sum() / max(1, sizes.size * (sizes.size - 1) / 2)))


def precision(lab: Lab, level: float) -> Verdict:
    """Test that the noise is as large as claimed where the sum is largest, and rounding to few digits could lose it.

    `lab` makes experiments on the audited loop. A sound loop is reported as violated with probability at most `level`.
    Returns the verdict.
    """
    loudest = lab.noise.aligned()
    if loudest is None:
        return untested(
            _NO_SAMPLE if lab.runs.repeatable is None else "no data make the sum large without making it infinite"
        )
    p, where, std = _least(loudest)
    distinct = len(np.unique(loudest.values.ravel())) / loudest.values.size
    if p < level:
        mend = "add the noise in float32 or wider (sums of a batch too), before anything is rounded to half precision"
        return violated(
            f"where the sum is large the noise is {std:.3g} of what is claimed, {where}",
            mend,
            p_value=p,
            distinct=distinct,
        )
    return held("where all records push one way the noise is all there", p_value=p, distinct=distinct)
