"""Tests of the constants of the sharpened theorem: against mpmath, quadrature, and the bounds that they replace."""

import dataclasses
import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from benchmarks.problems.hardest import hardest
from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.sphere import DIRECTIONS, DirectionLaw
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.results import calculate
from dpzero_theory.theory.sharp.certificate import certificate, prescribe
from dpzero_theory.theory.sharp.constants import LAWS, constants
from dpzero_theory.theory.sharp.high_probability import certify_run
from dpzero_theory.theory.sharp.projection import Projection
from dpzero_theory.theory.sharp.signs import removed
from dpzero_theory.theory.sharp.smallest import constants_of

Array = NDArray[np.float64]


@pytest.mark.parametrize("d", [1, 2, 3, 10, 10**9])
def test_constants_at_the_ends(d: int) -> None:
    none = constants(np.array([math.sqrt(d), 2 * math.sqrt(d)]), d, 1.0)
    for name in ("bias", "cross", "excess"):
        np.testing.assert_allclose(getattr(none, name), 0, atol=1e-20)
    np.testing.assert_array_equal(none.kept, 1)
    all_clipped = constants(np.array([1e-9]), d, 1.0)
    assert all_clipped.quadratic[0] == pytest.approx(0, abs=1e-7)
    assert all_clipped.excess[0] == pytest.approx(all_clipped.spread, rel=1e-7)


def _directions(d: int, law: str) -> tuple[Array, Array]:
    """Returns points and weights that integrate polynomials of degree 7 in the direction u in R^d exactly.

    They are 4 Gauss-Hermite nodes for each axis; for `law` "rademacher" all sign vectors. On the sphere a homogeneous
    polynomial of degree 2 k has the Gaussian moment over E|z|^(2k)/d^k, see `_moment`.
    """
    if law == "rademacher":
        points = np.array(list(itertools.product((-1.0, 1.0), repeat=d)))
        return points, np.full(len(points), 2.0**-d)
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)
    points = np.array(list(itertools.product(nodes, repeat=d)))
    mass = np.array([math.prod(w) for w in itertools.product(weights / weights.sum(), repeat=d)])
    return points, mass


def _moment(values: Array, mass: Array, degree: int, d: int, law: str) -> float:
    radial = math.prod(d + 2 * k for k in range(degree // 2)) / d ** (degree // 2) if law == "sphere" else 1.0
    return float(mass @ values) / radial


@pytest.mark.parametrize("law", DIRECTIONS)
def test_the_root_mean_square_of_the_samples_traces_is_enough(law: str) -> None:
    rng = np.random.default_rng(0)
    d = 4
    points, mass = _directions(d, law)
    squares = points * points
    tightest = 0.0
    for case in range(200):
        sizes = rng.beta(0.4, 0.4, (6, d)) * (rng.random((6, 1)) < rng.uniform(0.2, 1))
        whole = np.maximum(sizes.mean(axis=0), rng.beta(0.4, 0.4, d) * (case % 2))
        if case == 0:
            sizes, whole = np.array([np.ones(d)] * 3 + [np.zeros(d)] * 3), np.ones(d)
        r = max(1.0, float(whole.sum()))
        rank = max(1.0, math.sqrt(float((sizes.sum(axis=1) ** 2).mean())))
        k = constants(1.0, d, r, law, rank)
        curved, forms = squares @ whole, squares @ sizes.T
        single = np.mean([_moment(forms[:, i] ** 2 * curved, mass, 6, d, law) for i in range(6)])
        mean = forms.mean(axis=1)
        # For a rank above d/2 the other form of the constant smooth_first, nu d, may be the smaller one.
        if rank < d / 2:
            assert _moment(mean**2, mass, 4, d, law) <= k.smooth_first**2 * (1 + 1e-12)
        assert _moment(mean**2 * curved, mass, 6, d, law) <= k.smooth_second**2 * (1 + 1e-12)
        assert single <= k.smooth_second**2 * (1 + 1e-12)
        tightest = max(tightest, single / k.smooth_second**2)
    assert tightest > 0.4
    # Half of the samples have the identity as their Hessian, and half have nothing.
    mean_only = constants(1.0, d, float(d), law, d / 2)
    exact = _moment(squares.sum(axis=1) ** 3, mass, 6, d, law) / 2
    assert exact > mean_only.smooth_second**2 or law == "rademacher"


@pytest.mark.parametrize("k", [1, 7, 64])
def test_the_sphere_tends_to_the_gaussian_for_every_number_of_directions(k: int) -> None:
    c = np.array([0.3, 1.0, 1.3])
    laws = [constants(c, 10**11, 7.0, kind, 9.0, k) for kind in ("sphere", "gaussian", "frame")]
    for field in dataclasses.fields(laws[0]):
        values = [getattr(law, field.name) for law in laws]
        np.testing.assert_allclose(values[0], values[1], rtol=1e-7)
        np.testing.assert_allclose(values[2], values[1], rtol=1e-7)


def test_a_whole_frame_sees_the_norm_itself() -> None:
    """With K = d directions in an orthogonal frame, the norm of the projected gradient is sqrt(d) times the gradient's.

    So a step along the gradient g is (alpha/d) d g = alpha g, and a clip c >= 1 clips nothing.
    """
    k = constants(np.array([1.0, 5.0]), 6, 3.0, "frame", directions_per_step=6)
    for name in ("bias", "cross", "excess"):
        np.testing.assert_array_equal(getattr(k, name), 0)
    np.testing.assert_allclose(k.kept, 1)
    np.testing.assert_allclose([k.spread, *k.quadratic], 1)


def test_a_frame_has_at_most_d_directions() -> None:
    with pytest.raises(
        PreconditionError, match=r"^directions_per_step must be at most d for a frame; got 7 with d = 6$"
    ):
        constants(1.0, 6, 2.0, "frame", directions_per_step=7)


def test_a_law_without_constants_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    law = DirectionLaw(name="dice", sample=DIRECTIONS["gaussian"].sample, table=lambda: np.array([-1.0, 1.0]))
    monkeypatch.setitem(DIRECTIONS, "dice", law)
    with pytest.raises(PreconditionError, match=r"covers the directions sphere, .*; it has none for dice$"):
        constants(1.0, 10, 2.0, "dice")
    with pytest.raises(
        ValueError, match=r"^direction must be one of sphere, gaussian, rademacher, dice, low-rank, frame; got 'ball'"
    ):
        constants(1.0, 10, 2.0, "ball")


POWERS = ((1, 1), (1, 3), (2, 0), (2, 2), (3, 0), (4, 0))


def _exact(k: int, d: float, c: float, i: int, j: int) -> float:
    """Returns E[(v - c)_+^i v^j] for K = `k` directions in R^d, in 60 digits.

    It follows by the binomial formula from incomplete beta functions, or incomplete gamma functions for infinite d.
    """
    with mpmath.workdps(60):
        first, second, scale = mpmath.mpf(k) / 2, mpmath.mpf(d - k) / 2, mpmath.mpf(d) / k

        def tail(power: int) -> mpmath.mpf:
            if math.isinf(d):
                above = mpmath.gammainc(first + mpmath.mpf(power) / 2, first * mpmath.mpf(c) ** 2)
                return above / mpmath.gamma(first) / first ** (mpmath.mpf(power) / 2)
            above = mpmath.betainc(first + mpmath.mpf(power) / 2, second, mpmath.mpf(c) ** 2 / scale, 1)
            return scale ** (mpmath.mpf(power) / 2) * above / mpmath.beta(first, second)

        return float(sum(math.comb(i, m) * (-mpmath.mpf(c)) ** (i - m) * tail(j + m) for m in range(i + 1)))


@pytest.mark.parametrize(
    ("k", "d"), [(1, 2), (1, 40), (2, 3), (3, 50), (7, 8), (32, 2000), (100, 30_000), (1, math.inf), (64, math.inf)]
)
def test_moments_to_eleven_digits(k: int, d: float) -> None:
    law = Projection(k, d)
    for c in (0.3, 0.95, 1.1):
        if c < law.largest:
            for power, found in zip(POWERS, law.excess(np.array([c]), *POWERS), strict=True):
                assert float(found[0]) == pytest.approx(_exact(k, d, c, *power), rel=1e-11)
            for power, found in zip(((0, 1), (0, 2)), law.tails(np.array([c])), strict=True):
                assert float(found[0]) == pytest.approx(_exact(k, d, c, *power), rel=1e-11)


@pytest.mark.parametrize("k", [1, 2, 30, 4096, 2**16])
def test_gaussian_moments(k: int) -> None:
    law = Projection(k, math.inf)
    second, fourth = law.excess(np.zeros(1), (0, 2), (0, 4))
    assert float(second[0]) == pytest.approx(1, rel=1e-12)
    assert float(fourth[0]) == pytest.approx((k + 2) / k, rel=1e-12)
    ratio = math.exp(math.lgamma((k + 1) / 2) - math.lgamma(k / 2)) * math.sqrt(2 / k)
    assert law.mean == pytest.approx(ratio, rel=1e-9)


def test_beyond_the_largest_value_and_far_in_the_tail() -> None:
    assert Projection(3, 12).largest == 2
    for moment in Projection(3, 12).excess(np.array([2.0, 3.0, 1e200]), *POWERS):
        np.testing.assert_array_equal(moment, 0)
    assert 0 < Projection(64, math.inf).excess(np.array([4.0]), (2, 0))[0][0] < 1e-150


def test_the_constant_law() -> None:
    law = Projection(5, 5)
    assert law.mean == 1
    assert law.excess(np.array([0.25]), (2, 0))[0][0] == 0.75**2
    assert [float(x[0]) for x in law.tails(np.array([0.9]))] == [1, 1]
    assert [float(x[0]) for x in law.tails(np.array([1.0]))] == [0, 0]


GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)


@pytest.mark.parametrize("k", [1, 2, 7, 64, 1024, 65536])
def test_never_above_the_bounds_that_they_replace(k: int) -> None:
    """Those are tau by the cubic bound on a grid of h, omega by Cauchy-Schwarz, and the product for the cross term.

    The grid of h is another one now, so that the bias may be larger by 0.3% where it is tau.
    """
    c = np.unique(np.concatenate([np.geomspace(0.02, 15, 60), 1 + np.linspace(-3, 14, 60) / math.sqrt(k)]))
    c = c[c > 0.02]
    law, r = Projection(k, math.inf), 8.178
    h = np.minimum(np.geomspace(0.02, 3.0, 24)[:, None] / math.sqrt(k), c)
    tau = np.sqrt(np.minimum((4 / 27 * law.excess(c - h, (3, 0))[0] / h).min(axis=0), 1))
    omega = (law.excess(c, (4, 0))[0] * (r * (r + 2) / k + (1 - 1 / k) * r)) ** 0.25
    found = constants(c, 2000, r, "rademacher", directions_per_step=k)
    assert np.all(found.bias <= 1.003 * tau)
    assert np.all(found.excess <= omega * (1 + 1e-12))
    assert np.all(found.cross <= found.spread * omega * (1 + 1e-12))
    beyond = c > 1 + 1 / math.sqrt(k)
    assert np.all(found.bias[beyond & (tau > 1e-140)] < 0.8 * tau[beyond & (tau > 1e-140)])
    assert np.all(found.excess[beyond & (omega > 1e-70)] < 0.75 * omega[beyond & (omega > 1e-70)])


@pytest.mark.parametrize("k", [1, 3, 32, 4096])
def test_finite_falling_and_above_the_gaussian_moments(k: int) -> None:
    """A Gaussian direction is the limit of signs along spread-out vectors, so no bound can be below its moments."""
    c = np.unique(np.concatenate([np.geomspace(1e-3, 30, 400), 1 + np.linspace(-3, 14, 400) / math.sqrt(k)]))
    c = c[c > 0]
    lost, law = removed(c, Projection(k, math.inf)), Projection(k, math.inf)
    inner, second, along = law.excess(c, (1, 1), (2, 0), (2, 2))
    for bound, exact, most in (
        (lost.inner, inner, 1.7),
        (lost.second, second, 1.5),
        (lost.along, along, 1.5),
        (lost.across, second / k, math.inf),
    ):
        assert np.all(np.isfinite(bound))
        assert np.all(bound >= 0)
        assert np.all(np.diff(bound)[c[:-1] > 0.1] <= 0)
        assert np.all(np.diff(bound) <= 0.002 * bound[:-1])  # few h and theta are tried
        assert np.all(bound >= exact * (1 - 1e-9))
        counted = (exact > 1e-250) & (c > 1)
        assert np.all(bound[counted] <= most * exact[counted])


MOMENTS_PAPER: dict[str, Any] = {"n": 10_000, "d": 2000, "r": 8.178}
STEP: dict[str, Any] = {"step_size": 0.003, "steps": 20_000, "clip": 3.0, "smoothing": 1e-6, "noise_std": 0.2}


def test_exactly_one_bound_on_gradients_is_taken() -> None:
    for both in (
        {"lipschitz": 1.0, "gradient_moment": (2.0, 1.0)},
        {"lipschitz": 1.0, "mean_excess": (1.0, 0.1)},
        {"gradient_moment": (2.0, 1.0), "mean_excess": (1.0, 0.1)},
    ):
        with pytest.raises(ValueError, match=r"^only one of lipschitz, gradient_moment and mean_excess"):
            Problem(**MOMENTS_PAPER, **both)
    for name, value in (
        ("lipschitz", math.inf),
        *(("gradient_moment", bad) for bad in ((2, math.nan), (1.9, 1), (65, 1), (2, 0), (2, "1"), (2,), 2.0)),
        *(("mean_excess", bad) for bad in ((0, 1), (1, -1e-9), (math.inf, 1), [1, 1])),
    ):
        with pytest.raises(ValueError, match=f"{name} must be"):
            Problem(**MOMENTS_PAPER, **{name: value})
    assert Problem(**MOMENTS_PAPER).lipschitz == 1
    assert Problem(**MOMENTS_PAPER, gradient_moment=(2, 9.0)).gradient_unit == 3


def suprema(d: int, r: float, law: str, k: int, power: float) -> tuple[float, float]:
    """The suprema of x^(m-1) beta(x) and x^(m-1) omega(x), by the bias and the excess at a clip of 4 units."""
    found = constants_of(Problem(n=1, d=d, r=r, gradient_moment=(power, 1.0)), 4.0, law, k)
    return float(found.bias) * 4 ** (power - 1), float(found.excess) * 4 ** (power - 1)


@pytest.mark.parametrize(("law", "d"), [("gaussian", 10**6), ("sphere", 3), ("sphere", 40), ("frame", 3)])
@pytest.mark.parametrize("power", [2.0, 7.5])
def test_the_suprema_are_those_of_quadrature(law: str, d: int, power: float) -> None:
    r = 2.5

    def expectation(function: Any, low: float) -> float:
        if law == "gaussian":
            scale = math.sqrt(2 / math.pi)
            return float(quad(lambda v: function(v) * scale * math.exp(-v * v / 2), low, low + 15)[0])
        norm = quad(lambda a: math.sin(a) ** (d - 2), 0, math.pi / 2)[0]
        end = math.acos(min(low / math.sqrt(d), 1.0))
        return float(quad(lambda a: function(math.sqrt(d) * math.cos(a)) * math.sin(a) ** (d - 2) / norm, 0, end)[0])

    def weight(v: float) -> float:
        return v * v + (r - 1) * (1.0 if law == "gaussian" else (d - v * v) / (d - 1))

    def beta(x: float) -> float:
        return expectation(lambda v: (v - x) * v, x)

    def omega(x: float) -> float:
        return math.sqrt(expectation(lambda v: (v - x) ** 2 * weight(v), x))

    end = 6.0 if law == "gaussian" else math.sqrt(d) - 1e-6
    for function, found in zip((beta, omega), suprema(d, r, law, 1, power), strict=True):

        def lost(x: float, function: Any = function) -> float:
            return float(-(x ** (power - 1)) * function(x))

        start = min(np.linspace(0.01, end, 60), key=lost)
        best = minimize_scalar(lost, bounds=(max(start - 0.2, 1e-3), min(start + 0.2, end)))
        assert 1 - 1e-8 <= found / -float(best.fun) <= 1 + (power - 1) / 3000


def test_the_suprema_of_many_directions_are_a_quarter_and_27_of_256() -> None:
    for law in LAWS:
        second, fourth = (suprema(10**9, 8.178, law, 2**16, power) for power in (2.0, 4.0))
        assert second[0] == pytest.approx(0.25, rel=2e-3)
        assert fourth[0] == pytest.approx(27 / 256, rel=3e-3)


@pytest.mark.parametrize("law", LAWS)
def test_no_excess_is_a_lipschitz_constant(law: str) -> None:
    for rate in (1.0, 0.1):
        at = {**STEP, "direction": law, "sample_rate": rate}
        bounded = certificate(Problem(**MOMENTS_PAPER, lipschitz=2.0), **at)
        assert certificate(Problem(**MOMENTS_PAPER, mean_excess=(2.0, 0.0)), **at) == bounded
        more = [certificate(Problem(**MOMENTS_PAPER, mean_excess=(2.0, x)), **at).bound for x in (0.0, 1e-4, 1e-2, 0.1)]
        assert sorted(set(more)) == more


@pytest.mark.parametrize("law", LAWS)
def test_a_lipschitz_constant_says_more_than_its_moments(law: str) -> None:
    at = {**STEP, "direction": law}
    bounds = [
        certificate(Problem(**MOMENTS_PAPER, **given), **at).bound
        for given in ({"lipschitz": 1.0}, {"gradient_moment": (4, 1.0)}, {"gradient_moment": (2, 1.0)})
    ]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("given", [{"gradient_moment": (2, 1.0)}, {"mean_excess": (1.0, 0.01)}])
def test_certificates_have_the_unit_of_the_gradient_squared(given: dict[str, tuple[float, float]]) -> None:
    factor = 7.0
    (name, (first, second)), *_ = given.items()
    scaled = (first, second * factor**2) if name == "gradient_moment" else (first * factor, second * factor)
    small = prescribe(Problem(**MOMENTS_PAPER, **given), GDP, max_steps=5000)  # type: ignore[arg-type]
    large = prescribe(Problem(**MOMENTS_PAPER, gap=factor**2, **{name: scaled}), GDP, max_steps=5000)  # type: ignore[arg-type]
    assert large.bound == pytest.approx(factor**2 * small.bound, rel=1e-9)
    assert large.clip == pytest.approx(factor * small.clip, rel=1e-9)
    assert large.trivial_bound == pytest.approx(factor**2 * small.trivial_bound, rel=1e-12)
    assert any("no Lipschitz constant" in note for note in small.notes)


def test_results_that_need_a_lipschitz_constant_are_refused() -> None:
    problem = Problem(**MOMENTS_PAPER, gradient_moment=(2, 1.0), pl=0.1)
    answers, unmet = calculate(problem, 2, 1e-6, calibrations=["exact"], max_steps=1000)
    assert [answer.result.id for answer in answers] == ["theorem-3-sharp"]
    answers, unmet = calculate(problem, 2, 1e-6, calibrations=["exact"], results=["theorem-3", "corollary-1"])
    assert not answers
    assert [item.reason.startswith("lipschitz must be given") for item in unmet] == [True, True]
    with pytest.raises(PreconditionError, match=r"^lipschitz must be given"):
        certify_run(problem, **STEP, failure=0.05)
    with pytest.raises(PreconditionError, match=r"^lipschitz must be given"):
        hardest(problem, step_size=0.003, steps=100, clip=1.0, noise_std=0.1)
