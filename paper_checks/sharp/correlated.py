"""Check section 13 of docs/explanation/sharpened-theorem.md: noise that is correlated over steps, for fresh directions
and for directions that are used again.

The privacy cost of noise with covariance S over the steps is the sum over steps s and t of <c_s, c_t> (S^-1)_st, where
c_t is what a record contributes at step t. It is the square of mu of Gaussian differential privacy.
"""

import itertools
import math

import numpy as np
from scipy.special import hyp2f1

from dpzero_theory.check import Array
from paper_checks.outcome import SEED, STANDARD_ERRORS, Checked, clip_jointly, within


def crossed_terms() -> Checked:
    """Section 13 of the sharpened theorem's proof: with fresh random signs as directions U_t and any fixed noises z_0,
    z_1, z_2, the means of z_t'U_t'g(x_t) and of z_t'U_t'H U_t m_t over all sign patterns are 0, with clipping and a
    mean gradient g that is not linear in x. Here m_t is the mean of the samples' clipped slopes, and H the curvature
    matrix.

    The patterns of three steps in two dimensions with two directions each are enumerated, for 40 losses.
    """
    rng = np.random.default_rng(SEED + 40)
    worst = 0.0
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=4))).reshape(-1, 2, 2)
    patterns = list(itertools.product(range(len(signs)), repeat=3))
    u = signs[np.array(patterns)]
    for _ in range(40):
        centers, z = rng.standard_normal((5, 2)), rng.standard_normal((3, 2)) * rng.lognormal(size=2)
        curvature, alpha, clip = np.diag(rng.lognormal(size=2)), rng.uniform(0.1, 1), rng.uniform(0.3, 2)
        x = np.zeros((len(u), 2))
        for t in range(3):
            away = (x[:, None, :] - centers) @ curvature
            gradients = away / np.sqrt(1 + np.sum(away**2, axis=2, keepdims=True))
            m = clip_jointly(np.einsum("skd,snd->skn", u[:, t], gradients), clip).mean(axis=2)
            moved, noise = np.einsum("skd,sk->sd", u[:, t], m), u[:, t].transpose(0, 2, 1) @ z[t]
            scale = float(np.abs(noise).max() * max(np.abs(moved).max(), np.abs(gradients).max()))
            first, second = np.sum(noise * gradients.mean(axis=1), axis=1), np.sum((noise @ curvature) * moved, axis=1)
            worst = max(worst, abs(float(first.mean())) / scale, abs(float(second.mean())) / scale)
            x = x - alpha / 2 * (moved + noise)
    return within(worst, 1e-12, "mean products of noise with gradient and step over all signs, relative: largest")


def independent_noise() -> Checked:
    """Section 13 of the sharpened theorem's proof: for 400 random covariances S of the noise, and records used in
    random sets of steps, some signs of a record's contributions cost at least as much privacy as independent noise of
    the same variances."""
    rng = np.random.default_rng(SEED + 41)
    worst, gained = 0.0, math.inf
    for _ in range(400):
        steps = int(rng.integers(2, 9))
        covariance = _covariance(steps, rng)
        inverse = np.linalg.inv(covariance)
        used = np.flatnonzero(rng.random(steps) < rng.uniform(0.3, 1))
        used = used if len(used) else np.arange(steps)
        costs = [float(s @ inverse[np.ix_(used, used)] @ s) for s in _signs(len(used))]
        independent = float(np.sum(1 / np.diag(covariance)[used]))
        worst = max(worst, independent / max(costs))
        gained = min(gained, independent / min(costs))
    text = f"privacy cost of independent over correlated noise, worst signs; the mildest signs {gained:.2f}"
    return within(worst if gained < 1 else math.inf, 1 + 1e-9, text)


def full_batches() -> Checked:
    """Section 13 of the sharpened theorem's proof: for 60 random covariances S there are independent noises of
    variances 1/y_t, not above S in any direction, whose cost is at most pi/2 times that of S for the worst signs, and
    at most that of S for the worst unit vectors of contributions in many dimensions."""
    rng = np.random.default_rng(SEED + 42)
    ratios, above, slack = [], -math.inf, 0.0
    for _ in range(60):
        steps = int(rng.integers(2, 9))
        covariance = _covariance(steps, rng)
        inverse = np.linalg.inv(covariance)
        y, attained = _dominated(np.asarray(inverse, np.float64), rng)
        values = np.linalg.eigvalsh(np.diag(1 / y) - covariance)
        above = max(above, float(values.max() / np.linalg.eigvalsh(covariance).max()))
        worst_signs = max(float(s @ inverse @ s) for s in _signs(steps))
        ratios.append(float(y.sum()) / worst_signs)
        slack = max(slack, float(y.sum()) / attained - 1)
    ok = above <= 1e-9 and slack <= 1e-5
    text = f"cost of independent noise over the worst signs' of S; over the worst vectors' at most {slack:.0e} more"
    return within(max(ratios) if ok else math.inf, math.pi / 2, text)


def projected_vectors() -> Checked:
    """Section 13 of the proof: two unit vectors with inner product t, projected on K random dimensions and scaled to
    length 1, have the mean inner product gamma(K) t (1 + a_1 t^2 + a_2 t^4 + ...) with all a_j >= 0, which Proposition
    6 rests on; by 200,000 draws for K = 1 to 16, within 4.5 standard errors. For 50 random sets of vectors the matrix
    of these means less gamma(K) times the Gram matrix has no negative eigenvalue."""
    rng = np.random.default_rng(SEED + 43)
    worst, least = 0.0, math.inf
    for k in (1, 2, 3, 5, 16):
        gamma = 2 / k * math.exp(2 * (math.lgamma((k + 1) / 2) - math.lgamma(k / 2)))
        for t in (0.3, 0.9):
            one, other = rng.standard_normal((2, 200_000, k))
            other = t * one + math.sqrt(1 - t * t) * other
            drawn = np.sum(one * other, axis=1) / np.sqrt(np.sum(one**2, axis=1) * np.sum(other**2, axis=1))
            stated = gamma * t * float(hyp2f1(0.5, 0.5, k / 2 + 1, t * t))
            worst = max(worst, abs(float(drawn.mean()) - stated) / (float(drawn.std()) / math.sqrt(len(drawn))))
        for _ in range(10):
            vectors = rng.standard_normal((12, int(rng.integers(2, 8))))
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            gram = np.clip(vectors @ vectors.T, -1, 1)
            rounded = gamma * gram * hyp2f1(0.5, 0.5, k / 2 + 1, gram**2)
            least = min(least, float(np.linalg.eigvalsh(rounded - gamma * gram).min()))
    text = f"mean inner products of projected vectors (z); least eigenvalue {least:.0e}"
    return within(worst if least > -1e-12 else math.inf, STANDARD_ERRORS, text)


def _dominated(inverse: Array, rng: np.random.Generator) -> tuple[Array, float]:
    """Return numbers y with diag(y) - inverse positive semidefinite whose sum is nearly the least, and a lower bound on
    that least sum.

    The lower bound is the sum of <v_s, v_t> inverse_st for unit vectors v_t, which is never above the sum of y. It is
    raised by changing one vector at a time until nothing changes.
    """
    vectors = rng.standard_normal((len(inverse), len(inverse)))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for _ in range(20_000):
        before = vectors.copy()
        for t in range(len(inverse)):
            pulled = inverse[t] @ vectors - inverse[t, t] * vectors[t]
            if np.linalg.norm(pulled) > 1e-300:
                vectors[t] = pulled / np.linalg.norm(pulled)
        if np.abs(vectors - before).max() < 1e-12:
            break
    gram = vectors @ vectors.T
    y = np.sum(inverse * gram, axis=1)
    y += max(0.0, -float(np.linalg.eigvalsh(np.diag(y) - inverse).min()))
    return y, float(np.sum(inverse * gram))


def _covariance(steps: int, rng: np.random.Generator) -> Array:
    root = rng.standard_normal((steps, steps + 1)) + rng.uniform(0, 2) * np.tri(steps, steps + 1)
    made: Array = root @ root.T
    return made


def _signs(count: int) -> list[Array]:
    return [np.array(s) for s in itertools.product((-1.0, 1.0), repeat=count)]
