"""Check the paper's remarks that its results extend to other directions and estimators (eq.zo, tab:compare), and its
remarks on what clipping needs and costs."""

import math

import numpy as np
from scipy import stats

from paper_checks.checks.instances import Instance, circle, outer_moment, random_instance
from paper_checks.registry import Finding, check


@check("extension-gaussian")
def _(full: bool) -> Finding:
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    weights = weights / weights.sum()
    rng, worst = np.random.default_rng(85), 0.0
    for _ in range(10):
        a, h = rng.standard_normal(2), rng.standard_normal((2, 2))
        grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1)
        value = float(weights @ ((grid @ a) ** 2 * np.einsum("abi,ij,abj->ab", grid, h, grid)) @ weights)
        stated = 2 * float(a @ h @ a) + float(a @ a) * float(np.trace(h))
        worst = max(worst, abs(value - stated))
    tail = max(2 * float(stats.norm.sf(c)) / (2 * math.exp(-c * c / 2)) for c in np.linspace(0, 30, 200))
    return Finding(worst < 1e-10 and tail <= 1, numbers={"largest difference": worst, "largest tail/bound": tail})


@check("extension-any-u")
def _(full: bool) -> Finding:
    d = 50
    u = math.sqrt(d) * np.concatenate([np.eye(d), -np.eye(d)])
    isotropic = np.allclose(u.T @ u / (2 * d), np.eye(d))
    value = float(np.mean(u[:, 0] ** 2 * u[:, 0] ** 2))
    allowed = float(outer_moment(np.eye(d)[0])[0, 0])
    return Finding(
        isotropic and value <= 3, repaired=allowed <= 3, numbers={"E[(u'a)^2 u'Hu], d = 50": value, "sphere": allowed}
    )


@check("extension-one-point")
def _(full: bool) -> Finding:
    problem = Instance(np.array([[1.0, 0.2]]), np.array([0.3]), np.array([1.0]), wave=True)
    x, u = np.array([1.0, -0.4]), circle(256)
    sizes = (1.0, 0.1, 0.01, 0.001)
    norms = [2 * float(np.mean(problem.loss(x + s * u) ** 2)) / s**2 for s in sizes]
    bound = 2 * 2 * float(np.sum(problem.gradient(x) ** 2)) + problem.smoothness**2 * 4
    largest = max(float(np.max(np.abs(problem.loss(x + s * u)))) / s * math.sqrt(2) for s in sizes)
    numbers = {"E|g|^2 at lambda = 0.001": norms[-1], "two-point bound at lambda = 1": bound, "largest |g|": largest}
    return Finding(max(norms) <= bound, numbers=numbers)


@check("extension-directional")
def _(full: bool) -> Finding:
    rng, worst = np.random.default_rng(86), 0.0
    u = circle(64)
    for _ in range(10):
        problem, x = random_instance(rng, 3, 2, wave=True), rng.standard_normal(2)
        g = problem.gradient(x)
        estimate = (u @ g)[:, None] * u
        worst = max(worst, float(np.max(np.abs(estimate.mean(axis=0) - g))))
        worst = max(worst, abs(float(np.mean(np.sum(estimate**2, axis=1))) - 2 * float(g @ g)))
    return Finding(worst < 1e-12, numbers={"largest difference": worst})


@check("clipping-scalar")
def _(full: bool) -> Finding:
    rng = np.random.default_rng(87)
    s, u = 5 * rng.standard_normal(10_000), rng.standard_normal((10_000, 7))
    g = s[:, None] * u
    limit = 1.3 * np.linalg.norm(u, axis=1)
    vector = g * np.minimum(1, limit / np.linalg.norm(g, axis=1))[:, None]
    return Finding(bool(np.allclose(vector, np.clip(s, -1.3, 1.3)[:, None] * u, rtol=1e-12, atol=1e-14)))


@check("clipping-dpgd0th-costly")
def _(full: bool) -> Finding:
    rng, n, d, clip = np.random.default_rng(88), 50, 400, 3.0
    s, u = rng.standard_normal(n), rng.standard_normal(d)
    rows = s[:, None] * u
    rows *= np.minimum(1, clip / np.linalg.norm(rows, axis=1))[:, None]
    length = float(np.linalg.norm(u))
    scalars = np.clip(s, -clip / length, clip / length).mean() * u
    difference = float(np.max(np.abs(rows.mean(axis=0) - scalars)))
    return Finding(
        difference > 1e-12, numbers={"largest difference": difference, "numbers clipped": f"{n} instead of {n * d}"}
    )
