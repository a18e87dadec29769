"""mu-GDP in closed form, against mpmath, dp-accounting, direct quadrature and brute-force composition."""

import itertools
import math
from functools import cache

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpzero_theory.privacy.gaussian import _log_delta, delta_from_gdp, epsilon_from_gdp, gdp_from_epsilon
from dpzero_theory.theory.noise import noise_std, paper_gdp
from tests.paper_oracle import exact_gdp, gaussian_delta

EPSILONS = [1e-6, 1e-4, 1e-2, 0.3, 1.0, 2.0, 10.0, 100.0, 1e3, 1e4]
DELTAS = [0.5, 0.3, 0.1, 1e-2, 1e-5, 1e-6, 1e-10, 1e-30, 1e-100, 1e-300]
RANDOM = np.random.default_rng(7).uniform((-6, -300), (4, -0.302), (150, 2))
ALL = [*itertools.product(EPSILONS, DELTAS), *((float(10**e), float(10**d)) for e, d in RANDOM)]


@cache
def roots():
    """Returns the exact mu of mu-GDP for each (epsilon, delta) of `ALL`."""
    return [exact_gdp(epsilon, delta) for epsilon, delta in ALL]


def delta_slope(epsilon, gdp):
    """Returns the derivative of delta(epsilon; mu) in epsilon, -e^epsilon Phi(-epsilon/mu - mu/2)."""
    eps, m = mpf(epsilon), mpf(gdp)
    return -mp.exp(eps) * mp.ncdf(-eps / m - m / 2)


def test_delta_and_both_inversions_agree_with_mpmath_to_1e_10():
    """Epsilon to 100 units in the last place of delta, where that moves it by more: at epsilon = 1e-6 and delta = 0.5
    one unit in the last place of the input moves the root by 2e-10 of itself."""
    found = gdp_from_epsilon([e for e, _ in ALL], [d for _, d in ALL])
    for (epsilon, delta), gdp, root in zip(ALL, found, roots(), strict=True):
        assert abs(mpf(float(gdp)) / root - 1) < 1e-10, (epsilon, delta)
        mu, exact = float(root), gaussian_delta(epsilon, float(root))
        assert abs(mpf(float(delta_from_gdp(epsilon, mu))) / exact - 1) < 1e-10, (epsilon, mu)
        eps = mpf(epsilon)
        for _ in range(8):
            eps -= (gaussian_delta(eps, mu) - mpf(delta)) / delta_slope(eps, mu)
        unit = mpf(delta) * mpf(2) ** -52 / abs(delta_slope(eps, mu))
        assert abs(mpf(float(epsilon_from_gdp(mu, delta))) - eps) < max(mpf("1e-10") * eps, 100 * unit), (
            epsilon,
            delta,
        )


def test_delta_close_to_one_at_tiny_mu_and_below_the_smallest_float():
    for epsilon, gdp in ((0.5, 3.0), (1e-3, 8.0), (2.0, 6.0), (5.0, 12.0), (100.0, 25.0)):
        complement = -math.expm1(_log_delta(np.array(epsilon), np.array(gdp)))
        assert abs(mpf(complement) / (1 - gaussian_delta(epsilon, gdp)) - 1) < 1e-10
    for epsilon, gdp in ((0.0, 1e-8), (1e-9, 1e-8), (1e-7, 1e-8), (1e-3, 1e-4)):
        assert abs(mpf(float(delta_from_gdp(epsilon, gdp))) / gaussian_delta(epsilon, gdp) - 1) < 1e-10
    assert float(delta_from_gdp(100.0, 1.0)) == 0.0


def test_calibration_errs_on_the_private_side_in_exact_arithmetic_and_wastes_nothing():
    """One part in 1e9 more mu, or less epsilon, already breaks the budget."""
    rng = np.random.default_rng(8)
    high = [(10 ** rng.uniform(-6, 4), rng.uniform(0.01, 0.999999)) for _ in range(50)]
    for epsilon, delta in ALL + high:
        gdp = float(gdp_from_epsilon(epsilon, delta))
        again = float(epsilon_from_gdp(gdp, delta))
        assert gaussian_delta(epsilon, gdp) <= mpf(delta), (epsilon, delta)
        assert gaussian_delta(again, gdp) <= mpf(delta), (epsilon, delta)
        assert again == pytest.approx(epsilon, rel=1e-6)
        if (epsilon, delta) not in high:
            assert gaussian_delta(epsilon, gdp * (1 + 1e-9)) > mpf(delta)
    for epsilon, delta in ((0.1, 1e-6), (2.0, 1e-5), (50.0, 1e-12)):
        gdp = float(gdp_from_epsilon(epsilon, delta))
        assert gaussian_delta(float(epsilon_from_gdp(gdp, delta)) * (1 - 1e-9), gdp) > mpf(delta)


def test_epsilon_is_zero_where_delta_alone_suffices():
    """delta(0; mu) = 2 Phi(mu/2) - 1 is the total variation distance."""
    variation = float(mp.erf(mpf("0.3") / (2 * mp.sqrt(2))))
    assert float(epsilon_from_gdp(0.3, variation * 1.001)) == 0.0
    assert float(epsilon_from_gdp(0.3, variation * 0.999)) > 0.0


@settings(max_examples=50)
@given(epsilon=st.floats(-6, 4), delta=st.floats(-250, -0.31), factor=st.floats(1.001, 3.0))
def test_monotone_in_every_argument(epsilon, delta, factor):
    epsilon, delta = 10.0**epsilon, 10.0**delta
    for gdp in (gdp_from_epsilon, paper_gdp):
        assert float(gdp(epsilon * factor, delta)) > float(gdp(epsilon, delta)) > float(gdp(epsilon, delta / factor))
    mu = float(gdp_from_epsilon(epsilon, delta))
    found = float(delta_from_gdp(epsilon, mu))
    assert float(delta_from_gdp(epsilon * factor, mu)) < found < float(delta_from_gdp(epsilon, mu * factor))
    mu = max(mu, 1e-3)
    assert float(epsilon_from_gdp(mu * factor, delta)) >= float(epsilon_from_gdp(mu, delta))
    assert float(epsilon_from_gdp(mu, delta / factor)) >= float(epsilon_from_gdp(mu, delta))


def test_vectorised_equals_scalar():
    epsilon, delta, gdp = np.array([[0.1], [2.0], [700.0]]), np.array([0.3, 1e-6, 1e-200]), np.array([1e-4, 0.5, 40.0])
    for function in (gdp_from_epsilon, paper_gdp):
        one = [[float(function(e, d)) for d in delta] for e in epsilon[:, 0]]
        np.testing.assert_allclose(function(epsilon, delta), one, rtol=1e-13)
    assert epsilon_from_gdp(gdp[:, None], delta).shape == delta_from_gdp(epsilon, gdp).shape == (3, 3)


@pytest.mark.parametrize("gdp", [0.05, 0.3, 1.0, 2.5, 7.0])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 6.0])
def test_it_agrees_with_dp_accounting(gdp, epsilon):
    theirs = privacy_loss_mechanism.GaussianPrivacyLoss(1 / gdp, sensitivity=1).get_delta_for_epsilon(epsilon)
    assert float(delta_from_gdp(epsilon, gdp)) == pytest.approx(theirs, rel=1e-7, abs=1e-15)
    for delta in (1e-2, 1e-5, 1e-10):
        spent = dp_accounting.get_epsilon_gaussian(1 / gdp, delta)
        assert float(epsilon_from_gdp(gdp, delta)) == pytest.approx(spent, rel=1e-6, abs=1e-9)
        sigma = dp_accounting.get_sigma_gaussian(epsilon, delta)
        assert 1 / float(gdp_from_epsilon(epsilon, delta)) == pytest.approx(sigma, rel=1e-8)


def hockey_stick(epsilon, mean, std, steps):
    """Returns delta(epsilon) of `steps` releases N(mean, std^2) against N(0, std^2), by convolving losses on a grid of
    outputs: the loss is affine in the output."""
    x = np.linspace(mean - 9 * std, mean + 9 * std, 4001)
    density = np.exp(-((x - mean) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi)) * (x[1] - x[0])
    loss = (x**2 - (x - mean) ** 2) / (2 * std**2)
    total = density
    for _ in range(steps - 1):
        total = np.convolve(total, density)
    losses = steps * loss[0] + (loss[1] - loss[0]) * np.arange(total.size)
    return float(np.sum(total * np.maximum(-np.expm1(np.minimum(epsilon - losses, 50.0)), 0.0)))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-3), (2.0, 1e-6), (8.0, 1e-5), (0.05, 0.2)])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize(("relation", "clips"), [("replace-one", 2), ("add-remove", 1)])
def test_composition_by_brute_force(epsilon, delta, steps, relation, clips):
    sigma = noise_std(float(gdp_from_epsilon(epsilon, delta)), steps, 1.3, 7, relation)
    assert hockey_stick(epsilon, clips * 1.3 / 7, sigma, steps) == pytest.approx(delta, rel=2e-4)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_sensitivity_is_the_largest_change_of_the_mean(n):
    """Over all extreme contributions; one record is replaced, or removed with n kept as the denominator."""
    clip, replaced, removed = 0.7, 0.0, 0.0
    for values in itertools.product((-clip, 0.0, clip), repeat=n):
        for i, new in itertools.product(range(n), (-clip, 0.0, clip)):
            replaced = max(replaced, abs(values[i] - new) / n)
            removed = max(removed, abs(values[i]) / n)
    assert noise_std(1, 1, clip, n, "replace-one") == pytest.approx(replaced, rel=1e-12)
    assert noise_std(1, 1, clip, n, "add-remove") == pytest.approx(removed, rel=1e-12)


@given(st.floats(1e-3, 50), st.floats(0.01, 1e9), st.floats(1e-6, 1e6), st.integers(1, 10**9), st.floats(1.01, 10))
def test_noise_scales_with_every_argument(gdp, steps, clip, n, factor):
    base = noise_std(gdp, steps, clip, n, "replace-one")
    for changed, share in (
        ((gdp * factor, steps, clip, n, "replace-one"), 1 / factor),
        ((gdp, steps * factor, clip, n, "replace-one"), math.sqrt(factor)),
        ((gdp, steps, clip * factor, n, "replace-one"), factor),
        ((gdp, steps, clip, 2 * n, "replace-one"), 0.5),
        ((gdp, steps, clip, n, "add-remove"), 0.5),
    ):
        assert noise_std(*changed) == pytest.approx(base * share, rel=1e-12)


def test_paper_gdp_is_the_lemmas_variance():
    """sigma = 2 Delta sqrt(2 T log(e + epsilon/delta))/epsilon in Lemma lm:composition, so mu = sqrt(T) Delta/sigma."""
    for epsilon, delta in ALL:
        sigma = 2 * mp.sqrt(2 * mp.log(mp.e + mpf(epsilon) / mpf(delta))) / mpf(epsilon)
        assert abs(mpf(float(paper_gdp(epsilon, delta))) * sigma - 1) < 1e-12
    assert round(float(gdp_from_epsilon(2, 1e-6) / paper_gdp(2, 1e-6)), 3) == 2.415


@pytest.mark.parametrize(
    ("delta", "known"), [(0.1, 91.3), (1e-6, 188.9), (1e-300, None), (0.5, None), (1 - 1e-9, None)]
)
def test_the_lemma_fails_from_one_point_on(delta, known):
    """The ratio of the lemma's mu to the exact one rises with epsilon and passes 1 once."""
    epsilon = np.logspace(-6, 6, 2000)
    ratio = paper_gdp(epsilon, delta) / gdp_from_epsilon(epsilon, delta)
    assert (np.diff(ratio) > -1e-9 * ratio[1:]).all()
    (crossing,) = np.nonzero(np.diff((ratio > 1).astype(int)))[0]
    if known:
        assert epsilon[crossing] <= known <= epsilon[crossing + 1]
        for share, holds in ((1 - 1e-3, True), (1 + 1e-3, False), (5, False)):
            at = known * share
            claimed = mpf(at) / mp.sqrt(8 * mp.log(mp.e + mpf(at) / mpf(delta)))
            assert (gaussian_delta(at, claimed) <= mpf(delta)) is holds


CALLS = {
    "delta_from_gdp": (delta_from_gdp, {"epsilon": 1.0, "gdp": 1.0}, {}),
    "gdp_from_epsilon": (gdp_from_epsilon, {"epsilon": 1.0, "delta": 0.1}, {"epsilon": (0.0,), "delta": (0.0, 1.0)}),
    "epsilon_from_gdp": (epsilon_from_gdp, {"gdp": 1.0, "delta": 0.1}, {"gdp": (0.0,), "delta": (1.0,)}),
    "paper_gdp": (paper_gdp, {"epsilon": 1.0, "delta": 0.1}, {"epsilon": (0.0,)}),
    "noise_std": (
        noise_std, {"gdp": 1.0, "steps": 1.0, "clip": 1.0, "n": 1, "relation": "replace-one"}, {"steps": (0.0,)}
    ),
}  # fmt: skip
BAD = (math.nan, math.inf, -math.inf, -1.0, "1", True, None, 1j, [math.nan, 1.0], 10**400)


@pytest.mark.parametrize("name", CALLS)
def test_bad_input_is_one_value_error_that_names_the_argument(name):
    call, good, open_ends = CALLS[name]
    for argument in good:
        for bad in (*BAD, *open_ends.get(argument, ())):
            with pytest.raises(ValueError, match=f"^{argument} must") as error:
                call(*(good | {argument: bad}).values())
            assert "\n" not in str(error.value)


def test_extreme_input_gives_finite_answers_without_warnings():
    rng = np.random.default_rng(9)
    epsilon, gdp = 10.0 ** rng.uniform(-307.9, 308.2, (2, 400))
    delta = np.where(rng.random(400) < 0.5, 10 ** rng.uniform(-320, -0.3, 400), 1 - 10 ** rng.uniform(-15, -1, 400))
    exact, spent, lemma = gdp_from_epsilon(epsilon, delta), epsilon_from_gdp(gdp, delta), paper_gdp(epsilon, delta)
    assert ((exact > 0) & (exact < math.inf) & (spent >= 0) & (spent < math.inf)).all()
    assert ((lemma > 0) & (lemma < math.inf)).all()
    assert ((delta_from_gdp(epsilon, gdp) >= 0) & (delta_from_gdp(epsilon, gdp) <= 1)).all()
