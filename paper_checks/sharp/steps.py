"""Check the one-step statements (steps 2 and 5) of docs/explanation/sharpened-theorem.md, on random problems and on
problems where the inequality is nearly an equality."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp import certificate as sharp
from dpzero_theory.theory.sharp import constants
from paper_checks.outcome import BLOCK, EVERY_KIND, SEED, STANDARD_ERRORS, Checked, clip_jointly, draw, within


@dataclass(frozen=True)
class OneStep:
    """A problem and the parameters of one step from x = 0.

    `losses` maps points, shape (m, d), to the samples' losses, shape (m, n); `gradients` has the sample gradients at 0,
    shape (n, d). `problem` has the constants of the loss. `clip` is that for one direction.
    """

    name: str
    losses: Callable[[Array], Array]
    gradients: Array
    problem: Problem
    step_size: float
    clip: float
    smoothing: float
    noise_std: float
    sample_rate: float = 1.0


def one_step_problems() -> Iterator[OneStep]:
    """Yield random problems (dimension d from 1 to 10^4, effective rank r from 1 to d, with a clip that is active),
    then three problems for d = 20, r = 20 and three for d = 300, r = 6 on which the one-step inequality is nearly an
    equality."""
    rng = np.random.default_rng(SEED + 4)
    for d in (1, 2, 6, 40, 500, 10_000):
        for power in (0.0, 1.0, 4.0):
            h = np.arange(1, d + 1, dtype=float) ** -power
            r = float(h.sum())
            centers = rng.standard_normal((5, d)) + 0.5 * rng.standard_normal(d)
            for clip in (0.5, 1.2, 2.5):
                for family in ("saddle", "huber", "cosine"):
                    yield _random_step(family, centers, h, r, clip, rng)
    for d, r in ((20, 20.0), (300, 6.0)):
        h = np.full(d, (r - 1) / (d - 1))
        h[0] = 1.0
        center = np.zeros((1, d))
        center[0, 0] = -1.0
        alpha = 0.8 * (d + 2) / (d * (r + 2))
        ones = np.ones(1)
        free = 60.0 * math.sqrt(d)
        yield _quadratic_step("aligned, unclipped", center, ones, h, alpha, free, 0.0)
        yield _quadratic_step("aligned, clipped", center, ones, h, alpha, 1.3, 0.0)
        yield _quadratic_step("noise alone", np.concatenate([center, -center]), np.ones(2), h, alpha, 1.0, 2.0)


def _quadratic_step(
    name: str, centers: Array, signs: Array, h: Array, alpha: float, clip: float, noise: float, rate: float = 1.0
) -> OneStep:
    gradients = -signs[:, None] * centers * h
    lipschitz = float(np.linalg.norm(gradients, axis=1).max())
    n, d = centers.shape
    problem = Problem(n=n, d=d, r=max(1.0, float(h.sum() / h.max())), lipschitz=lipschitz, smoothness=float(h.max()))
    return OneStep(
        f"{name} d={d}",
        lambda points: sum_quadratic(points, centers, signs, h),
        gradients,
        problem,
        alpha / problem.smoothness,
        clip * lipschitz,
        1e-6 * lipschitz / problem.smoothness,
        noise * lipschitz,
        rate,
    )


def _random_step(family: str, centers: Array, h: Array, r: float, clip: float, rng: np.random.Generator) -> OneStep:
    n, d = centers.shape
    alpha = rng.uniform(0.2, 1.2) / (r + 2)
    if family == "saddle":
        signs = rng.choice([-1.0, 1.0], n, p=[0.3, 0.7])
        return _quadratic_step(family, centers, signs, h, alpha, clip, rng.uniform(0, 0.3), rng.choice([0.3, 1.0]))
    if family == "huber":
        squares = (centers * centers) @ h
        problem = Problem(n=n, d=d, r=r)

        def losses(points: Array) -> Array:
            values: Array = np.sqrt(1 + 2 * sum_quadratic(points, centers, np.ones(n), h))
            return values

        gradients = -centers * h / np.sqrt(1 + squares)[:, None]
    else:
        phase = rng.uniform(0, 6, n)
        norms = np.linalg.norm(centers, axis=1).max()
        rows = centers / norms
        problem = Problem(n=n, d=d, r=1)  # r is 1 because generalised linear losses have tr(H) <= ell

        def losses(points: Array) -> Array:
            waves: Array = np.cos(points @ rows.T + phase)
            return waves

        gradients = -np.sin(phase)[:, None] * rows
        alpha = rng.uniform(0.1, 0.3)
    smoothing = rng.choice([1e-3, 0.2]) * 2 / d
    return OneStep(f"{family} d={d}", losses, gradients, problem, alpha, clip, smoothing, rng.uniform(0, 0.3), 1.0)


def sum_quadratic(points: Array, centers: Array, signs: Array, h: Array) -> Array:
    """Return the samples' losses signs_i/2 (x - c_i)' diag(h) (x - c_i), shape (m, n), at the m points x in the rows of
    `points`, shape (m, d). `centers` has the c_i as rows, shape (n, d), `signs` are +1 or -1, shape (n,), and h has
    shape (d,)."""
    values: Array = points @ (-2 * centers * h).T
    values += ((points * points) @ h)[:, None]
    values += (centers * centers) @ h
    values *= signs / 2
    return values


def differences(case: OneStep, directions: Array, rule: str = "central") -> Array:
    """Return each sample's finite differences at x = 0, shape (m, K, n), along directions of shape (m, K, d). `case`
    has the losses and the smoothing, and `rule` is "central" or "forward"."""
    m, k, d = directions.shape
    moved = case.smoothing * directions.reshape(m * k, d)
    if rule == "forward":
        rise: Array = (case.losses(moved) - case.losses(np.zeros((1, d)))) / case.smoothing
    else:
        rise = (case.losses(moved) - case.losses(-moved)) / (2 * case.smoothing)
    return rise.reshape(m, k, -1)


Change = Callable[[OneStep, Array, np.random.Generator], Array]


def _mean_changes(
    problems: Iterable[OneStep], kind: str, k: int, rng: np.random.Generator, change: Change, count: int = 8_000
) -> Iterator[tuple[OneStep, float, float]]:
    """Yield each problem with the mean and standard error of what `change` returns (a change of the loss in one step),
    over draws of k directions of the law `kind`.

    There are `count` draws (fewer for d > 300 and for many directions). Consecutive problems of the same dimension
    share their directions.
    """
    for d, group in itertools.groupby(problems, lambda case: case.problem.d):
        cases = list(group)
        samples: list[list[Array]] = [[] for _ in cases]
        total = (count if d <= 300 else 2_000_000 // d) // min(k, 16)
        for first in range(0, total, block := max(1, BLOCK // (k * d))):
            directions = draw(kind, rng, min(block, total - first), k, d)
            for case, changes in zip(cases, samples, strict=True):
                changes.append(change(case, directions, rng))
        for case, changes in zip(cases, samples, strict=True):
            sample = np.concatenate(changes)
            yield case, float(sample.mean()), float(sample.std()) / math.sqrt(len(sample)) + 1e-12


def _scalar_noise(case: OneStep, directions: Array, rng: np.random.Generator) -> Array:
    """Return F(x+) - F(x) for a step of DPZero from x = 0 to x+, for each draw of K directions. The clip is sqrt(K)
    times that of the case. For each draw a batch and a noise are drawn; the change of F is averaged over the noise with
    both signs."""
    size, k, _ = directions.shape
    clipped = clip_jointly(differences(case, directions), case.clip * math.sqrt(k))
    chosen = rng.random((size, 1, case.problem.n)) < case.sample_rate
    m = (clipped * chosen).sum(axis=2) / (case.sample_rate * case.problem.n)
    z = case.noise_std * rng.standard_normal((size, k))
    return _both(case, *(((m + s * z)[:, None, :] @ directions)[:, 0] / k for s in (1, -1)))


def _both(case: OneStep, one: Array, other: Array) -> Array:
    after = [case.losses(-case.step_size * step).mean(axis=1) for step in (one, other)]
    change: Array = (after[0] + after[1]) / 2 - case.losses(np.zeros((1, case.problem.d))).mean()
    return change


def smoothing_error(rule: str) -> Checked:
    """Step 2 of the sharpened theorem's proof: with e the error of a finite difference by the rule "central" or
    "forward" in the clipped mean slope along u, E|e u'g| and E[e^2 u'Hu]^(1/2) are at most 1.1 times their bounds (room
    for sampling), on pseudo-Huber and cosine losses. Here g is the mean gradient and H the curvature matrix."""
    worst = 0.0
    for clip, d, r, kind, sample_rank, k, first, second in _smoothing_errors(rule):
        found = constants.constants(np.array(clip), d, r, kind, sample_rank, k)
        worst = max(worst, first / found.smooth_first, second / found.smooth_second)
    return within(worst, 1.1, f"error of {rule} differences over its bounds, all directions: largest ratio")


@cache
def _smoothing_errors(rule: str) -> list[tuple[float, int, float, str, float | None, int, float, float]]:
    """Sample the error e that smoothing makes in the K clipped mean slopes of a step, for many problems, laws and
    numbers K of directions. The differences are by the rule `rule`.

    Each entry of the returned list has clip, d, r, the law of the directions, the samples' rank and K, as `constants`
    takes them; then the sampled E|e'U'g|/(K G lambda/2) and E[e'U'HU e]^(1/2)/(K lambda/2). Here U has the directions
    as columns, g is the mean gradient, G its norm, H the curvature matrix, and lambda the smoothing.
    """
    rng = np.random.default_rng(SEED + 14)
    found: list[tuple[float, int, float, str, float | None, int, float, float]] = []
    for kind, k in itertools.product(EVERY_KIND, (1, 5)):
        for case in one_step_problems():
            p = case.problem
            if p.d > 500 or "aligned" in case.name or "noise" in case.name or "saddle" in case.name:
                continue
            if kind == "frame" and p.d < k:
                continue
            directions = draw(kind, rng, 1000 if k == 1 else 100, k, p.d)
            clip = case.clip * math.sqrt(k)
            exact = clip_jointly(directions @ case.gradients.T, clip).mean(axis=2)
            error = (clip_jointly(differences(case, directions, rule), clip).mean(axis=2) - exact) / (
                case.smoothing / 2
            )
            mean = case.gradients.mean(axis=0)
            along = directions @ (mean / np.linalg.norm(mean))
            first, second = float(np.mean(np.abs(np.sum(error * along, axis=1)))) / k, 0.0
            if "huber" in case.name:
                step = (error[:, None, :] @ directions)[:, 0] / k
                curved = (step * step) @ np.arange(1, p.d + 1, dtype=float) ** -_power(p)
                second = math.sqrt(float(np.mean(curved)))
            found.append((case.clip, p.d, p.r, kind, p.sample_rank, k, first, second))
        # With one direction a step (K = 1) the losses x_1 |x_1|/2 (central differences) and x_1^2/2 (forward ones)
        # attain, at x = 0, the bound on E[e'U'HU e]^(1/2), with e the error of the difference and U the direction.
        for d in (1, 4, 50):
            if k == 1:
                first_coordinates = np.concatenate([draw(kind, rng, 4000, 1, d)[:, 0, 0] for _ in range(25)])
                found.append((1.0, d, 1.0, kind, 1.0, 1, 0.0, math.sqrt(float(np.mean(first_coordinates**6)))))
    return found


def _power(p: Problem) -> float:
    """Return the power among 0, 1 and 4 for which the eigenvalues 1, 2^-power, ..., d^-power, as the problems of
    `one_step_problems` have them, have a sum nearest to r of the problem `p`."""
    index = np.arange(1, p.d + 1, dtype=float)
    return min((0.0, 1.0, 4.0), key=lambda power: abs(float((index**-power).sum()) - p.r))


def _vector_noise(case: OneStep, directions: Array, rng: np.random.Generator) -> Array:
    """Return F(x+) - F(x) for a step of Algorithm 1 (noise on the whole vector) from x = 0 to x+, for each direction.
    The clip is sqrt(d) times that of the case."""
    u = directions[:, 0]
    slopes = differences(case, directions)[:, 0]
    # the norms of the samples' gradient estimates, each its slope times u
    norms = np.abs(slopes) * math.sqrt(case.problem.d)
    clip = case.clip * math.sqrt(case.problem.d)
    m = (slopes * np.minimum(1, clip / np.maximum(norms, 1e-300))).mean(axis=1)
    z = case.noise_std * rng.standard_normal(u.shape)
    return _both(case, *(m[:, None] * u + s * z for s in (1, -1)))


def one_step() -> Checked:
    """Step 5 of the sharpened theorem's proof: a step from x to x+ has E F(x+) - F(x) <= -alpha (q G^2 - p G) + alpha
    K_0 - gap. Here alpha is the step size, G the norm of the gradient, and q, p and K_0 are `progress`, `drift` and
    `floor` of the certificate with one step."""
    return _steps_within(one_step_problems(), (("sphere", 1),), 5, "one step on random problems, d = 1 to 10^4")


def other_directions() -> Checked:
    """Step 5 of the sharpened theorem's proof for every law of directions, for 1, 4 and 64 of them per step, in
    dimensions up to 40."""
    laws = [law for law in itertools.product(EVERY_KIND, (1, 4, 64)) if law != ("sphere", 1)]
    problems = [case for case in one_step_problems() if case.problem.d <= 40]
    return _steps_within(problems, laws, 6, "one step of every law, K = 1 to 64 directions", count=4_000)


def vector_noise() -> Checked:
    """For the paper's Algorithm 1, which clips each sample's vector estimate and adds a noise vector, one step obeys
    the certificate's bound. Clipping the vector s u to norm C is clipping its scalar s to C/sqrt(d)."""
    problems = [case for case in one_step_problems() if case.problem.d <= 500 and case.sample_rate == 1]
    return _steps_within(problems, (("sphere", 1),), 11, "one step of Algorithm 1, vector clip and noise", "dpgd-0th")


def _steps_within(
    problems: Iterable[OneStep],
    laws: Iterable[tuple[str, int]],
    seed: int,
    text: str,
    algorithm: str = "dpzero",
    count: int = 8_000,
) -> Checked:
    """Return by how many standard errors a mean change of the loss in one step is above the certificate's bound, at
    most, over the problems and over laws of directions with their number K. A frame needs at least K dimensions."""
    rng, worst = np.random.default_rng(SEED + seed), -math.inf
    vector = algorithm == "dpgd-0th"
    cases = list(problems)
    for kind, k in laws:
        tried = (case for case in cases if kind != "frame" or case.problem.d >= k)
        for case, mean, error in _mean_changes(tried, kind, k, rng, _vector_noise if vector else _scalar_noise, count):
            found = sharp.certificate(
                case.problem,
                step_size=case.step_size,
                steps=1,
                clip=case.clip * math.sqrt(case.problem.d if vector else k),
                smoothing=case.smoothing,
                noise_std=case.noise_std,
                sample_rate=case.sample_rate,
                direction=kind,
                directions_per_step=k,
                algorithm=algorithm,
            )
            g = float(np.linalg.norm(case.gradients.mean(axis=0)))
            bound = case.step_size * (found.floor - found.progress * g * g + found.drift * g) - case.problem.gap
            worst = max(worst, (mean - bound) / error)
    return within(worst, STANDARD_ERRORS, f"{text}: largest violation (z)")
