"""Steps 2 to 4 of proof.md: the tail moments of a direction, and what clipping does to two moments."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import beta as beta_law

from dpzero_theory import sphere
from dpzero_theory.theory.sharp import constants
from paper_checks.outcome import DRAW, SEED, STANDARD_ERRORS, Outcome, within

__all__ = [
    "clipped_inner_product",
    "clipped_second_moment",
    "lost_second_moment",
    "sampled_second_moment",
    "seminorm",
    "sign_moments",
    "tail_moments",
    "tail_moments_sampled",
]

Array = NDArray[np.float64]


def tail_moments() -> Outcome:
    """beta, eta, first, tau^2, the weighted second and the third moment against quadrature of the Beta law."""
    worst = 0.0
    for d in (2, 3, 7, 50, 2000):
        for c in (0.05, 0.6, 1.2, 2.0, 3.5):
            if c >= math.sqrt(d):
                continue
            beta, eta, first = (float(x) for x in constants.sphere_moments(c, d))
            second, weighted = _second_moments(c, d)
            third = 3 * eta + c * first * (d - c * c) / (d + 1)
            for found, excess, power, rest in (
                (beta, 1, 1, 0),
                (eta, 1, 1, 1),
                (first, 0, 1, 0),
                (second, 2, 0, 0),
                (weighted, 2, 2, 0),
                (third, 1, 3, 0),
            ):
                worst = max(worst, abs(found / _tail_integral(excess, power, rest, c, d) - 1))
    return within(worst, 1e-8, "tail moments of u_1, d = 2 to 2000: largest relative error against quadrature")


def _second_moments(c: float, d: int) -> tuple[float, float]:
    """(tau^2, E[(|u_1| - c)_+^2 u_1^2]) as the library uses them: excess^2 is d tau^2 at r = d, the other at r = 1."""
    ends = [float(constants.constants(np.array(c), d, r).excess) ** 2 for r in (d, 1)]
    return ends[0] / d, ends[1]


def _tail_integral(excess: int, power: int, rest: int, c: float, d: int) -> float:
    """E[(v - c)^excess v^power ((d - v^2)/(d - 1))^rest 1{v > c}], v = |u_1| = sqrt(d) cos(phi), over the angle."""
    log_norm = math.lgamma(d / 2) - math.lgamma((d - 1) / 2) - 0.5 * math.log(math.pi) + math.log(2)

    def integrand(phi: float) -> float:
        v = math.sqrt(d) * math.cos(phi)
        density = math.exp(log_norm + (d - 2) * math.log(math.sin(phi)))
        return (v - c) ** excess * v**power * ((d - v * v) / (d - 1)) ** rest * density

    end = math.acos(c / math.sqrt(d))
    start = max(0.0, end - 60 / math.sqrt(d)) + 1e-300
    return float(quad(integrand, start, end, epsabs=0, epsrel=1e-11, limit=400)[0])


def tail_moments_sampled() -> Outcome:
    """The same law by sampling directions: beta and tau^2 within the allowed standard errors."""
    rng = np.random.default_rng(SEED)
    worst = 0.0
    for d, c in ((1, 0.5), (2, 0.9), (5, 1.3), (40, 1.1), (3000, 1.5)):
        v = np.concatenate([np.abs(sphere.sample_sphere(rng, 2000, d)[:, 0]) for _ in range(20)])
        if d > 1:
            v = np.concatenate([v, np.sqrt(d * beta_law.rvs(0.5, (d - 1) / 2, size=400_000, random_state=rng))])
        over = np.maximum(v - c, 0)
        second, weighted = _second_moments(c, d)
        beta, _, first = constants.sphere_moments(c, d)
        for sample, value in (
            (over * v, beta),
            (over**2, second),
            (over**2 * v * v, weighted),
            (v * (v > c), first),
        ):
            error = sample.std() / math.sqrt(len(sample)) + 1e-12
            worst = max(worst, abs(sample.mean() - float(value)) / error)
    return within(worst, STANDARD_ERRORS, "tail moments against sampled directions, d = 1 to 3000: largest z")


@dataclass(frozen=True)
class Configuration:
    """Sample gradients (n, d) with weights, the diagonal of H (ell = 1), and the clip; L = max norm."""

    gradients: Array
    weights: Array
    curvature: Array
    clip: float
    name: str

    @property
    def d(self) -> int:
        return int(self.gradients.shape[1])

    @property
    def r(self) -> float:
        return float(np.sum(self.curvature) / np.max(self.curvature))


def _configurations() -> Iterator[Configuration]:
    """Random gradients, then the extremal ones of each inequality."""
    rng = np.random.default_rng(SEED + 1)
    for d in (1, 2, 5, 30, 400):
        for power in (0.0, 1.0, 8.0):
            curvature = np.arange(1, d + 1, dtype=float) ** -power
            for shift, clip in ((0.0, 0.3), (1.0, 0.8), (3.0, 1.5)):
                g = rng.standard_normal((6, d)) + shift * rng.standard_normal(d)
                g /= np.linalg.norm(g, axis=1).max()
                yield Configuration(g, np.full(6, 1 / 6), curvature, clip, f"random d={d}")
    for d, r, clip in ((1, 1.0, 0.6), (3, 1.5, 1.0), (30, 4.0, 1.6), (30, 30.0, 2.2), (400, 10.0, 1.3)):
        curvature = np.full(d, (r - 1) / max(d - 1, 1))
        curvature[0] = 1.0
        e = np.zeros(d)
        e[0] = 1.0
        yield Configuration(e[None, :], np.ones(1), curvature, clip, f"aligned d={d}")
        yield Configuration(e[None, :], np.ones(1), curvature, 60.0 * math.sqrt(d), f"unclipped d={d}")
        for y in (0.35, 0.7):
            yield Configuration(np.stack([e, -y * e]), np.array([0.6, 0.4]), curvature, clip, f"opposed d={d}")


@cache
def _sampled(kind: str) -> list[tuple[Configuration, float, dict[str, tuple[float, float]]]]:
    """For each configuration, G and the (mean, standard error) of the four moments of the clipped mean."""
    rng = np.random.default_rng(SEED + 2)
    found = []
    for case in _configurations():
        u = DRAW[kind](rng, 40_000, case.d)
        s = u @ case.gradients.T
        clipped = np.clip(s, -case.clip, case.clip)
        full, m = s @ case.weights, clipped @ case.weights
        curved = (u * u) @ case.curvature
        samples = {
            "inner": m * full,
            "second": m * m * curved,
            "lost": (full - m) ** 2 * curved,
            "one": (clipped**2 @ case.weights) * curved,
        }
        summary = {
            name: (float(x.mean()), float(x.std()) / math.sqrt(len(x)) + 1e-9 * (1 + abs(float(x.mean()))))
            for name, x in samples.items()
        }
        found.append((case, float(np.linalg.norm(case.weights @ case.gradients)), summary))
    return found


Bound = Callable[[constants.Constants, float], Array]


def _violation(part: str, bound: Bound, sign: int, kind: str) -> float:
    """Largest number of standard errors by which a moment violates its bound (sign +1: an upper bound)."""
    worst = -math.inf
    for case, norm, summary in _sampled(kind):
        mean, error = summary[part]
        k = constants.constants(np.array(case.clip), case.d, case.r, kind)
        worst = max(worst, sign * (mean - float(bound(k, norm))) / error)
    return worst


def clipped_inner_product(kind: str = "sphere") -> Outcome:
    """Step 3: E[m u'g] >= kept G^2 - bias G for the clipped mean m."""
    z = _violation("inner", lambda k, g: k.kept * g * g - k.bias * g, -1, kind)
    return within(z, STANDARD_ERRORS, f"inner product with the clipped mean, {kind}: largest violation (z)")


def clipped_second_moment(kind: str = "sphere") -> Outcome:
    """Step 4: E[m^2 u'Hu] <= quadratic G^2 + 2 cross G + excess^2, and at most (spread G + excess)^2."""
    z = _violation("second", lambda k, g: k.quadratic * g * g + 2 * k.cross * g + k.excess**2, 1, kind)
    w = _violation("second", lambda k, g: (k.spread * g + k.excess) ** 2, 1, kind)
    text = f"second moment of the clipped mean, {kind}: largest violation (z)"
    return within(max(z, w), STANDARD_ERRORS, text)


def lost_second_moment(kind: str = "sphere") -> Outcome:
    """Step 4: E[b^2 u'Hu] <= excess^2 (omega^2), with equality for equal gradients along the top eigenvector."""
    z = _violation("lost", lambda k, g: k.excess**2, 1, kind)
    return within(z, STANDARD_ERRORS, f"second moment of what clipping removes, {kind}: largest violation (z)")


def sampled_second_moment(kind: str = "sphere") -> Outcome:
    """Poisson step: the mean over samples of E[clip(u'g_i)^2 u'Hu] is at most sampled^2."""
    z = _violation("one", lambda k, g: k.sampled**2, 1, kind)
    return within(z, STANDARD_ERRORS, f"second moment of one clipped sample, {kind}: largest violation (z)")


def seminorm() -> Outcome:
    """Step 4: X -> E[X^2 u'Hu]^(1/2) obeys the triangle inequality and scales, on sampled directions."""
    rng = np.random.default_rng(SEED + 3)
    worst = 0.0
    for d in (1, 2, 10, 200):
        u = sphere.sample_sphere(rng, 2000, d)
        root = np.sqrt((u * u) @ (np.arange(1, d + 1, dtype=float) ** -1))
        for _ in range(50):
            x, y = (np.clip(u @ rng.standard_normal(d), -rng.random(), rng.random()) for _ in range(2))
            norms = [float(np.linalg.norm(v * root)) for v in (x, y, x + y, 3 * x)]
            worst = max(worst, norms[2] / (norms[0] + norms[1]), abs(norms[3] / (3 * norms[0])))
    return within(worst, 1 + 1e-12, "triangle inequality of the weighted root mean square: largest ratio")


def sign_moments() -> Outcome:
    """Rademacher: E(|S| - c)_+^k over all signs is at most the normal law's, k = 3 and 4, and so for tau^2."""
    rng = np.random.default_rng(SEED + 10)
    worst = 0.0
    for d in (1, 2, 3, 6, 11):
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=d)))
        for trial in range(20):
            a = np.ones(d) if trial == 0 else rng.standard_normal(d) * rng.random(d) ** 2
            s = np.abs(signs @ (a / np.linalg.norm(a)))
            for c in (0.3, 0.9, 1.5, 2.5):
                k = constants.constants(np.array(c), d, 1, "rademacher")
                over = np.maximum(s - c, 0)
                worst = max(worst, float(np.mean(over**2) / k.bias**2), float(np.mean(over**4) * 3 / k.excess**4))
    return within(worst, 1 + 1e-12, "excess moments of sign sums over their bounds, all signs: largest ratio")
