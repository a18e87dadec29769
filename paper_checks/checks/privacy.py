"""Definitions and privacy claims: sensitivities by brute force, hockey-stick divergences by our own quadrature."""

import itertools
import math
from dataclasses import dataclass
from functools import cache

import mpmath
import numpy as np
from numpy.typing import NDArray

from dpzero_theory.optim import reference
from dpzero_theory.optim.estimator import clip_scalars, clip_vectors
from dpzero_theory.privacy import gaussian
from dpzero_theory.privacy.audit import attack
from dpzero_theory.privacy.noise import SeededNoise
from paper_checks.checks.instances import Array, Instance, random_instance
from paper_checks.registry import Disagreement, Finding, Plot, agree, check

_DELTAS = (0.5, 0.1, 1e-3, 1e-5, 1e-6, 1e-10)


def lemma_gdp(epsilon: float, delta: float) -> float:
    """sqrt(T) Delta/sigma for the variance in Lemma lm:composition."""
    deviation = 2 * math.sqrt(2 * math.log(math.e + epsilon / delta)) / epsilon
    return 1 / deviation


def hockey_stick(epsilon: float, shift: float) -> float:
    """sup_B P(B) - e^epsilon Q(B) for P = N(shift, 1), Q = N(0, 1), with 60 digits: P and Q cross at one point."""
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(shift)
        crossing = e / m + m / 2
        return float(mpmath.ncdf(-(crossing - m)) - mpmath.exp(e) * mpmath.ncdf(-crossing))


def least_epsilon(shift: float, delta: float) -> float:
    """The smallest epsilon with hockey_stick(epsilon, shift) <= delta."""
    low, high = 0.0, 1.0
    while hockey_stick(high, shift) > delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if hockey_stick(middle, shift) > delta else (low, middle)
    return high


@cache
def lemma_limit(delta: float) -> float:
    """The epsilon at which the lemma's noise stops being enough at this delta, by bisection to 1e-7."""
    low, high = 0.5, 0.5
    while hockey_stick(high, lemma_gdp(high, delta)) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if hockey_stick(middle, lemma_gdp(middle, delta)) <= delta else (low, middle)
    return low


@check("def-neighbouring")
def _(full: bool) -> Finding:
    """Datasets of equal size 3 over 3 values: max{|S - S'|, |S' - S|} = 1 as multisets means one record replaced."""
    values, holds = range(3), True
    data = list(itertools.product(values, repeat=3))
    for s, t in itertools.product(data, repeat=2):
        removed = sum(max(s.count(v) - t.count(v), 0) for v in values)
        added = sum(max(t.count(v) - s.count(v), 0) for v in values)
        orders = itertools.permutations(t)
        replaced = min(sum(a != b for a, b in zip(s, order, strict=True)) for order in orders) == 1
        holds &= (max(removed, added) == 1) == replaced
    return Finding(holds)


@check("def-clip")
def _(full: bool) -> Finding:
    """|clip_C(x)| <= C, clip_C(x) = x inside, 1-Lipschitz; scalars and vectors, seed 31, 20,000 pairs."""
    rng = np.random.default_rng(31)
    holds = True
    for d in (1, 2, 5):
        x, y = (rng.standard_normal((20_000, d)) * np.exp(rng.normal(size=(20_000, 1))) for _ in range(2))
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        cx = x * np.minimum(1, 1.3 / norms)
        cy = y * np.minimum(1, 1.3 / np.linalg.norm(y, axis=1, keepdims=True))
        holds &= bool(np.all(np.linalg.norm(cx, axis=1) <= 1.3 * (1 + 1e-14)))
        holds &= bool(np.all(np.linalg.norm(cx - cy, axis=1) <= np.linalg.norm(x - y, axis=1) + 1e-12))
        agree("estimator.clip_vectors", clip_vectors(x, 1.3), cx, 1e-13)
        agree("estimator.clip_scalars", clip_scalars(x, 1.3), x * np.minimum(1, 1.3 / np.abs(x)), 1e-13)
    return Finding(holds)


@check("dpgd-sensitivity")
def _(full: bool) -> Finding:
    """sup |A(S) - A(S')|, A the mean of n = 5 clipped vectors: attained by opposite clipped vectors, never passed."""
    rng, n, clip, largest = np.random.default_rng(32), 5, 0.7, 0.0
    for _ in range(2000):
        rows = rng.standard_normal((n, 3)) * 3
        other = rows.copy()
        other[0] = -rows[0] * rng.uniform(0.5, 2)
        clipped = [v * np.minimum(1, clip / np.linalg.norm(v, axis=1, keepdims=True)) for v in (rows, other)]
        largest = max(largest, float(np.linalg.norm(clipped[0].mean(axis=0) - clipped[1].mean(axis=0))))
    agree("gaussian.sensitivity", gaussian.sensitivity(clip, n, "replace-one"), 2 * clip / n)
    agree("gaussian.sensitivity", gaussian.sensitivity(clip, n, "add-remove"), clip / n)
    ratio = largest / (2 * clip / n)
    return Finding(abs(ratio - 1) < 1e-9, numbers={"largest change/(2C/n)": ratio})


def _region(full: bool) -> tuple[float, float]:
    """Largest delta(epsilon)/delta of the lemma's noise over a grid of all epsilon, and below the limit only."""
    everywhere, below = 0.0, 0.0
    for delta in _DELTAS:
        for epsilon in np.geomspace(1e-3, 2000, 200 if full else 40):
            ratio = hockey_stick(float(epsilon), lemma_gdp(float(epsilon), delta)) / delta
            everywhere = max(everywhere, ratio)
            if epsilon <= lemma_limit(delta):
                below = max(below, ratio)
    return everywhere, below


@check("composition-lemma")
def _(full: bool) -> Finding:
    everywhere, below = _region(full)
    limits = {delta: lemma_limit(delta) for delta in _DELTAS}
    agree("gaussian.paper_lemma_limit", gaussian.paper_lemma_limit(1e-6), limits[1e-6], 1e-6)
    for epsilon, delta in ((0.3, 1e-5), (2.0, 1e-6), (40.0, 0.01)):
        agree("gaussian.paper_gdp", gaussian.paper_gdp(epsilon, delta), lemma_gdp(epsilon, delta))
        exact = hockey_stick(epsilon, lemma_gdp(epsilon, delta))
        agree("gaussian.delta_from_gdp", gaussian.delta_from_gdp(epsilon, lemma_gdp(epsilon, delta)), exact, 1e-9)
    grid = np.geomspace(0.1, 600, 40)
    ratios = [hockey_stick(e, lemma_gdp(e, 1e-6)) / 1e-6 for e in grid.tolist()]
    plot = Plot(
        "delta of the lemma's noise over the delta claimed (1e-6)",
        "epsilon",
        "ratio",
        {"exact": (grid.tolist(), [max(q, 1e-8) for q in ratios])},
        marks={"claimed": 1.0},
        log_x=True,
        log_y=True,
    )
    numbers: dict[str, float | str] = {f"valid up to epsilon, delta = {k:g}": v for k, v in limits.items()}
    return Finding(everywhere <= 1, repaired=below <= 1 + 1e-6, numbers=numbers, plot=plot)


@check("composition-slack")
def _(full: bool) -> Finding:
    """How much more noise than needed: mu_exact/mu_lemma over the paper's budgets; and the epsilon really given."""
    numbers: dict[str, float | str] = {}
    for epsilon, delta in ((2, 1e-6), (2, 1e-5), (6, 1e-5)):
        given = least_epsilon(lemma_gdp(epsilon, delta), delta)
        low, high = 0.0, 10.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if hockey_stick(epsilon, middle) <= delta else (low, middle)
        agree("gaussian.gdp_from_budget", gaussian.gdp_from_budget(epsilon, delta), low, 1e-9)
        numbers[f"({epsilon}, {delta:g}): noise over what is needed"] = low / lemma_gdp(epsilon, delta)
        numbers[f"({epsilon}, {delta:g}): epsilon really given"] = given
    ratios = [v for k, v in numbers.items() if "noise" in k and isinstance(v, float)]
    return Finding(stated=max(ratios) < 1.1, repaired=min(ratios) > 2.2 and max(ratios) < 2.5, numbers=numbers)


@check("composition-adaptive-vectors")
def _(full: bool) -> Finding:
    """T = 2 releases in R^2 with shifts s_1, s_2: delta by two- and four-dimensional quadrature, against one number.

    The divergence of N(s, I) from N(0, I) depends on |s| only: a rotation makes the pair differ in one coordinate.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(160)
    weights = weights / math.sqrt(2 * math.pi)
    worst = 0.0
    for shift, epsilon in (((0.6, 0.8), 0.5), ((1.2, -0.3), 1.0), ((0.1, 0.4), 0.2)):
        a, b = shift
        loss = a * nodes[:, None] + b * nodes[None, :] + (a * a + b * b) / 2
        gain = np.maximum(1 - np.exp(epsilon - loss), 0)
        delta = float(weights @ gain @ weights)
        worst = max(worst, abs(delta - hockey_stick(epsilon, math.hypot(a, b))))
    return Finding(worst < 2e-3, numbers={"largest difference": worst})


@check("variance-sigma")
def _(full: bool) -> Finding:
    """Algorithms 1 and 2 give 'variance sigma = 4C sqrt(2T log)/(n eps)'. As a variance the noise depends on units.

    Read as a standard deviation it is the lemma's. As a variance, multiplying losses by 100 changes mu by 10.
    """

    def gdp(scale: float, variance: bool) -> float:
        n, clip, steps, epsilon, delta = 1000, 2.0 * scale, 50, 2.0, 1e-6
        level = 4 * clip * math.sqrt(2 * steps * math.log(math.e + epsilon / delta)) / (n * epsilon)
        return math.sqrt(steps) * 2 * clip / n / (math.sqrt(level) if variance else level)

    printed = abs(gdp(100, True) / gdp(1, True) - 1) < 1e-9
    repaired = abs(gdp(100, False) / lemma_gdp(2, 1e-6) - 1) < 1e-12
    mu = lemma_gdp(2, 1e-6)
    agree(
        "gaussian.noise_std", gaussian.noise_std(mu, 50, 2.0, 1000, "replace-one"), 2 * 2.0 / 1000 * math.sqrt(50) / mu
    )
    return Finding(
        printed, repaired, numbers={"mu at 100 times the loss, as a variance": gdp(100, True) / gdp(1, True)}
    )


def _steps_by_hand(
    algorithm: int, problem: Instance, x0: Array, u: Array, z: Array, settings: dict[str, float]
) -> Array:
    """Algorithm 1 or 2 line by line, as printed."""
    x, path = x0, [x0]
    width, clip, alpha = settings["smoothing"], settings["clip"], settings["step_size"]
    for t in range(u.shape[0]):
        difference = (problem.losses(x + width * u[t]) - problem.losses(x - width * u[t])) / (2 * width)
        if algorithm == 1:
            rows = difference[:, None] * u[t]
            rows = rows * np.minimum(1, clip / np.linalg.norm(rows, axis=1, keepdims=True))
            x = x - alpha * (rows.mean(axis=0) + z[t])
        else:
            x = x - alpha * (np.mean(difference * np.minimum(1, clip / np.abs(difference))) + z[t, 0]) * u[t]
        path.append(x)
    return np.array(path)


def _compare_reference(algorithm: int) -> float:
    rng = np.random.default_rng(33)
    problem = random_instance(rng, 5, 4, wave=True)
    x0, steps = rng.standard_normal(4), 12
    z = rng.standard_normal((steps, 4))
    u = 2 * z / np.linalg.norm(z, axis=1, keepdims=True)
    width, clip, alpha = 0.3, 0.4 if algorithm == 2 else 0.8, 0.2
    settings = {"smoothing": width, "clip": clip, "step_size": alpha}
    source = SeededNoise(9)
    sizes = 4 if algorithm == 1 else 1
    noise = np.array([np.atleast_1d(source.gaussian(0.05, sizes)) for _ in range(steps)])
    run = (reference.dpgd_0th if algorithm == 1 else reference.dpzero)(
        problem,
        x0,
        steps=steps,
        step_size=alpha,
        smoothing=width,
        clip=clip,
        noise_std=0.05,
        noise=SeededNoise(9),
        directions=u,
    )
    if run.trajectory is None:
        raise Disagreement("optim.reference returned no trajectory")
    agree("optim.reference", run.trajectory, _steps_by_hand(algorithm, problem, x0, u, noise, settings), 1e-12)
    return float(np.max(np.abs(run.trajectory)))


@check("algo1-sensitivity")
def _(full: bool) -> Finding:
    """Algorithm 1's released average changes by at most 2C/n: brute force over opposite samples, clip active."""
    _compare_reference(1)
    rng, largest, n, clip = np.random.default_rng(34), 0.0, 4, 0.6
    for _ in range(500):
        u, s = rng.standard_normal(3), 5 * rng.standard_normal(n)
        other = s.copy()
        other[0] = -s[0]
        means = []
        for values in (s, other):
            rows = values[:, None] * u
            means.append((rows * np.minimum(1, clip / np.linalg.norm(rows, axis=1, keepdims=True))).mean(axis=0))
        largest = max(largest, float(np.linalg.norm(means[0] - means[1])))
    return Finding(largest <= 2 * clip / n + 1e-12, numbers={"largest change/(2C/n)": largest / (2 * clip / n)})


@check("algo2-sensitivity")
def _(full: bool) -> Finding:
    """Algorithm 2's released scalar changes by at most 2C/n, with equality for opposite clipped samples."""
    _compare_reference(2)
    rng, largest, n, clip = np.random.default_rng(35), 0.0, 4, 0.6
    for _ in range(500):
        s = 5 * rng.standard_normal(n)
        other = s.copy()
        other[0] = rng.choice([-1, 1]) * 5 * abs(rng.standard_normal())
        means = [np.mean(v * np.minimum(1, clip / np.abs(v))) for v in (s, other)]
        largest = max(largest, abs(float(means[0] - means[1])))
    ratio = largest / (2 * clip / n)
    return Finding(abs(ratio - 1) < 1e-9, numbers={"largest change/(2C/n)": ratio})


def _audit(algorithm: int, d: int, full: bool) -> Finding:
    """Many runs on two worst-case datasets, the optimal test on the released iterates, against the exact trade-off.

    Losses c_i a^T x with opposite first samples, both clipped: each run releases T Gaussians with means Delta apart.
    The adversary knows u_t and sees all x_t. The empirical TPR - e^eps FPR must match hockey_stick(eps, mu) within
    4.5 standard errors (seed 36, 40,000 runs a side, 4 steps), at epsilon = 0.5 and 2. The library's own algorithm
    is attacked too: the bound on mu from 4,000 runs must lie between 0.6 mu and mu.
    """
    rng, runs, steps, n, clip = np.random.default_rng(36), 160_000 if full else 40_000, 4, 3, 1.0
    mu = lemma_gdp(8.0, 1e-3)
    sensitivity = 2 * clip / n
    sigma = math.sqrt(steps) * sensitivity / mu
    statistic = []
    for sign in (1, -1):
        z = rng.standard_normal((runs, steps, d if algorithm == 1 else 1)) * sigma
        u = rng.standard_normal((runs, steps, d))
        u *= math.sqrt(d) / np.linalg.norm(u, axis=2, keepdims=True)
        slopes = 1e6 * np.array([sign, 0.4, -1.0])[:, None] * np.eye(n, d)[0]
        difference = np.einsum("kd,rtd->rtk", slopes, u)
        if algorithm == 1:
            lengths = np.abs(difference) * math.sqrt(d)
            factor = np.minimum(1, clip / np.where(lengths > 0, lengths, 1))
            released = (difference * factor).mean(axis=2)[..., None] * u + z
            known = (difference * factor)[..., 1:].sum(axis=2)[..., None] / n * u
            direction = np.sign(u[..., :1]) * u / math.sqrt(d)
            seen = np.sum((released - known) * direction, axis=2)
        else:
            clipped = np.clip(difference, -clip, clip)
            released = clipped.mean(axis=2) + z[..., 0]
            seen = (released - clipped[..., 1:].sum(axis=2) / n) * np.sign(u[..., 0])
        statistic.append(np.sum(seen, axis=1))
    worst = 0.0
    numbers: dict[str, float | str] = {}
    for epsilon in (0.5, 2.0):
        cut = sigma**2 * epsilon / sensitivity
        tpr, fpr = (float(np.mean(s > cut)) for s in statistic)
        error = math.sqrt((tpr * (1 - tpr) + math.exp(2 * epsilon) * fpr * (1 - fpr)) / runs)
        gap = tpr - math.exp(epsilon) * fpr - hockey_stick(epsilon, mu)
        worst = max(worst, abs(gap) / error)
        numbers[f"TPR - e^eps FPR at eps = {epsilon:g}"] = tpr - math.exp(epsilon) * fpr
        numbers[f"exact delta at eps = {epsilon:g}"] = hockey_stick(epsilon, mu)
    numbers["largest z-score"] = worst
    least = _attack_library(algorithm, 20_000 if full else 4000, mu)
    numbers["mu, claimed"] = mu
    numbers["mu, at least, from attacks on the library's algorithm"] = least
    return Finding(worst < 4.5 and 0.6 * mu < least <= mu, numbers=numbers)


@dataclass(frozen=True)
class _Linear:
    """Losses slope_i x_1, the first with the canary's sign and every one steep enough to be clipped."""

    slopes: Array
    d: int

    @property
    def n(self) -> int:
        return int(self.slopes.size)

    def losses(self, x: Array) -> Array:
        return self.slopes * float(x[0])


def _attack_library(algorithm: int, runs: int, mu: float) -> float:
    """A lower bound on mu (confidence 99.9%) from the iterates of the library's own algorithm, 4 steps, d = 3."""
    rng, n, d, steps, clip, alpha = np.random.default_rng(38), 3, 3, 4, 1.0, 0.1
    sigma = math.sqrt(steps) * 2 * clip / n / mu
    run = reference.dpgd_0th if algorithm == 1 else reference.dpzero

    def mechanism(signs: NDArray[np.int64]) -> Array:
        u = rng.standard_normal((steps, d))
        u *= math.sqrt(d) / np.linalg.norm(u, axis=1, keepdims=True)
        problem = _Linear(1e6 * np.array([signs[0], 0.4, -1.0]), d)
        path = run(
            problem,
            np.zeros(d),
            steps=steps,
            step_size=alpha,
            smoothing=1.0,
            clip=clip,
            noise_std=sigma,
            noise=SeededNoise(int(rng.integers(2**62))),
            directions=u,
        ).trajectory
        if path is None:
            raise Disagreement("optim.reference returned no trajectory")
        along = np.sum((path[:-1] - path[1:]) / alpha * u, axis=1) / (math.sqrt(d) if algorithm == 1 else d)
        return np.array([float(np.sum(along * np.sign(u[:, 0])))])

    return attack(mechanism, runs=runs, delta=1e-3, confidence=0.999).gdp


@check("algo1-audit")
def _(full: bool) -> Finding:
    return _audit(1, 6, full)


@check("algo2-audit")
def _(full: bool) -> Finding:
    return _audit(2, 6, full)


def _region_finding(full: bool, id: str) -> Finding:
    everywhere, below = _region(full)
    numbers: dict[str, float | str] = {
        "largest delta/claimed, any epsilon": everywhere,
        "the same below the lemma's limit": below,
        "limit at delta = 1e-6": lemma_limit(1e-6),
    }
    return Finding(everywhere <= 1, repaired=below <= 1 + 1e-6, numbers=numbers)


for _id in ("thm1-privacy", "thm2-privacy", "thm3-privacy"):
    check(_id)(lambda full, _id=_id: _region_finding(full, _id))  # type: ignore[misc]


@check("direction-public")
def _(full: bool) -> Finding:
    """Any data-independent u_t: given u the release is a scalar Gaussian with the same sensitivity for every law of u.

    Sphere, a fixed basis vector, heavy tails: the clipped mean's largest change is 2C/n for each.
    """
    rng, n, clip, ratios = np.random.default_rng(37), 4, 0.6, []
    for law in ("sphere", "fixed", "cauchy"):
        largest = 0.0
        for _ in range(300):
            u = {"sphere": rng.standard_normal(3), "fixed": np.eye(3)[0], "cauchy": rng.standard_cauchy(3)}[law]
            gradients = rng.standard_normal((n, 3)) * 10
            other = gradients.copy()
            other[0] = -gradients[0]
            means = [np.clip(g @ u, -clip, clip).mean() for g in (gradients, other)]
            largest = max(largest, abs(float(means[0] - means[1])))
        ratios.append(largest / (2 * clip / n))
    return Finding(max(ratios) <= 1 + 1e-12, numbers={"largest change/(2C/n)": max(ratios)})
