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
from dpzero_theory.privacy.conversions import rdp_of_history
from dpzero_theory.privacy.laws.shifts import LEAST_DISCRETE, IntegerNoise, binomial_shifts, shifted_pairs
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import step_of
from tests.privacy import oracle
from tests.privacy.oracle import around, noise_for

SUMMED = 2000
"""The largest standard deviation sigma for which masses are added one by one."""


def release(levels, s, steps=1, q=1.0, relation="add-remove", sampling=None, coordinates=1):
    kind = sampling or ("full" if q == 1 else "poisson")
    name = "discrete-gaussian" if levels == 2**28 else f"discrete-gaussian:{levels}"
    return step_of(s, steps, sampling=kind, relation=relation, sample_rate=q, mechanism=name, coordinates=coordinates)


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
    """Returns delta(epsilon) of one release with this number of integers to a clip, the larger one of both
    directions."""
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
    """A lattice of one integer to a clip costs more than the continuous Gaussian that an earlier version took it for:
    at standard deviation 1/2 the delta is 0.0496, not 0.02126."""
    exact = one_release(1, 0.5, 1.0, "add-remove", 5.3767)
    assert exact == pytest.approx(0.0496, abs=5e-5)
    assert around(delta_of_history(release(1, 0.5), 5.3767), exact, 1e-12, width=1.1e-3)
    fine = delta_of_history(release(2**28, 0.5), 5.3767)
    assert fine.upper == pytest.approx(0.02126, abs=1e-5)
    assert "2^28 integers to the clip" in " ".join(fine.notes)


@pytest.mark.parametrize("levels", [1, 2, 3, 10, 100, 2**10, 2**16, 2**20, 2**28])
@pytest.mark.parametrize("q", [1.0, 0.05])
def test_one_release_on_every_lattice(levels, q):
    for s, relation in itertools.product((0.3, 0.7, 2.0, 50.0), ("add-remove", "replace-one")):
        mu = (2 if relation == "replace-one" else 1) / s
        for epsilon in (0.0, 0.4 * mu, mu * (mu / 2 + 1.5)):
            exact = one_release(levels, s, q, relation, epsilon)
            found = delta_of_history(release(levels, s, q=q, relation=relation), epsilon)
            room = 1e-12 * exact + 1e-25
            assert found.lower - room <= exact <= found.upper + room, (levels, s, relation, epsilon)
            # The grid gets no finer where that does not help: atoms move by up to a cell.
            assert found.upper - found.lower <= 2e-3 * exact + 1e-14, (levels, s, relation, epsilon)
            if relation == "add-remove":
                assert delta_of_history(release(levels, s, q=q, relation="zero-out"), epsilon) == found


@pytest.mark.parametrize(("levels", "s", "steps"), [
    (1, 0.3, 3), (1, 1.0, 3), (1, 4.0, 2), (2, 0.5, 3), (3, 1.7, 2), (10, 0.4, 2), (10, 3.0, 2),
])  # fmt: skip
@pytest.mark.parametrize("q", [1.0, 0.2])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_compositions_against_all_outputs(levels, s, steps, q, relation):
    run = [oracle.power(couple, steps) for couple in oracle.discrete_gaussian(levels, s * levels, q, relation)]
    history = release(levels, s, steps, q, relation)
    for epsilon in (0.0, 0.7 / s, 2.0 / s + 1 / s**2):
        exact, found = oracle.exact_delta(epsilon, [run]), delta_of_history(history, epsilon)
        assert found.lower * (1 - 1e-9) - 1e-15 <= exact <= found.upper * (1 + 1e-9) + 1e-15
        assert found.upper - found.lower <= 1.1e-3 * exact + 1e-12
    found = epsilon_of_history(history, 1e-3)
    assert oracle.exact_delta(found.upper, [run]) <= 1e-3 * (1 + 1e-9)
    assert oracle.exact_delta(found.lower * (1 - 1e-6), [run]) >= 1e-3 * (1 - 1e-9) or found.lower == 0


def test_a_vector_of_integers_is_covered_whatever_its_direction():
    """Shifts of norm at most 5 on the plane are all below the upper end, and the longest is above the lower end."""
    found, deltas = delta_of_history(release(5, 1.0, coordinates=2), 0.8), {}
    for shift in ((5, 0), (3, 4), (2, 4), (1, 1)):
        couples = [oracle.discrete_gaussian(k, 5.0, 1.0, "add-remove")[0] for k in shift]
        p, q = (np.outer(*(couple[end] for couple in couples)) for end in (0, 1))
        deltas[shift] = float(np.maximum(p - math.exp(0.8) * q, 0).sum())
    assert found.lower <= deltas[5, 0] <= max(deltas.values()) <= found.upper < 1.2 * found.lower


@pytest.mark.parametrize("s", [1.0, 6.0])
def test_fixed_size_batches_by_continuous_noise_on_either_side(s):
    """Under add-remove they are Poisson batches whose record moves the sum by two clips."""
    exact = one_release(2 * 30, s / 2, 0.2, "add-remove", 0.5 / s)
    assert around(delta_of_history(release(30, s, q=0.2, sampling="fixed-size"), 0.5 / s), exact, 0.0, width=0.05)


def test_more_noise_may_cost_more_and_the_bracket_of_the_noise_is_as_it_says():
    """The output 2 has a loss above 8 with both noises, and less noise makes it rarer."""
    less, more = (delta_of_history(release(1, s, 10, 1e-3), 8.0) for s in (0.22, 0.3))
    assert less.upper < 1e-6 < more.lower


LEAST = r"^noise_multiplier must be at least "


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda: release(10, 0.2, sampling="fixed-size", q=0.2), LEAST + r"0\.\d+ with mechanism discrete-g"),
        (lambda: release(10, 0.2, coordinates=3), LEAST + r"0\.\d+ with mechanism discrete-g"),
        (lambda: release(1, 0.01), LEAST + r"0\.05 with mechanism discrete-gaussian:1"),
        (lambda: release(2**28, 1e-9, coordinates=2**20), LEAST + r"1\.\d+e-08 with mechanism discrete-gau"),
        (
            lambda: epsilon_of_history(release(10, 0.2), 0.0),
            r"^delta must be a finite number with 0 < delta < 1; got 0",
        ),
        *(
            (lambda name=name: MECHANISMS[name], r"^mechanism must be discrete-gaussian:M, M >= 1 integers to a clip; ")
            for name in ("discrete-gaussian:", "discrete-gaussian:0", "discrete-gaussian:2.5")
        ),
    ],
)
def test_noise_of_which_nothing_is_known_and_lattices_without_integers_are_refused(ask, named):
    with pytest.raises(ValueError, match=named) as caught:
        ask()
    assert "\n" not in str(caught.value)


def test_a_wide_law_has_the_gaussian_divergence():
    """That is a/(2 s^2) at order a, on a lattice on which a shift by a times the record is a shift by integers."""
    found = rdp_of_history(release(100, 4.0, coordinates=2), 3.0)
    assert found.lower < 3 / 32 < found.upper < 1.001 * found.lower


@pytest.mark.parametrize(("epsilon", "delta", "question"), [
    (1.5, 1e-4, {"steps": 3, "relation": "replace-one", "mechanism": "discrete-gaussian:1", "sampling": "full"}),
    (1.5, 1e-4, {"steps": 3, "relation": "replace-one", "mechanism": "discrete-gaussian:10", "sampling": "poisson",
                 "sample_rate": 0.1}),
    (1.5, 1e-4, {"steps": 3, "relation": "replace-one", "mechanism": "discrete-gaussian:100", "sampling": "fixed-size",
                 "sample_rate": 0.1}),
    (1.5, 1e-4, {"steps": 3, "relation": "replace-one", "mechanism": "discrete-gaussian:5", "sampling": "full",
                 "coordinates": 3}),
    (8.0, 1e-6, {"steps": 10, "relation": "add-remove", "mechanism": "discrete-gaussian:1", "sampling": "poisson",
                 "sample_rate": 1e-3}),
])  # fmt: skip
def test_noise_is_calibrated_on_its_lattice(epsilon, delta, question):
    found = noise_for(target_epsilon=epsilon, target_delta=delta, **question)
    assert delta_of_history(step_of(found.upper, **question), epsilon).upper <= delta
    short = delta_of_history(step_of(found.lower, **question), epsilon)
    assert short.upper > delta
    assert short.lower > 0.998 * delta


@pytest.mark.parametrize("epsilon", [1e3, 1e9])
def test_next_to_no_noise_on_a_fine_lattice_is_calibrated_too(epsilon):
    """Below 1/16 of a clip the lattice of runs counts, and asking for the cost of the noise gives the target."""
    question = {"steps": 1, "sampling": "full", "relation": "add-remove", "mechanism": "discrete-gaussian"}
    found = noise_for(target_epsilon=epsilon, target_delta=1e-5, **question)
    assert epsilon_of_history(step_of(found.upper, **question), 1e-5).upper <= epsilon * (1 + 1e-9)


def test_masses_are_below_and_above():
    """Under P the total is at most 1 from below and at least 1 from above, and the losses rise."""
    for s, q, relation, levels in itertools.product((LEAST_DISCRETE, 0.9), (1.0, 0.01), Relation, (1, 7)):
        for pair in shifted_pairs(IntegerNoise(s, levels), binomial_shifts(q, 1), replaced=relation == "replace-one"):
            assert pair.p.sum() <= 1
            assert pair.mass.sum() + pair.infinite == pytest.approx(1.0, abs=1e-12)
            assert np.all(np.diff(pair.loss) >= 0)
            assert np.all(pair.q > 0)
