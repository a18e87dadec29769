"""Check the two-point estimator g_lambda = (f(x + lambda u) - f(x - lambda u))/(2 lambda) u: Lemma lm:zero-grad, its
proof, and the bounds on finite differences. f_lambda is f averaged over the ball of radius lambda sqrt(d)."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import sympy as sp
from numpy.polynomial.legendre import leggauss

from dpzero_theory.privacy.noise import SeededNoise
from paper_checks.checks.instances import Array, circle, on_sphere, random_instance
from paper_checks.registry import Finding, check
from tests.optim import reference


def _disc(points: int, rings: int) -> tuple[Array, Array]:
    """Return nodes, shape (m, 2), and weights, shape (m,) and sum 1, of a quadrature for the uniform law on the disc of
    radius sqrt(2) in R^2: Gauss-Legendre in the squared radius, with `rings` radii, and `points` equally spaced
    angles."""
    nodes, weights = leggauss(rings)
    radius = np.sqrt((nodes + 1) / 2)
    grid = (radius[:, None, None] * circle(points)).reshape(-1, 2)
    return grid, np.repeat(weights / 2 / points, points)


@check("zero-grad-two-evaluations")
def _(full: bool) -> Finding:
    steps, counts = 7, []
    problem = random_instance(np.random.default_rng(20), 3, 2, wave=True)
    for run in (reference.dpgd_0th, reference.dpzero):
        asked: list[Array] = []
        counted: Any = SimpleNamespace(n=3, d=2, losses=lambda x, seen=asked: (seen.append(x), problem.losses(x))[1])
        run(counted, np.zeros(2), steps=steps, step_size=0.1, smoothing=0.1, clip=1.0, noise_std=0.1,
            noise=SeededNoise(1), directions=circle(steps))  # fmt: skip
        counts.append(len(asked))
    numbers = {"losses of a sample in 7 steps": str(counts)}
    return Finding(all(count == 2 * steps for count in counts), numbers=numbers)


@check("zero-grad-unbiased")
def _(full: bool) -> Finding:
    rng, worst = np.random.default_rng(21), 0.0
    ball, weights = _disc(96, 24)
    u = circle(192)
    for _ in range(8):
        problem, x = random_instance(rng, 3, 2, wave=True), rng.standard_normal(2)
        for smoothing in (0.01, 0.2, 1.0):
            estimate = problem.differences(x, u, smoothing).mean(axis=-1)[:, None] * u
            smoothed = weights @ problem.gradient(x + smoothing * ball)
            worst = max(worst, float(np.max(np.abs(estimate.mean(axis=0) - smoothed))))
    return Finding(worst < 1e-10, numbers={"largest difference": worst})


@check("zero-grad-any-function")
def _(full: bool) -> Finding:
    def corner(f: Callable[[float], float]) -> float:
        """Return the right minus the left derivative at x = -1 of f averaged over [x - 1, x + 1]. The derivative is
        (f(x + 1) - f(x - 1))/2."""
        right, left = ((f(side * 1e-12) - f(-2 + side * 1e-12)) / 2 for side in (1, -1))
        return right - left

    step = corner(lambda x: float(x > 0))
    continuous = corner(abs)
    numbers: dict[str, float | str] = {
        "jump of the derivative, step": step,
        "absolute value": continuous,
    }
    return Finding(step == 0, repaired=step == 0.5 and abs(continuous) < 1e-9, numbers=numbers)


@check("zero-grad-scaling")
def _(full: bool) -> Finding:
    d, scaled = sp.symbols("d lambda_prime", positive=True)
    smoothing = scaled / sp.sqrt(d)
    factor = sp.sqrt(d) / smoothing
    flaxman = scaled / d
    return Finding(sp.simplify(factor - d / scaled) == 0 and sp.simplify(factor * flaxman - 1) == 0)


@check("zero-grad-symmetric")
def _(full: bool) -> Finding:
    rng, u, worst = np.random.default_rng(22), circle(192), 0.0
    for _ in range(8):
        problem, x = random_instance(rng, 3, 2, wave=True), rng.standard_normal(2)
        two = (problem.differences(x, u, 0.4).mean(axis=-1)[:, None] * u).mean(axis=0)
        one = (problem.loss(x + 0.4 * u)[:, None] * u / 0.4).mean(axis=0)
        worst = max(worst, float(np.max(np.abs(two - one))))
    return Finding(worst < 1e-10, numbers={"largest difference": worst})


@check("zero-grad-bias")
def _(full: bool) -> Finding:
    rng, worst = np.random.default_rng(23), 0.0
    ball, weights = _disc(96, 24)
    for _ in range(40):
        problem, x = random_instance(rng, 3, 2, wave=True), 2 * rng.standard_normal(2)
        for smoothing in (0.01, 0.2, 1.0, 2.0):
            bias = np.linalg.norm(problem.gradient(x) - weights @ problem.gradient(x + smoothing * ball))
            worst = max(worst, float(bias) / (problem.smoothness / 2 * smoothing * 2**1.5))
    ell, smoothing, d = sp.symbols("ell lambda d", positive=True)
    chain = 2 * sp.sqrt(d) / (2 * smoothing) * ell * smoothing**2 * d / 2
    holds = worst <= 1 and sp.simplify(chain - ell / 2 * smoothing * d ** sp.Rational(3, 2)) == 0
    return Finding(bool(holds), numbers={"largest bias/bound": worst})


@check("zero-grad-second-moment")
def _(full: bool) -> Finding:
    rng, worst, score = np.random.default_rng(24), 0.0, -math.inf
    for _ in range(30):
        problem, x = random_instance(rng, 3, 2, wave=True), 2 * rng.standard_normal(2)
        for smoothing in (0.01, 0.3, 1.5):
            norm = 2 * float(np.mean(problem.differences(x, circle(256), smoothing).mean(axis=-1) ** 2))
            gradient = float(np.sum(problem.gradient(x) ** 2))
            worst = max(worst, norm / (4 * gradient + problem.smoothness**2 * smoothing**2 * 4))
    d, size = 12, 200_000
    u = on_sphere(rng.standard_normal((size, d)))
    for _ in range(3):
        problem, x = random_instance(rng, 4, d, wave=True), rng.standard_normal(d)
        for smoothing in (0.01, 0.3):
            square = d * problem.differences(x, u, smoothing).mean(axis=-1) ** 2
            bound = 2 * d * np.sum(problem.gradient(x) ** 2) + problem.smoothness**2 * smoothing**2 * d**3 / 2
            score = max(score, float((square.mean() - bound) / (square.std() / math.sqrt(size))))
    return Finding(worst <= 1 and score < 5, numbers={"largest mean/bound, d = 2": worst, "largest z, d = 12": score})


@check("zero-grad-second-moment-chain")
def _(full: bool) -> Finding:
    d, ell, smoothing, g = sp.symbols("d ell lambda g", positive=True)
    scale = d / (4 * smoothing**2)
    first = scale * 2 * (2 * smoothing) ** 2 * g
    remainder = scale * 2 * 2 * 2 * (ell * smoothing**2 * d / 2) ** 2
    holds = sp.simplify(first - 2 * d * g) == 0
    holds &= sp.simplify(remainder - ell**2 / 2 * smoothing**2 * d**3) == 0
    return Finding(bool(holds))


@check("zero-grad-limit")
def _(full: bool) -> Finding:
    rng, ratios = np.random.default_rng(25), []
    problem, x = random_instance(rng, 3, 2, wave=True), rng.standard_normal(2)
    sizes = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001)
    for smoothing in sizes:
        norm = 2 * float(np.mean(problem.differences(x, circle(256), smoothing).mean(axis=-1) ** 2))
        ratios.append(norm / (2 * float(np.sum(problem.gradient(x) ** 2))))
    return Finding(abs(ratios[-1] - 1) < 1e-5, numbers={"E|g|^2/(d|grad f|^2) at lambda = 0.001": ratios[-1]})


@check("finite-difference-per-sample")
def _(full: bool) -> Finding:
    rng, worst = np.random.default_rng(26), -math.inf
    for _ in range(40):
        d = int(rng.integers(1, 9))
        problem = random_instance(rng, 5, d, wave=bool(rng.integers(2)))
        x = 3 * rng.standard_normal((1000, d))
        u = on_sphere(rng.standard_normal((1000, d)))
        smoothing = float(10 ** rng.uniform(-2, 0.5))
        slope = np.abs(np.einsum("knd,kd->kn", problem.gradients(x), u))
        own = problem.c * np.sum(problem.a**2, axis=1)
        excess = np.abs(problem.differences(x, u, smoothing)) - slope - own / 2 * smoothing * d
        worst = max(worst, float(excess.max()))
    width = 0.7
    kink = [s * width * abs(s * width) / 2 for s in (1, -1)]
    tight = (kink[0] - kink[1]) / (2 * width) / (width / 2)
    return Finding(worst < 1e-12, numbers={"largest excess": worst, "remainder/bound for x|x|/2 at 0, d = 1": tight})


@check("finite-difference-square")
def _(full: bool) -> Finding:
    rng, worst = np.random.default_rng(27), -math.inf
    for _ in range(40):
        d = int(rng.integers(1, 9))
        problem = random_instance(rng, 5, d, wave=bool(rng.integers(2)))
        x, u = 3 * rng.standard_normal((1000, d)), on_sphere(rng.standard_normal((1000, d)))
        smoothing = float(10 ** rng.uniform(-2, 0.5))
        square = problem.differences(x, u, smoothing).mean(axis=-1) ** 2
        bound = 2 * np.sum(problem.gradient(x) * u, axis=1) ** 2 + (problem.smoothness * smoothing * d) ** 2 / 2
        worst = max(worst, float((square - bound).max()))
    return Finding(worst < 1e-12, numbers={"largest excess": worst})
