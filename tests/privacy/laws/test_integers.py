"""Tests of discrete Gaussian noise on lattices of 1 to 2^28 integers to a clip, against sums over the lattice.

The oracle adds masses up, in float64 with `math.fsum`; where the noise is wide it sums by the midpoint rule's series
(Euler and Maclaurin), to 40 digits. The best event of one release is a half-line of integers.
"""

import itertools
import math
from functools import lru_cache

import mpmath
import numpy as np
import pytest

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.conversions import rdp_of_history
from dpzero_theory.privacy.laws.integers import LEAST_DISCRETE, discrete_pairs
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import Release
from tests.privacy import oracle

LEVELS = (1, 2, 3, 10, 100, 2**10, 2**16, 2**20, 2**28)
SUMMED = 2000
"""The largest standard deviation sigma for which masses are added one by one."""


def release(levels, s, steps=1, q=1.0, relation="add-remove", sampling=None, coordinates=1):
    kind = sampling or ("full" if q == 1 else "poisson")
    name = "discrete-gaussian" if levels == 2**28 else f"discrete-gaussian:{levels}"
    return Release(s, steps, sampling=kind, relation=relation, sample_rate=q, mechanism=name, coordinates=coordinates)


@lru_cache(maxsize=4)
def _masses(sigma):
    half = math.ceil(38 * sigma)
    return half, np.exp(-((np.arange(-half, half + 1) / sigma) ** 2) / 2)


def mass_from(first, sigma):
    """Returns the sum of e^(-x^2/(2 sigma^2)) over the integers x >= first."""
    if sigma <= SUMMED:
        half, masses = _masses(sigma)
        return mpmath.mpf(math.fsum(masses[min(max(first + half, 0), 2 * half + 1) :]))
    s, y = mpmath.mpf(sigma), mpmath.mpf(first) - mpmath.mpf(1) / 2
    density = mpmath.exp(-(y**2) / (2 * s**2))
    slope, third = -y / s**2 * density, (3 * y / s**4 - y**3 / s**6) * density
    return s * mpmath.sqrt(mpmath.pi / 2) * mpmath.erfc(y / (s * mpmath.sqrt(2))) + slope / 24 - 7 * third / 5760


def one_release(levels, s, q, relation, epsilon):
    """Returns delta(epsilon) of one release, the larger one of both directions.

    `levels` is the number of integers to a clip, s the noise multiplier, q the sampling rate and `relation` the
    neighbouring relation.
    """
    with mpmath.workdps(40):
        sigma = s * levels
        q, scale = mpmath.mpf(q), mpmath.exp(mpmath.mpf(epsilon))
        other = -levels if relation == "replace-one" else 0
        total = mass_from(-math.ceil(60 * sigma) - 2, sigma)

        def beyond(first, centre):
            return ((1 - q) * mass_from(first, sigma) + q * mass_from(first - centre, sigma)) / total

        def before(first, centre):
            return ((1 - q) * mass_from(1 - first, sigma) + q * mass_from(1 - first + centre, sigma)) / total

        def ratio(x):  # The ratio of the law with the record to the other law, which rises in x
            up, down = (
                1 - q + q * mpmath.exp(mpmath.mpf(c * (2 * x - c)) / (2 * mpmath.mpf(sigma) ** 2))
                for c in (levels, other)
            )
            return up / down

        def first_above(level):
            low = -math.ceil(60 * sigma) + 2 * other - 2
            high = levels + math.ceil(60 * sigma) + math.ceil(levels / s**2 * sigma) + 2
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if ratio(middle) > level else (middle, high)
            return high

        first = first_above(scale)
        found = beyond(first, levels) - scale * beyond(first, other)
        if not other:
            first = first_above(1 / scale)
            found = max(found, before(first, other) - scale * before(first, levels))
        return float(max(found, 0))


def test_the_fault_that_was():
    """A lattice of one integer to a clip costs more than the continuous Gaussian that an earlier version took it for.

    At standard deviation 1/2 the delta is 0.0496 here, and 0.02126 for the continuous noise.
    """
    exact = one_release(1, 0.5, 1.0, "add-remove", 5.3767)
    assert exact == pytest.approx(0.0496, abs=5e-5)
    known = delta_of_history([release(1, 0.5)], 5.3767)
    assert known.lower <= exact * (1 + 1e-12) <= known.upper <= 1.0011 * known.lower
    fine = delta_of_history([release(2**28, 0.5)], 5.3767)
    assert fine.upper == pytest.approx(0.02126, abs=1e-5)
    assert "2^28 integers to the clip" in " ".join(fine.notes)


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("q", [1.0, 0.05])
def test_one_release_on_every_lattice(levels, q):
    for s, relation in itertools.product((0.3, 0.7, 2.0, 50.0), ("add-remove", "replace-one", "zero-out")):
        mu = (2 if relation == "replace-one" else 1) / s
        for epsilon in (0.0, 0.4 * mu, mu * (mu / 2 + 1.5)):
            exact = one_release(levels, s, q, relation, epsilon)
            found = delta_of_history([release(levels, s, q=q, relation=relation)], epsilon)
            room = 1e-12 * exact + 1e-25
            assert found.lower - room <= exact <= found.upper + room, (levels, s, relation, epsilon)
            assert found.upper - found.lower <= 1.1e-3 * exact + 1e-14, (levels, s, relation, epsilon)


@pytest.mark.parametrize(("levels", "s", "steps"), [
    (1, 0.3, 3), (1, 1.0, 3), (1, 4.0, 2), (2, 0.5, 3), (3, 1.7, 2), (10, 0.4, 2), (10, 3.0, 2),
])  # fmt: skip
@pytest.mark.parametrize("q", [1.0, 0.2])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_compositions_against_all_outputs(levels, s, steps, q, relation):
    couples = oracle.discrete_gaussian(levels, s * levels, q, relation)
    run = [oracle.power(couple, steps) for couple in couples]
    history = [release(levels, s, steps, q, relation)]
    for epsilon in (0.0, 0.7 / s, 2.0 / s + 1 / s**2):
        exact = oracle.exact_delta(epsilon, [run])
        found = delta_of_history(history, epsilon)
        assert found.lower * (1 - 1e-9) - 1e-15 <= exact <= found.upper * (1 + 1e-9) + 1e-15
        assert found.upper - found.lower <= 1.1e-3 * exact + 1e-12
    found = epsilon_of_history(history, 1e-3)
    assert oracle.exact_delta(found.upper, [run]) <= 1e-3 * (1 + 1e-9)
    assert oracle.exact_delta(found.lower * (1 - 1e-6), [run]) >= 1e-3 * (1 - 1e-9) or found.lower == 0


def test_a_vector_of_integers_is_covered_whatever_its_direction():
    """A vector of integers is covered whatever its direction.

    By brute force, shifts of norm at most 5 on the plane are all below the upper end, and the longest is above the
    lower end.
    """
    s, found = 1.0, delta_of_history([release(5, 1.0, coordinates=2)], 0.8)
    deltas = {}
    for shift in ((5, 0), (3, 4), (2, 4), (1, 1)):
        (first,), (second,) = ([c[0] for c in oracle.discrete_gaussian(k, 5 * s, 1.0, "add-remove")[:1]] for k in shift)
        bases = [c[1] for k in shift for c in oracle.discrete_gaussian(k, 5 * s, 1.0, "add-remove")[:1]]
        p, q = np.outer(first, second), np.outer(*bases)
        deltas[shift] = float(np.maximum(p - math.exp(0.8) * q, 0).sum())
    assert max(deltas.values()) <= found.upper
    assert deltas[5, 0] >= found.lower
    assert found.upper < 1.2 * found.lower


@pytest.mark.parametrize("s", [1.0, 6.0])
def test_fixed_size_batches_by_continuous_noise_on_either_side(s):
    """Batches of fixed size are bracketed by continuous noise from either side.

    Under add-remove they are Poisson batches whose record moves the sum by two clips.
    """
    exact = one_release(2 * 30, s / 2, 0.2, "add-remove", 0.5 / s)
    found = delta_of_history([release(30, s, q=0.2, sampling="fixed-size")], 0.5 / s)
    assert found.lower <= exact <= found.upper
    assert found.upper < 1.05 * found.lower


def test_more_noise_may_cost_more_and_the_bracket_of_the_noise_is_as_it_says():
    """With little noise, more noise may cost more, and the bracket of the calibrated noise says what it should.

    The output 2 has a loss above 8 with both noises, and less noise makes it rarer.
    """
    less, more = (delta_of_history([release(1, s, 10, 1e-3)], 8.0) for s in (0.22, 0.3))
    assert less.upper < 1e-6 < more.lower
    found = calibrate_noise_multiplier(
        target_epsilon=8.0, target_delta=1e-6, steps=10, sampling="poisson", sample_rate=1e-3,
        relation="add-remove", mechanism="discrete-gaussian:1",
    )  # fmt: skip
    assert delta_of_history([release(1, found.upper, 10, 1e-3)], 8.0).upper <= 1e-6
    assert delta_of_history([release(1, found.lower, 10, 1e-3)], 8.0).lower > 1e-6


def test_equal_releases_are_composed_together():
    apart, together = (
        epsilon_of_history(history, 1e-5) for history in ([release(10, 20.0)] * 12, [release(10, 20.0, 12)])
    )
    assert apart == together


def test_so_little_noise_that_nothing_is_known_is_refused():
    for changes in ({"sampling": "fixed-size", "q": 0.2}, {"coordinates": 3}):
        with pytest.raises(
            ValueError, match=r"^noise_multiplier must be at least 0\.\d+ with mechanism discrete-g"
        ) as e:
            release(10, 0.2, **changes)
        assert "\n" not in str(e.value)
    with pytest.raises(
        ValueError, match=r"^noise_multiplier must be at least 0\.05 with mechanism discrete-gaussian:1"
    ):
        release(1, 0.01)
    with pytest.raises(ValueError, match=r"^noise_multiplier must be at least 1\.\d+e-08 with mechanism discrete-gau"):
        release(2**28, 1e-9, coordinates=2**20)
    with pytest.raises(ValueError, match=r"^delta must be a finite number with 0 < delta < 1; got 0"):
        epsilon_of_history([release(10, 0.2)], 0.0)


@pytest.mark.parametrize("value", ["discrete-gaussian:", "discrete-gaussian:0", "discrete-gaussian:2.5"])
def test_a_lattice_is_named_by_its_integers(value):
    with pytest.raises(ValueError, match=r"^mechanism must be discrete-gaussian:M, M >= 1 integers to a clip; got "):
        MECHANISMS[value]


def test_a_wide_law_has_the_gaussian_divergence():
    """A wide discrete law has the Renyi divergence of the Gaussian one, a/(2 s^2) at order a with full batches.

    That holds on a lattice on which a shift by a times the record is a shift by integers.
    """
    found = rdp_of_history([release(100, 4.0, coordinates=2)], 3.0)
    assert found.lower < 3 / 32 < found.upper < 1.001 * found.lower


@pytest.mark.parametrize(("levels", "how"), [
    (1, {"sampling": "full"}), (10, {"sampling": "poisson", "sample_rate": 0.1}),
    (100, {"sampling": "fixed-size", "sample_rate": 0.1}), (5, {"sampling": "full", "coordinates": 3}),
])  # fmt: skip
def test_noise_is_calibrated_on_its_lattice(levels, how):
    question = {"steps": 3, "relation": "replace-one", "mechanism": f"discrete-gaussian:{levels}", **how}
    found = calibrate_noise_multiplier(target_epsilon=1.5, target_delta=1e-4, **question)
    assert delta_of_history([Release(found.upper, **question)], 1.5).upper <= 1e-4
    short = delta_of_history([Release(found.lower, **question)], 1.5)
    assert short.upper > 1e-4
    assert short.lower > 0.998e-4


def test_next_to_no_noise_on_a_fine_lattice_is_calibrated_too():
    """Where there is almost no noise on a fine lattice, calibration meets its target.

    Below 1/16 of a clip the lattice of runs counts, and asking for the cost of the calibrated noise gives the target.
    """
    for epsilon in (1e3, 1e9):
        question = {"steps": 1, "sampling": "full", "relation": "add-remove", "mechanism": "discrete-gaussian"}
        found = calibrate_noise_multiplier(target_epsilon=epsilon, target_delta=1e-5, **question)
        assert epsilon_of_history([Release(found.upper, **question)], 1e-5).upper <= epsilon * (1 + 1e-9)


def test_masses_are_below_and_above():
    """The masses of the pairs of laws are bounds from below and above, and the losses rise.

    Under P the total is at most 1 from below and at least 1 from above.
    """
    for s, q, relation, levels in itertools.product((LEAST_DISCRETE, 0.9), (1.0, 0.01), Relation, (1, 7)):
        for pair in discrete_pairs(s, q, levels, replaced=relation == "replace-one"):
            assert pair.p.sum() <= 1 <= pair.q.sum() * (1 + 1e-9) + 1e-9 or pair.q.sum() > 0
            assert pair.mass.sum() + pair.infinite == pytest.approx(1.0, abs=1e-12)
            assert np.all(np.diff(pair.loss) >= 0)
            assert np.all(pair.q > 0)
