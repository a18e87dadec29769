"""Tests of the theorem for directions of low rank: moments by enumeration of all signs, and certificates."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.problems.poisson import prescribe_poisson
from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import certificate, prescribe
from dpzero_theory.theory.sharp.constants import constants, known_direction, law_of
from dpzero_theory.theory.sharp.high_probability import certify_run, product_moments, step_moments
from dpzero_theory.theory.sharp.last_iterate import prescribe_last_iterate
from dpzero_theory.theory.sharp.products import Products

Array = NDArray[np.float64]
GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)

STEP: dict[str, Any] = {"step_size": 1e-3, "steps": 10, "clip": 1.0, "smoothing": 1e-6, "noise_std": 0.1}


def _all(m: int, n: int, rank: int) -> Array:
    """Returns all directions of this rank for a matrix of shape (m, n), one in a row."""
    left, right = (
        np.array(list(itertools.product((-1.0, 1.0), repeat=rank * size))).reshape(-1, rank, size) for size in (m, n)
    )
    return np.einsum("ajm,bjn->abmn", left, right).reshape(-1, m * n) / math.sqrt(rank)


@pytest.mark.parametrize(("m", "n", "rank"), [(3, 4, 1), (8, 6, 1), (2, 3, 2), (2, 2, 3)])
def test_moments_of_all_signs(m: int, n: int, rank: int) -> None:
    u = _all(m, n, rank)
    d = m * n
    np.testing.assert_allclose(u.T @ u / len(u), np.eye(d), atol=1e-12)
    squares = np.sum(u * u, axis=1)
    assert np.mean(squares) == pytest.approx(d)
    assert np.var(squares) == pytest.approx(2 * (1 - 1 / rank) * d)
    assert squares.max() <= rank * d * (1 + 1e-12)
    # a flat gradient of rank one: E[(u'g)^4] = 3 + (2/rank)(...) tends to 3 + 6/rank, which is the bound at r = 1
    slopes = u @ np.full(d, 1 / math.sqrt(d))
    fourth = (3 - 2 / m) * (3 - 2 / n)  # of one product; a sum of several has 1/rank of its excess over 3
    assert np.mean(slopes**4) == pytest.approx(3 + (fourth - 3) / rank)
    assert np.mean(slopes**4) <= constants(1.0, d, 1, f"low-rank:{rank}").spread ** 2
    assert constants(1.0, d, 1, f"low-rank:{rank}").spread ** 2 == pytest.approx(3 + 6 / rank)
    for p in (6, 8):
        most = math.prod(range(1, p, 2)) * math.prod(rank + 2 * j for j in range(p // 2)) / rank ** (p // 2)
        assert np.mean(slopes**p) <= most


def test_the_worst_curvature_is_three_times_that_of_signs_not_nine() -> None:
    """u'Hu = (a'x)^2 |P b|^2 for H = xx' x P: along flat x and y with P y = y the fourth moment is near 3 (r + 2)."""
    m, n, r = 64, 17, 5
    b = np.array(list(itertools.product((-1.0, 1.0), repeat=n)))
    y = np.full(n, 1 / math.sqrt(n))
    axes = np.linalg.qr(np.column_stack([y, np.random.default_rng(0).standard_normal((n, r - 1))]))[0]
    right = np.mean((b @ y) ** 2 * np.sum((b @ axes) ** 2, axis=1))
    exact = (3 - 2 / m) * right
    bound = constants(1.0, m * n, r, "low-rank").spread ** 2
    assert bound == pytest.approx(3 * r + 6.5)
    assert 0.85 * bound < exact < bound
    # the factor of one matrix with r_A = 1 and r_B = r
    assert constants(1.0, m * n, r, "low-rank", layer_rank=1 + r).spread ** 2 == pytest.approx(3 * (r + 2))


def test_the_factor_of_the_matrices_is_wrong_for_a_vector() -> None:
    """A flat bias of 16 weights with all of the curvature: (1 + 2/r_A)(1 + 2/r_B) of r_A = r_B = 100 is too small."""
    u = np.array(list(itertools.product((-1.0, 1.0), repeat=16)))
    moment = np.mean((u @ np.full(16, 0.25)) ** 4)
    assert moment == pytest.approx(3 - 2 / 16)
    assert moment > (1 + 2 / 100) ** 2
    assert moment <= constants(1.0, 16, 1, "low-rank", layer_rank=200.0).spread ** 2


def test_rank_one_gradients_with_a_little_else_exceed_twice_the_trace() -> None:
    """2.25 cannot be 2: the part C(g) of the fourth moment has top eigenvalues whose sum is up to r + 2.25."""
    many, size = 5, 7
    p = np.array([1 - 1 / (4 * many), *np.full(many, 1 / (4 * many**2)), 0.0])
    root = np.sqrt(p)
    values = [3 * x for x in p]
    for i, j in itertools.combinations(range(size), 2):
        values += [p[i] + p[j] + root[i] * root[j], p[i] + p[j] - root[i] * root[j]]
    above = sum(max(value - 1, 0) for value in values)
    assert 2.1 < above < 2.25


@pytest.mark.parametrize("law", ["low-rank", "low-rank:4", "low-rank:64"])
@pytest.mark.parametrize("k", [1, 16])
def test_between_random_signs_and_their_products(law: str, k: int) -> None:
    """The certificate rises from that of random signs, as the rank falls; a bound on the layers' ranks lowers it."""
    bounds = [
        prescribe(PAPER, GDP, direction=name, directions_per_step=k, max_steps=1000).bound
        for name in ("rademacher", law, "low-rank")
    ]
    assert bounds == sorted(bounds)
    if law == "low-rank:64":
        assert bounds[1] == pytest.approx(bounds[0], rel=0.05)
    layered = Problem(n=10_000, d=2000, r=8.178, layer_rank=4.0)
    assert prescribe(layered, GDP, direction=law, directions_per_step=k, max_steps=1000).bound < bounds[1]
    assert prescribe(layered, GDP, directions_per_step=k, max_steps=1000) == prescribe(
        PAPER, GDP, directions_per_step=k, max_steps=1000
    )


@pytest.mark.parametrize("difference", ["central", "forward", "exact"])
def test_every_difference_rule_and_algorithm(difference: str) -> None:
    p = prescribe(PAPER, GDP, direction="low-rank", difference=difference, max_steps=1000)
    assert (p.smoothing == 0) == (difference == "exact")
    assert certificate(PAPER, **p.run).bound == p.bound
    assert p.direction == "low-rank"
    vectors = prescribe(PAPER, GDP, direction="low-rank:1", algorithm="dpgd-0th", max_steps=1000)
    assert vectors.clip > p.clip
    with pytest.raises(PreconditionError, match=r"\|\|u\|\| = sqrt\(d\) always; it does not hold for low-rank:2"):
        prescribe(PAPER, GDP, direction="low-rank:2", algorithm="dpgd-0th", max_steps=1000)


def test_the_other_certificates() -> None:
    pl = Problem(n=10_000, d=2000, r=8.178, pl=0.1)
    found = [prescribe_last_iterate(pl, GDP, direction=law, max_steps=1000).bound for law in ("rademacher", "low-rank")]
    assert found == sorted(found)
    batches = [
        prescribe_poisson(
            PAPER, GDP, lambda rate, steps, _: 2 * rate * math.sqrt(steps) / GDP, max_evaluations=10**7, direction=law
        ).bound
        for law in ("sphere", "low-rank")
    ]
    assert batches == sorted(batches)


@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize(("m", "n", "rank"), [(3, 4, 1), (5, 4, 1), (2, 3, 2)])
def test_variances_of_all_signs_are_below_those_of_one_run(m: int, n: int, rank: int, factored: bool) -> None:
    """Random and extreme curvature within I and gradients; factored curvature is a product."""
    u, d, rng = _all(m, n, rank), m * n, np.random.default_rng(m * n + rank)
    nearest = 0.0
    for turn in range(60):
        left, right = (rng.standard_normal((size, 1 + turn % size)) for size in (m, n))
        if turn % 4 == 0:
            left[:, 0], right[:, 0] = 1, 1
        if not factored:
            h = rng.standard_normal((d, 1 + turn % d))
            if turn % 3 == 0:  # flat along the rows
                h = np.kron(np.ones((m, 1)), rng.standard_normal((n, 1 + turn % n)))
            h = h @ h.T
        else:
            h = np.kron(left @ left.T, right @ right.T)
        h /= np.linalg.eigvalsh(h)[-1]
        factors = [np.trace(x @ x.T) / np.linalg.eigvalsh(x @ x.T)[-1] for x in (left, right)]
        r = float(np.trace(h))
        problem = Problem(n=10, d=d, r=max(r, 1.0), layer_rank=max(2.0, sum(factors)) if factored else None)
        step = step_moments(problem, **STEP, direction=f"low-rank:{rank}", failure=0.1)
        variance = float(np.var(np.einsum("ai,ij,aj->a", u, h, u)))
        assert variance <= step.trace_variance * (1 + 1e-9)
        nearest = max(nearest, variance / step.trace_variance)
        a = np.kron(left[:, 0], right[:, 0])
        assert np.var((u @ a) ** 2) <= step.projection_variance * float(a @ a) ** 2 * (1 + 1e-9)
    assert nearest > 0.3


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("k", [1, 4])
def test_directions_are_seldom_longer_than_one_run_allows(rank: int, k: int) -> None:
    """The moments of sums of products are the exact ones, and the sums' quantiles are below the bound from them."""
    second, third = 1 + 2 / rank, (1 + 2 / rank) * (1 + 4 / rank)
    moments = np.exp(product_moments(law_of(f"low-rank:{rank}").moment, k))
    three = (15 * third + 9 * (k - 1) * second + (k - 1) * (k - 2)) / k**2
    np.testing.assert_allclose(moments[:3], [1, (3 * second + k - 1) / k, three], rtol=1e-12)
    rng, size, chance = np.random.default_rng(rank + k), 400_000, 1e-3
    squares = (rng.chisquare(rank, (size, k)) / rank * rng.standard_normal((size, k)) ** 2).mean(axis=1)
    at = {**STEP, "steps": 1, "directions_per_step": k, "direction": f"low-rank:{rank}"}
    step = step_moments(Problem(n=10, d=50, r=5.0), **at, failure=2 * chance * 100)
    assert step.overlong == pytest.approx(2 * chance)
    assert step.trace == pytest.approx(5 * step.projection**2)
    assert 1.2 < step.projection**2 / np.quantile(squares, 1 - chance) < 2
    shorter = step_moments(Problem(n=10, d=50, r=5.0), **{**at, "directions_per_step": 4 * k}, failure=0.2)
    assert shorter.projection < step.projection


@pytest.mark.parametrize(("law", "most"), [("low-rank", 1.4), ("low-rank:4", 1.25), ("low-rank:64", 1.15)])
def test_one_run_beside_the_mean_over_runs(law: str, most: float) -> None:
    p = prescribe(PAPER, GDP, max_steps=155_200, direction=law)
    runs = [certify_run(PAPER, failure=failure, **p.run) for failure in (0.5, 0.05, 1e-6)]
    assert p.bound < runs[0].bound < runs[1].bound < runs[2].bound < 1
    assert runs[1].bound < most * p.bound
    layered = Problem(n=10_000, d=2000, r=8.178, layer_rank=4.0)
    assert certify_run(layered, failure=0.05, **p.run).bound < runs[1].bound
    assert certify_run(PAPER, failure=0.05, **{**p.run, "direction": "rademacher"}).bound < runs[1].bound


@pytest.mark.parametrize("name", ["low-rank:0", "low-rank:-1", "low-rank:1.5", "low-rank:x", "low-rank:65", "rank:2"])
def test_bad_names_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ValueError, match=r"direction"):
        known_direction(name)
    with pytest.raises(ValueError, match=r"direction"):
        constants(1.0, 10, 2.0, name)


def test_names() -> None:
    assert [known_direction(name) for name in ("low-rank", "low-rank:1", "low-rank:4")] == [
        "low-rank",
        "low-rank",
        "low-rank:4",
    ]


@pytest.mark.parametrize("rank", [1, 3])
def test_the_law_of_projections_has_its_moments(rank: int) -> None:
    """At c = 0 the moments are those of products of chi variables; for many directions v tends to 1."""
    second = 1 + 2 / rank
    for k in (1, 3, 200, 1000):
        fourth = float(Products(k, rank).excess(np.zeros(1), (4, 0))[0][0])
        assert fourth == pytest.approx(1 + (3 * second - 1) / k, rel=2e-3)
        assert fourth >= 1 + (3 * second - 1) / k - 1e-9
    half = math.sqrt(2 / math.pi) * 2  # E|Z|^3
    root = (2 / rank) ** 1.5 * math.gamma(rank / 2 + 1.5) / math.gamma(rank / 2)  # E X^(3/2)
    assert float(Products(1, rank).excess(np.zeros(1), (3, 0))[0][0]) == pytest.approx(half * root, rel=1e-3)
    apart = 1 - float(Products(2**16, rank).excess(np.array([0.0]), (3, 0))[0][0])
    assert abs(apart) < 1e-3
