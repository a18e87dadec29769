"""Check the one-step inequalities in the proofs of Theorems 1 to 3 (app:d-dependent, app:d-free) on random problems,
at the prescribed parameters and away from them.

In R^2 every expectation over u and z is a quadrature (evenly spaced angles, Gauss-Hermite nodes), so both sides are
numbers without sampling error. With `full` more random problems are tried.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from paper_checks.checks.instances import Array, Instance, circle, random_instance
from paper_checks.registry import Finding, check

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(12)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


class Sides(NamedTuple):
    """The two sides of an inequality left <= right."""

    left: float
    right: float


def _largest(cases: Iterable[Mapping[str, Sides]]) -> dict[str, float]:
    """Return the largest (left - right)/|right| of each inequality, by its name."""
    worst: dict[str, float] = {}
    for case in cases:
        for name, (left, right) in case.items():
            worst[name] = max(worst.get(name, -math.inf), (left - right) / max(abs(right), 1e-9))
    return worst


def _report(worst: float) -> Finding:
    """Return the finding for an inequality over many cases, which holds up to rounding. worst: as in `_largest`."""
    return Finding(worst <= 1e-9, numbers={"largest (left - right)/|right|": worst})


def _algorithm_1(problem: Instance, x: Array, alpha: float, lam: float, sigma: float) -> dict[str, Sides]:
    d, u = 2, circle(128)
    h, g = problem.curvature, problem.gradient(x)
    ell = float(np.linalg.norm(h, 2))
    trace = float(np.trace(h))
    r = trace / ell
    f0, g2 = float(problem.loss(x)), float(g @ g)
    scalar = problem.differences(x, u, lam).mean(axis=-1)
    estimate = scalar[:, None] * u
    grid = np.stack(np.meshgrid(_NODES, _NODES, indexing="ij"), axis=-1).reshape(-1, 2) * sigma
    weight = np.outer(_WEIGHTS, _WEIGHTS).reshape(-1)
    after = problem.loss(x - alpha * (estimate[:, None, :] + grid[None]))
    next_loss = float((after @ weight).mean())
    quadratic = float(np.mean(np.einsum("ki,ij,kj->k", estimate, h, estimate)))
    inner = float(np.mean(estimate @ g))
    norm2 = float(np.mean(np.sum(estimate**2, axis=1)))
    return {
        "descent": Sides(next_loss, f0 - alpha * inner + ell / 2 * alpha**2 * (norm2 + d * sigma**2)),
        "onestep1": Sides(
            next_loss,
            f0
            - alpha / 2 * (1 - 2 * d * ell * alpha) * g2
            + ell**2 / 8 * alpha * (1 + 2 * ell * alpha) * lam**2 * d**3
            + ell / 2 * alpha**2 * d * sigma**2,
        ),
        "smooth-rank": Sides(next_loss, f0 - alpha * inner + alpha**2 / 2 * (quadratic + sigma**2 * trace)),
        "estimator-curvature": Sides(quadratic, 2 * ell * (r + 2) * g2 + ell**3 / 2 * lam**2 * d**2 * r),
        "onestep2": Sides(
            next_loss,
            f0
            - alpha / 2 * (1 - 2 * (r + 2) * ell * alpha) * g2
            + ell**2 * alpha * lam**2 * d**2 * (d + 2 * r * ell * alpha) / 8
            + ell * alpha**2 * r * sigma**2 / 2,
        ),
    }


@cache
def _first_algorithm(count: int) -> dict[str, float]:
    """Return `_largest` of the inequalities about Algorithm 1, over `count` random problems (half of them nonconvex)
    and several step sizes, smoothings and noises."""
    rng, cases = np.random.default_rng(41), []
    for k in range(count):
        problem, x = random_instance(rng, 4, 2, wave=k % 2 == 0), 1.5 * rng.standard_normal(2)
        ell, r = float(np.linalg.norm(problem.curvature, 2)), problem.r
        for alpha in (1 / (8 * ell), 1 / (4 * ell * (r + 2)), 0.1 / ell, 2 / ell):
            for lam, sigma in ((0.01, 0.0), (0.5, 0.7), (0.05, 0.2)):
                cases.append(_algorithm_1(problem, x, alpha, lam, sigma))
    return _largest(cases)


for _id, _name in (
    ("eq-descent-1", "descent"),
    ("eq-onestep1", "onestep1"),
    ("eq-smooth-rank", "smooth-rank"),
    ("eq-estimator-curvature", "estimator-curvature"),
    ("eq-onestep2", "onestep2"),
):
    check(_id)(lambda full, _name=_name: _report(_first_algorithm(40 if full else 8)[_name]))  # type: ignore[misc]


def _clip(values: Array, clip: float) -> Array:
    return np.clip(values, -clip, clip)


def _state(problem: Instance, x0: Array, alpha: float, lam: float, clip: float, sigma: float) -> tuple[Array, Array]:
    """Return points, shape (m, 2), and their weights, shape (m,) and sum 1, which together stand for the law of the
    iterate x_1 of Algorithm 2 after one step from x0: its direction is one of 48 angles, its noise one of the
    Gauss-Hermite nodes. alpha is the step size, lam the smoothing, clip the bound on a sample's scalar, and sigma the
    noise's standard deviation. `problem` has the losses."""
    u = circle(48)
    mean = _clip(problem.differences(x0, u, lam), clip).mean(axis=-1)
    moves = (mean[:, None] + sigma * _NODES[None, :])[..., None] * u[:, None, :]
    return (x0 - alpha * moves).reshape(-1, 2), np.tile(_WEIGHTS / u.shape[0], u.shape[0])


def _algorithm_2(
    problem: Instance, points: Array, weights: Array, alpha: float, lam: float, clip: float, sigma: float
) -> dict[str, Sides]:
    """Return the two sides of every displayed inequality between eq:main-smooth and eq:onestep3, in the proof of
    Theorem 3, by name. `problem` has the losses, and clip is the bound on a scalar.

    The iterate x_t has the law given by `points` and `weights`. Expectations are over x_t, the direction u_t and the
    noise z_t jointly, given the event Q_t that no sample is clipped at step t. The result is empty if Q_t is almost
    certain or almost impossible. alpha is the step size, lam the smoothing, and sigma the noise's standard deviation.
    """
    d, u = 2, circle(180)
    h = problem.curvature
    ell, trace, lipschitz = float(np.linalg.norm(h, 2)), float(np.trace(h)), problem.lipschitz
    r = trace / ell
    difference = problem.differences(points[:, None, :], u, lam)
    kept = np.all(np.abs(difference) <= clip, axis=-1)
    joint = weights[:, None] / u.shape[0]
    probability = float(np.sum(joint * kept))
    if probability < 1e-3 or probability > 1 - 1e-9:
        return {}
    clipped, plain = _clip(difference, clip).mean(axis=-1), difference.mean(axis=-1)
    gradient, loss = problem.gradient(points), problem.loss(points)
    curvature = np.einsum("ki,ij,kj->k", u, h, u)
    slope = gradient @ u.T

    def given(values: Array) -> float:
        """Return the mean of `values` given that no sample is clipped."""
        return float(np.sum(joint * kept * values)) / probability

    def mean(values: Array) -> float:
        return float(np.sum(joint * values))

    next_loss = np.zeros_like(plain)
    for z, w in zip(_NODES * sigma, _WEIGHTS, strict=True):
        next_loss += w * problem.loss(points[:, None, :] - alpha * (clipped + z)[..., None] * u)
    before, after = given(np.broadcast_to(loss[:, None], plain.shape)), given(next_loss)
    g2 = float(weights @ np.sum(gradient**2, axis=1))
    inner, quadratic = given(clipped * slope), given(clipped**2 * curvature)
    unconditional = mean(plain**2 * curvature)
    missed = 1 - probability
    return {
        "main-smooth": Sides(
            after,
            before
            - alpha * inner
            + alpha**2 / 2 * (quadratic + sigma**2 * given(np.broadcast_to(curvature, plain.shape))),
        ),
        "total-prob": Sides(given(plain**2 * curvature) * probability, unconditional),
        "grad-quad": Sides(quadratic, (2 * ell * (r + 2) * g2 + ell**3 * lam**2 * d**2 * r / 2) / probability),
        "noise-quad": Sides(given(np.broadcast_to(curvature, plain.shape)), r * ell / probability),
        "inner-product": Sides((g2 / 2 - ell**2 * lam**2 * d**3 / 8 - lipschitz**2 * d * missed) / probability, inner),
        "onestep3": Sides(
            after,
            before
            - alpha / 2 * (1 - 2 * (r + 2) * ell * alpha) * g2 / probability
            + ell * alpha**2 * r * sigma**2 / (2 * probability)
            + ell**2 * alpha * (d + 2 * ell * alpha * r) * lam**2 * d**2 / (8 * probability)
            + alpha * lipschitz**2 * d * missed / probability,
        ),
    }


@cache
def _second_algorithm(count: int) -> dict[str, float]:
    rng, cases = np.random.default_rng(42), []
    for k in range(count):
        problem, x0 = random_instance(rng, 4, 2, wave=k % 2 == 0), 1.5 * rng.standard_normal(2)
        ell = float(np.linalg.norm(problem.curvature, 2))
        for alpha in (1 / (4 * ell * (problem.r + 2)), 1 / ell):
            for lam, share, sigma in ((0.05, 0.6, 0.3), (0.6, 0.95, 0.05), (0.2, 1.2, 1.0)):
                clip = share * problem.lipschitz
                laws = (x0[None], np.ones(1)), _state(problem, x0, alpha, lam, clip, sigma)
                cases += [_algorithm_2(problem, *law, alpha, lam, clip, sigma) for law in laws]
    return _largest(cases)


for _name in ("main-smooth", "total-prob", "grad-quad", "noise-quad", "inner-product", "onestep3"):
    check(f"eq-{_name}")(lambda full, _name=_name: _report(_second_algorithm(16 if full else 2)[_name]))  # type: ignore[misc]
