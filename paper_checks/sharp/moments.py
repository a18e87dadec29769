"""Steps 2 to 4 of proof.md: the laws of v = ||U'a||/sqrt(K), and what clipping K scalars jointly does to two
moments."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.integrate import quad

from dpzero_theory.check import Array
from dpzero_theory.theory.sharp import constants
from dpzero_theory.theory.sharp.projection import Projection
from paper_checks.outcome import BLOCK, SEED, STANDARD_ERRORS, Checked, clip_jointly, draw, within

TRIED = (1, 4, 64)
"""The numbers K of directions a step that are tried."""
POWERS = ((1, 1), (1, 3), (2, 0), (2, 2), (3, 0), (4, 0), (0, 1), (0, 2))


def tail_moments() -> Checked:
    """Section 4: the moments E[(v - c)_+^i v^j] that the library states for every law of v agree with quadrature."""
    worst = 0.0
    for k, d in ((1, 2), (1, 3), (1, 50), (1, 2000), (1, math.inf), (4, 5), (4, 400), (64, 2000), (64, 128_000)):
        law = Projection(k, d)
        for c in (0.05, 0.6, 1.05, 1.3, 2.0, 3.5):
            if c >= law.largest or c > 1 + 6 / math.sqrt(k):
                continue
            at = np.array([c])
            for (i, j), found in zip(POWERS, (*law.excess(at, *POWERS[:6]), *law.tails(at)), strict=True):
                worst = max(worst, abs(float(found[0]) / _tail_integral(law, i, j, c) - 1))
    return within(
        worst, 1e-8, "moments of v, K = 1 to 64, D = 2 to infinity: largest relative error against quadrature"
    )


def _tail_integral(law: Projection, i: int, j: int, c: float) -> float:
    """E[(v - c)^i v^j 1{v > c}], over the angle between a point of the sphere in R^D and its first K coordinates."""
    k, d = law.directions, law.dimension
    if math.isinf(d):
        log_norm = k / 2 * math.log(k / 2) - math.lgamma(k / 2) + math.log(2)

        def gaussian(v: float) -> float:
            return (v - c) ** i * v ** (j + k - 1) * math.exp(log_norm - k * v * v / 2)

        return float(quad(gaussian, c, max(c, 1) + 12 / math.sqrt(k), epsabs=0, epsrel=1e-11, limit=400)[0])
    log_norm = math.lgamma(d / 2) - math.lgamma((d - k) / 2) - math.lgamma(k / 2) + math.log(2)
    scale = math.sqrt(d / k)

    def integrand(x: float) -> float:
        v = scale * math.sin(x)
        density = log_norm + (k - 1) * math.log(math.sin(x)) + (d - k - 1) * math.log(math.cos(x))
        return (v - c) ** i * v**j * math.exp(density)

    mode, start = math.atan2(math.sqrt(k - 1), math.sqrt(d - k - 1)), math.asin(c / scale)
    low, high = max(start, mode - 12 / math.sqrt(d)), min(max(start, mode) + 12 / math.sqrt(d), math.pi / 2 - 1e-12)
    return float(quad(integrand, low, high, epsabs=0, epsrel=1e-11, limit=400)[0])


def tail_moments_sampled() -> Checked:
    """Section 4: the same moments agree with sampled directions, for the laws of v that are the law of a
    ||U'a||/sqrt(K)."""
    worst = 0.0
    for kind, k, d, c in (
        ("sphere", 1, 1, 0.5),
        ("sphere", 1, 2, 0.9),
        ("sphere", 1, 40, 1.1),
        ("sphere", 1, 3000, 1.5),
        ("gaussian", 5, 6, 1.2),
        ("gaussian", 64, 2, 1.05),
        ("frame", 2, 3, 0.9),
        ("frame", 5, 20, 1.1),
        ("frame", 8, 8, 0.7),
    ):
        v = _sampled_lengths(kind, k, d)
        law = Projection(k, math.inf if kind == "gaussian" else d)
        expected = law.excess(np.array([c]), *POWERS[:6])
        for (i, j), value in zip(POWERS[:6], expected, strict=True):
            worst = max(worst, abs(_z(np.maximum(v - c, 0) ** i * v**j, float(value[0]))))
    return within(worst, STANDARD_ERRORS, "moments of v against sampled directions, d = 1 to 3000: largest z")


@cache
def _sampled_lengths(kind: str, k: int, d: int) -> Array:
    """Draws of ||U'a||/sqrt(K) for a = e_1."""
    rng = np.random.default_rng([SEED, k, d])
    size = max(1000, min(100_000, 20_000_000 // (k * d)))
    blocks = max(1, size * k * d // BLOCK)
    drawn = [draw(kind, rng, size // blocks, k, d)[:, :, 0] for _ in range(blocks)]
    lengths: Array = np.linalg.norm(np.concatenate(drawn), axis=1) / math.sqrt(k)
    return lengths


def _z(sample: Array, value: float) -> float:
    return (float(sample.mean()) - value) / (float(sample.std()) / math.sqrt(len(sample)) + 1e-12)


def convex_order() -> Checked:
    """Section 4: on the sphere, means of functions convex in v^2 lie between those of the two laws v_D."""
    worst = -math.inf
    for k, d in ((2, 2), (2, 3), (4, 9), (3, 2), (8, 10), (64, 50)):
        v = _sampled_lengths("sphere", k, d)
        low, high = Projection(k, max(k, d)), Projection(k, k * d)
        for c in (0.5, 0.9, 1.1, 1.4):
            over, at = np.maximum(v - c, 0), np.array([c])
            for i, j in ((1, 1), (1, 3), (2, 0), (2, 2)):
                sample = over**i * v**j
                ends = [float(law.excess(at, (i, j))[0][0]) for law in (low, high)]
                worst = max(worst, -_z(sample, ends[0]), _z(sample, ends[1]))
    return within(
        worst, STANDARD_ERRORS, "v on the sphere between its two bounds in convex order: largest violation (z)"
    )


@dataclass(frozen=True)
class Configuration:
    """Sample gradients of shape (n, d) with weights, the diagonal of H (with ell = 1), and the clip; L is the largest
    norm."""

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
    """Random gradients, then the extremal gradients of each inequality."""
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
def _sampled(kind: str, k: int) -> list[tuple[Configuration, float, dict[str, tuple[float, float]]]]:
    """For each configuration, G and the mean and standard error of six moments of the jointly clipped mean.

    Configurations with the same curvature share their directions, which are drawn in blocks that stay in the
    processor's cache.
    """
    rng = np.random.default_rng(SEED + 2)
    found = []
    for _, group in itertools.groupby(_configurations(), lambda case: case.curvature.tobytes()):
        cases = list(group)
        d = cases[0].d
        if kind == "frame" and d < k:
            continue
        size = min(10_000, 4_000_000 // d) if k == 1 else min(1500, 500_000 // (k * d))
        samples: list[list[dict[str, Array]]] = [[] for _ in cases]
        for start in range(0, size, block := max(1, BLOCK // (k * d))):
            directions = draw(kind, rng, min(block, size - start), k, d)
            moved = directions * np.sqrt(cases[0].curvature) / k
            root = np.linalg.norm(moved, axis=2, keepdims=True) if k == 1 else np.swapaxes(moved, 1, 2)
            for case, drawn in zip(cases, samples, strict=True):
                drawn.append(_products(case, directions, root))
        for case, drawn in zip(cases, samples, strict=True):
            joined = {name: np.concatenate([part[name] for part in drawn]) for name in drawn[0]}
            summary = {
                name: (float(x.mean()), float(x.std()) / math.sqrt(len(x)) + 1e-9 * (1 + abs(float(x.mean()))))
                for name, x in joined.items()
            }
            found.append((case, float(np.linalg.norm(case.weights @ case.gradients)), summary))
    return found


def _products(case: Configuration, directions: Array, root: Array) -> dict[str, Array]:
    """The six products for each U' of `directions`, shape (m, K, d); root is R with R'R = U'HU/K^2."""
    size, k, d = directions.shape
    s = (directions.reshape(-1, d) @ case.gradients.T).reshape(size, k, -1)
    clipped = clip_jointly(s, case.clip * math.sqrt(k))
    full, kept = s @ case.weights, clipped @ case.weights
    whole, step = np.moveaxis(root @ np.stack([full, kept], axis=2), 2, 0)
    return {
        "inner": np.sum(kept * full, axis=1) / k,
        "second": np.sum(step**2, axis=1),
        "unclipped": np.sum(whole**2, axis=1),
        "lost": np.sum((whole - step) ** 2, axis=1),
        "mixed": np.sum(whole * (whole - step), axis=1),
        "one": np.sum((root @ clipped) ** 2, axis=1) @ case.weights,
    }


Bound = Callable[[constants.Constants, Array], Array]


def _violation(part: str, kind: str, *bounds: tuple[int, Bound]) -> float:
    """The largest number of standard errors by which a moment violates one of its bounds (+1: an upper, -1: a lower
    bound)."""
    worst = -math.inf
    for k in TRIED:
        for (d, r), group in itertools.groupby(_sampled(kind, k), lambda found: (found[0].d, found[0].r)):
            cases, norms, summaries = zip(*group, strict=True)
            clips = np.array([case.clip for case in cases])
            found = constants.constants(clips, d, r, kind, directions_per_step=k)
            means, errors = np.array([summary[part] for summary in summaries]).T
            for sign, bound in bounds:
                worst = max(worst, float((sign * (means - bound(found, np.array(norms))) / errors).max()))
    return worst


def clipped_inner_product(kind: str = "sphere") -> Checked:
    """Step 3: E[m'U'g]/K >= kept G^2 - bias G for the clipped mean m."""
    z = _violation("inner", kind, (-1, lambda k, g: k.kept * g * g - k.bias * g))
    return within(
        z, STANDARD_ERRORS, f"inner product with the clipped mean, {kind}, K = 1 to 64: largest violation (z)"
    )


def clipped_second_moment(kind: str = "sphere") -> Checked:
    """Step 4: E||U m||_H^2/K^2 <= quadratic G^2 + 2 cross G + excess^2, and at most (spread G + excess)^2."""
    z = _violation(
        "second",
        kind,
        (1, lambda k, g: k.quadratic * g * g + 2 * k.cross * g + k.excess**2),
        (1, lambda k, g: (k.spread * g + k.excess) ** 2),
    )
    text = f"second moment of the clipped mean, {kind}, K = 1 to 64: largest violation (z)"
    return within(z, STANDARD_ERRORS, text)


def lost_second_moment(kind: str = "sphere") -> Checked:
    """Step 4: E||U b||_H^2/K^2 <= excess^2 (omega^2), with equality for equal gradients along the top eigenvector."""
    z = _violation("lost", kind, (1, lambda k, g: k.excess**2))
    return within(z, STANDARD_ERRORS, f"second moment of what clipping removes, {kind}: largest violation (z)")


def mixed_second_moment(kind: str = "sphere") -> Checked:
    """Step 4 (iii): E<U U'g, U b>_H/K^2 is between (chi/2)(G^2 - G) and chi G, as 0 <= N_i <= chi I."""
    z = _violation("mixed", kind, (-1, lambda k, g: k.cross * (g * g - g)), (1, lambda k, g: 2 * k.cross * g))
    text = f"mixed moment of gradient and what clipping removes, {kind}: largest violation (z)"
    return within(z, STANDARD_ERRORS, text)


def sampled_second_moment(kind: str = "sphere") -> Checked:
    """Poisson step: the mean over samples of E||U clip(U'g_i)||_H^2/K^2 is at most sampled^2."""
    z = _violation("one", kind, (1, lambda k, g: k.sampled**2))
    return within(z, STANDARD_ERRORS, f"second moment of one clipped sample, {kind}: largest violation (z)")


def conditional_moments() -> Checked:
    """Step 4: E||U U'g||_H^2/K^2 is a^2 G^2 for g along the top eigenvector, for the rotation-invariant laws."""
    worst = 0.0
    for kind in ("sphere", "gaussian", "frame"):
        for k in TRIED:
            for case, norm, summary in _sampled(kind, k):
                if len(case.weights) > 1 or case.clip > 10:
                    continue
                mean, error = summary["unclipped"]
                a = constants.constants(np.array(case.clip), case.d, case.r, kind, directions_per_step=k).spread
                worst = max(worst, abs(mean - (a * norm) ** 2) / error)
    return within(worst, STANDARD_ERRORS, "second moment of an unclipped step along the top eigenvector: largest z")


def seminorm() -> Checked:
    """Step 4: X -> E[X^2 u'Hu]^(1/2) obeys the triangle inequality and scales, on sampled directions."""
    rng = np.random.default_rng(SEED + 3)
    worst = 0.0
    for d in (1, 2, 10, 200):
        u = draw("sphere", rng, 2000, 1, d)[:, 0]
        root = np.sqrt((u * u) @ (np.arange(1, d + 1, dtype=float) ** -1))
        for _ in range(50):
            x, y = (np.clip(u @ rng.standard_normal(d), -rng.random(), rng.random()) for _ in range(2))
            norms = [float(np.linalg.norm(v * root)) for v in (x, y, x + y, 3 * x)]
            worst = max(worst, norms[2] / (norms[0] + norms[1]), abs(norms[3] / (3 * norms[0])))
    return within(worst, 1 + 1e-12, "triangle inequality of the weighted root mean square: largest ratio")


def sign_moments() -> Checked:
    """Section 6: E(v - c)_+^k over all sign patterns is at most the Gaussian law's, k = 3 and 4, and so for tau^2."""
    rng = np.random.default_rng(SEED + 10)
    worst = 0.0
    for k, d in ((1, 1), (1, 2), (1, 3), (1, 6), (1, 11), (2, 2), (2, 5), (3, 4), (4, 3), (12, 1)):
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=k * d))).reshape(-1, k, d)
        for trial in range(20):
            a = np.ones(d) if trial == 0 else rng.standard_normal(d) * rng.random(d) ** 2
            v = np.linalg.norm(signs @ (a / np.linalg.norm(a)), axis=1) / math.sqrt(k)
            for c in (0.3, 0.9, 1.5, 2.5):
                found = constants.constants(np.array(c), d, 1, "rademacher", directions_per_step=k)
                third, fourth = (float(x) for x in Projection(k, math.inf).excess(np.array(c), (3, 0), (4, 0)))
                over = np.maximum(v - c, 0)
                worst = max(worst, float(np.mean(over**2) / found.bias**2), float(np.mean(over**3)) / third)
                worst = max(
                    worst, float(np.mean(over**4)) / fourth, float(np.mean(over**4) * (1 + 2 / k) / found.excess**4)
                )
    return within(worst, 1 + 1e-12, "excess moments of sign sums over their bounds, all signs: largest ratio")
