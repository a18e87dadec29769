"""Tests of mu-GDP in closed form, against mpmath, dp-accounting, direct quadrature and brute-force composition."""

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from numpy.typing import NDArray
from scipy import integrate

from dpzero_theory.privacy.gaussian import (
    delta_from_gdp,
    epsilon_from_gdp,
    gdp_from_epsilon,
    log_delta_from_gdp,
    noise_std,
    paper_gdp,
    paper_lemma_limit,
    sensitivity,
)
from tests.paper_oracle import bisect, exact_gdp, gaussian_delta

EPSILONS = [1e-6, 1e-4, 1e-2, 0.3, 1.0, 2.0, 10.0, 100.0, 1e3, 1e4]
DELTAS = [0.5, 0.3, 0.1, 1e-2, 1e-5, 1e-6, 1e-10, 1e-30, 1e-100, 1e-300]
BUDGETS = list(itertools.product(EPSILONS, DELTAS))
RANDOM_BUDGETS = [
    (float(10**e), float(10**d)) for e, d in np.random.default_rng(7).uniform((-6, -300), (4, -0.302), (150, 2))
]
ALL = BUDGETS + RANDOM_BUDGETS


@cache
def roots() -> list[Any]:
    """Returns the exact mu of mu-GDP for each (epsilon, delta) of `ALL`."""
    return [exact_gdp(epsilon, delta) for epsilon, delta in ALL]


def delta_slope(epsilon: Any, gdp: Any) -> Any:
    """Returns the derivative of delta(epsilon; mu) in epsilon, -e^epsilon Phi(-b), derived by hand; mu is `gdp`.

    Here b = epsilon/mu + mu/2.
    """
    eps, m = mpf(epsilon), mpf(gdp)
    return -mp.exp(eps) * mp.ncdf(-eps / m - m / 2)


def test_delta_agrees_with_mpmath_to_1e_10() -> None:
    for (epsilon, _), root in zip(ALL, roots(), strict=True):
        gdp = float(root)
        exact = gaussian_delta(epsilon, gdp)
        assert abs(mpf(float(delta_from_gdp(epsilon, gdp))) / exact - 1) < 1e-10, (epsilon, gdp)
        assert abs(mpf(float(log_delta_from_gdp(epsilon, gdp))) / mp.log(exact) - 1) < 1e-10, (epsilon, gdp)


def test_delta_agrees_where_it_is_close_to_one_and_where_mu_is_tiny() -> None:
    """delta(epsilon; mu) is accurate where it is close to 1, and where mu is tiny.

    The relative accuracy is that of 1 - delta, and of delta for mu down to 1e-8.
    """
    for epsilon, gdp in ((0.5, 3.0), (1e-3, 8.0), (2.0, 6.0), (5.0, 12.0), (100.0, 25.0)):
        exact = gaussian_delta(epsilon, gdp)
        complement = -math.expm1(float(log_delta_from_gdp(epsilon, gdp)))
        assert abs(mpf(complement) / (1 - exact) - 1) < 1e-10
    for epsilon, gdp in ((0.0, 1e-8), (1e-9, 1e-8), (1e-7, 1e-8), (1e-3, 1e-4)):
        exact = gaussian_delta(epsilon, gdp)
        assert abs(mpf(float(delta_from_gdp(epsilon, gdp))) / exact - 1) < 1e-10


def test_log_delta_goes_below_the_smallest_float() -> None:
    exact = mp.log(gaussian_delta(100, 1))
    assert float(log_delta_from_gdp(100.0, 1.0)) == pytest.approx(float(exact), rel=1e-12)
    assert float(delta_from_gdp(100.0, 1.0)) == 0.0


def test_gdp_from_epsilon_agrees_with_the_mpmath_root_to_1e_10() -> None:
    found = gdp_from_epsilon([e for e, _ in ALL], [d for _, d in ALL])
    for (epsilon, delta), gdp, root in zip(ALL, found, roots(), strict=True):
        assert abs(mpf(float(gdp)) / root - 1) < 1e-10, (epsilon, delta)


def test_epsilon_from_gdp_agrees_with_the_mpmath_root() -> None:
    """epsilon_from_gdp agrees with the root found in mpmath.

    It does so to 1e-10 relative, or to 100 units in the last place of delta where that moves epsilon by more. At
    epsilon = 1e-6, delta = 0.5 one unit in the last place of the input delta moves the root by 2e-10 of itself.
    """
    for (epsilon, delta), root in zip(ALL, roots(), strict=True):
        gdp = float(root)
        exact = mpf(epsilon)
        for _ in range(8):
            exact -= (gaussian_delta(exact, gdp) - mpf(delta)) / delta_slope(exact, gdp)
        unit = mpf(delta) * mpf(2) ** -52 / abs(delta_slope(exact, gdp))
        found = mpf(float(epsilon_from_gdp(gdp, delta)))
        assert abs(found - exact) < max(mpf("1e-10") * exact, 100 * unit), (epsilon, delta)


def test_calibration_errs_on_the_private_side_in_exact_arithmetic() -> None:
    rng = np.random.default_rng(8)
    high = [(10 ** rng.uniform(-6, 4), rng.uniform(0.01, 0.999999)) for _ in range(50)]
    for epsilon, delta in ALL + high:
        gdp = float(gdp_from_epsilon(epsilon, delta))
        assert gaussian_delta(epsilon, gdp) <= mpf(delta), (epsilon, delta)
        again = float(epsilon_from_gdp(gdp, delta))
        assert gaussian_delta(again, gdp) <= mpf(delta), (epsilon, delta)
        assert again == pytest.approx(epsilon, rel=1e-6)


def test_calibration_wastes_nothing() -> None:
    """Calibration wastes nothing: one part in 1e9 more mu, or less epsilon, already breaks the budget."""
    for epsilon, delta in ALL:
        gdp = float(gdp_from_epsilon(epsilon, delta))
        assert gaussian_delta(epsilon, gdp * (1 + 1e-9)) > mpf(delta)
    for epsilon, delta in ((0.1, 1e-6), (2.0, 1e-5), (50.0, 1e-12)):
        gdp = float(gdp_from_epsilon(epsilon, delta))
        assert gaussian_delta(float(epsilon_from_gdp(gdp, delta)) * (1 - 1e-9), gdp) > mpf(delta)


def test_epsilon_is_zero_where_delta_alone_suffices() -> None:
    """epsilon is 0 where delta alone is enough: delta(0; mu) = 2 Phi(mu/2) - 1 is the total variation distance."""
    gdp = 0.3
    total_variation = float(mp.erf(mpf(gdp) / (2 * mp.sqrt(2))))
    assert float(epsilon_from_gdp(gdp, total_variation * 1.001)) == 0.0
    assert float(epsilon_from_gdp(gdp, total_variation * 0.999)) > 0.0


wide = st.floats(-6, 4).map(lambda x: 10.0**x)
deltas = st.floats(-250, -0.31).map(lambda x: 10.0**x)


@settings(max_examples=50)
@given(epsilon=wide, delta=deltas, factor=st.floats(1.001, 3.0))
def test_monotone_in_every_argument(epsilon: float, delta: float, factor: float) -> None:
    gdp = float(gdp_from_epsilon(epsilon, delta))
    assert float(gdp_from_epsilon(epsilon * factor, delta)) > gdp
    assert float(gdp_from_epsilon(epsilon, delta / factor)) < gdp
    assert float(log_delta_from_gdp(epsilon * factor, gdp)) < float(log_delta_from_gdp(epsilon, gdp))
    assert float(log_delta_from_gdp(epsilon, gdp * factor)) > float(log_delta_from_gdp(epsilon, gdp))
    gdp = max(gdp, 1e-3)
    assert float(epsilon_from_gdp(gdp * factor, delta)) >= float(epsilon_from_gdp(gdp, delta))
    assert float(epsilon_from_gdp(gdp, delta / factor)) >= float(epsilon_from_gdp(gdp, delta))
    assert float(paper_gdp(epsilon * factor, delta)) > float(paper_gdp(epsilon, delta))
    assert float(paper_gdp(epsilon, delta / factor)) < float(paper_gdp(epsilon, delta))


def test_vectorised_equals_scalar() -> None:
    epsilon = np.array([[0.1], [2.0], [700.0]])
    delta = np.array([0.3, 1e-6, 1e-200])
    both: list[Callable[..., NDArray[np.float64]]] = [gdp_from_epsilon, paper_gdp]
    for function in both:
        grid = function(epsilon, delta)
        assert grid.shape == (3, 3)
        for i, j in itertools.product(range(3), range(3)):
            assert grid[i, j] == pytest.approx(float(function(epsilon[i, 0], delta[j])), rel=1e-13)
    gdp = np.array([1e-4, 0.5, 40.0])
    assert epsilon_from_gdp(gdp[:, None], delta).shape == (3, 3)
    assert log_delta_from_gdp(epsilon, gdp).shape == (3, 3)


# The next tests use other libraries and direct integration.


@pytest.mark.parametrize("gdp", [0.05, 0.3, 1.0, 2.5, 7.0])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 6.0])
def test_delta_agrees_with_dp_accounting(gdp: float, epsilon: float) -> None:
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(1 / gdp, sensitivity=1)
    theirs = loss.get_delta_for_epsilon(epsilon)
    assert float(delta_from_gdp(epsilon, gdp)) == pytest.approx(theirs, rel=1e-7, abs=1e-15)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10])
@pytest.mark.parametrize("scale", [0.3, 0.8, 2.0, 5.0])
def test_inversions_agree_with_dp_accounting(delta: float, scale: float) -> None:
    assert float(epsilon_from_gdp(1 / scale, delta)) == pytest.approx(
        dp_accounting.get_epsilon_gaussian(scale, delta), rel=1e-6, abs=1e-9
    )
    epsilon = scale
    theirs = dp_accounting.get_sigma_gaussian(epsilon, delta)
    assert 1 / float(gdp_from_epsilon(epsilon, delta)) == pytest.approx(theirs, rel=1e-8)


def hockey_stick(epsilon: float, mean: float, std: float, steps: int) -> float:
    """Returns delta(epsilon) of `steps` releases N(mean, std^2) against N(0, std^2).

    The privacy loss is convolved on a grid. The loss log P(x)/Q(x) is affine in x, so that equal steps in x are equal
    steps in the loss.
    """
    x = np.linspace(mean - 9 * std, mean + 9 * std, 4001)
    width = float(x[1] - x[0])
    density = np.exp(-((x - mean) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi)) * width
    loss = (x**2 - (x - mean) ** 2) / (2 * std**2)
    total, start = density, float(loss[0])
    for _ in range(steps - 1):
        total = np.convolve(total, density)
        start += float(loss[0])
    losses = start + float(loss[1] - loss[0]) * np.arange(total.size)
    return float(np.sum(total * np.maximum(-np.expm1(np.minimum(epsilon - losses, 50.0)), 0.0)))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-3), (2.0, 1e-6), (8.0, 1e-5), (0.05, 0.2)])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_composition_by_brute_force(epsilon: float, delta: float, steps: int, relation: str) -> None:
    """Several Gaussian releases of the mean with the prescribed noise have the delta asked for, by brute force."""
    n, clip = 7, 1.3
    shift = {"replace-one": 2 * clip / n, "add-remove": clip / n}[relation]
    sigma = noise_std(float(gdp_from_epsilon(epsilon, delta)), steps, clip, n, relation)
    assert hockey_stick(epsilon, shift, sigma, steps) == pytest.approx(delta, rel=2e-4)


def test_two_releases_by_direct_integration() -> None:
    """Two releases agree with the double integral of (p(x) p(y) - e^epsilon q(x) q(y))_+.

    No law of the privacy loss is involved.
    """
    epsilon, delta = 1.0, 1e-3
    sigma = noise_std(float(gdp_from_epsilon(epsilon, delta)), 2, 1.0, 2, "replace-one")
    scale = 1 / (2 * math.pi * sigma**2)

    def integrand(y: float, x: float) -> float:
        p = scale * math.exp(-((x - 1) ** 2 + (y - 1) ** 2) / (2 * sigma**2))
        q = scale * math.exp(-(x**2 + y**2) / (2 * sigma**2))
        return p - math.exp(epsilon) * q

    def boundary(x: float) -> float:
        return epsilon * sigma**2 + 1 - x

    value, _ = integrate.dblquad(
        integrand, 1 - 10 * sigma, 1 + 10 * sigma, boundary, lambda x: boundary(x) + 40 * sigma
    )
    assert value == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_sensitivity_is_the_largest_change_of_the_mean(n: int) -> None:
    """The sensitivity is the largest change of the mean over the extreme contributions, by brute force.

    One record is replaced, or removed with n kept as the denominator.
    """
    clip = 0.7
    replaced = removed = 0.0
    for values in itertools.product((-clip, 0.0, clip), repeat=n):
        for i, new in itertools.product(range(n), (-clip, 0.0, clip)):
            other = [*values[:i], new, *values[i + 1 :]]
            replaced = max(replaced, abs(sum(values) - sum(other)) / n)
            removed = max(removed, abs(values[i]) / n)
    assert sensitivity(clip, n, "replace-one") == pytest.approx(replaced, rel=1e-12)
    assert sensitivity(clip, n, "add-remove") == pytest.approx(removed, rel=1e-12)


@given(
    gdp=st.floats(1e-3, 50),
    steps=st.floats(0.01, 1e9),
    clip=st.floats(1e-6, 1e6),
    n=st.integers(1, 10**9),
    factor=st.floats(1.01, 10),
)
def test_noise_is_monotone_in_every_argument(gdp: float, steps: float, clip: float, n: int, factor: float) -> None:
    base = noise_std(gdp, steps, clip, n, "replace-one")
    assert noise_std(gdp * factor, steps, clip, n, "replace-one") == pytest.approx(base / factor, rel=1e-12)
    assert noise_std(gdp, steps * factor, clip, n, "replace-one") == pytest.approx(base * math.sqrt(factor), rel=1e-12)
    assert noise_std(gdp, steps, clip * factor, n, "replace-one") == pytest.approx(base * factor, rel=1e-12)
    assert noise_std(gdp, steps, clip, 2 * n, "replace-one") == pytest.approx(base / 2, rel=1e-12)
    assert noise_std(gdp, steps, clip, n, "add-remove") == pytest.approx(base / 2, rel=1e-12)


# The next tests are of the paper's composition lemma.


def test_paper_gdp_is_the_lemmas_variance() -> None:
    """The function paper_gdp gives the variance of the paper's Lemma lm:composition.

    The lemma has sigma = 2 Delta sqrt(2 T log(e + epsilon/delta))/epsilon, so mu = sqrt(T) Delta/sigma.
    """
    for epsilon, delta in ALL:
        sigma = 2 * mp.sqrt(2 * mp.log(mp.e + mpf(epsilon) / mpf(delta))) / mpf(epsilon)
        assert abs(mpf(float(paper_gdp(epsilon, delta))) * sigma - 1) < 1e-12


def test_known_ratio_of_the_calibrations() -> None:
    assert round(float(gdp_from_epsilon(2, 1e-6) / paper_gdp(2, 1e-6)), 3) == 2.415


@pytest.mark.parametrize(("delta", "known"), [(0.1, 91.3), (1e-6, 188.9)])
def test_the_lemma_fails_above_its_limit(delta: float, known: float) -> None:
    limit = paper_lemma_limit(delta)
    assert round(limit, 1) == known
    for epsilon, holds in ((limit * (1 - 1e-6), True), (limit * (1 + 1e-6), False), (limit * 5, False)):
        claimed = mpf(epsilon) / mp.sqrt(8 * mp.log(mp.e + mpf(epsilon) / mpf(delta)))
        assert (gaussian_delta(epsilon, claimed) <= mpf(delta)) == holds


@pytest.mark.parametrize(
    "delta", [1e-300, 1e-100, 1e-30, 1e-12, 1e-6, 1e-3, 0.1, 0.5, 0.9, 0.99, 0.9999, 1 - 1e-6, 1 - 1e-9]
)
def test_the_lemma_fails_from_one_point_on(delta: float) -> None:
    """The paper's lemma fails from one epsilon on, and only once.

    The ratio of the lemma's mu to the exact one rises with epsilon, with one crossing of 1, at the stated limit.
    """
    epsilon = np.logspace(-6, 6, 2000)
    ratio = paper_gdp(epsilon, delta) / gdp_from_epsilon(epsilon, delta)
    assert (np.diff(ratio) > -1e-9 * ratio[1:]).all()
    crossing = np.nonzero(np.diff((ratio > 1).astype(int)))[0]
    assert crossing.size == 1
    assert epsilon[crossing[0]] <= paper_lemma_limit(delta) <= epsilon[crossing[0] + 1]


def test_the_limit_is_the_mpmath_root() -> None:
    def holds(epsilon: Any) -> bool:
        claimed = epsilon / mp.sqrt(8 * mp.log(mp.e + epsilon / mpf("1e-5")))
        return bool(gaussian_delta(epsilon, claimed) <= mpf("1e-5"))

    assert paper_lemma_limit(1e-5) == pytest.approx(float(bisect(holds, 1, 1000, digits=14)), rel=1e-9)


# The next tests are of bad input.

BAD: list[Any] = [math.nan, math.inf, -math.inf, -1.0, "1", True, None, 1j, [math.nan, 1.0], 10**400]


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_one_value_error_that_names_the_argument(bad: Any) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("epsilon", lambda: log_delta_from_gdp(bad, 1.0)),
        ("gdp", lambda: log_delta_from_gdp(1.0, bad)),
        ("epsilon", lambda: delta_from_gdp(bad, 1.0)),
        ("gdp", lambda: delta_from_gdp(1.0, bad)),
        ("epsilon", lambda: gdp_from_epsilon(bad, 0.1)),
        ("delta", lambda: gdp_from_epsilon(1.0, bad)),
        ("gdp", lambda: epsilon_from_gdp(bad, 0.1)),
        ("delta", lambda: epsilon_from_gdp(1.0, bad)),
        ("epsilon", lambda: paper_gdp(bad, 0.1)),
        ("delta", lambda: paper_gdp(1.0, bad)),
        ("delta", lambda: paper_lemma_limit(bad)),
        ("clip", lambda: sensitivity(bad, 1, "replace-one")),
        ("n", lambda: sensitivity(1.0, bad, "replace-one")),
        ("relation", lambda: sensitivity(1.0, 1, bad)),
        ("gdp", lambda: noise_std(bad, 1.0, 1.0, 1, "replace-one")),
        ("steps", lambda: noise_std(1.0, bad, 1.0, 1, "replace-one")),
    ]
    for name, call in calls:
        with pytest.raises(ValueError, match=f"^{name} must") as error:
            call()
        assert "\n" not in str(error.value)


def test_the_ends_of_the_ranges_are_open() -> None:
    for call in (
        lambda: gdp_from_epsilon(0.0, 0.1),
        lambda: gdp_from_epsilon(1.0, 0.0),
        lambda: gdp_from_epsilon(1.0, 1.0),
        lambda: epsilon_from_gdp(0.0, 0.1),
        lambda: epsilon_from_gdp(1.0, 1.0),
        lambda: paper_gdp(0.0, 0.1),
        lambda: paper_lemma_limit(1.0),
        lambda: noise_std(1.0, 0.0, 1.0, 1, "replace-one"),
        lambda: sensitivity(1.0, 0, "replace-one"),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()


def test_extreme_input_gives_finite_answers_without_warnings() -> None:
    rng = np.random.default_rng(9)
    epsilon, gdp = 10.0 ** rng.uniform(-307.9, 308.2, (2, 400))
    delta = np.where(rng.random(400) < 0.5, 10 ** rng.uniform(-320, -0.3, 400), 1 - 10 ** rng.uniform(-15, -1, 400))
    exact, spent, lemma = gdp_from_epsilon(epsilon, delta), epsilon_from_gdp(gdp, delta), paper_gdp(epsilon, delta)
    assert ((exact > 0) & (exact < math.inf)).all()
    assert ((spent >= 0) & (spent < math.inf)).all()
    assert ((lemma > 0) & (lemma < math.inf)).all()
    assert ((delta_from_gdp(epsilon, gdp) >= 0) & (delta_from_gdp(epsilon, gdp) <= 1)).all()
