"""The proofs' inequalities in expectation, on random problems at and away from the prescribed parameters.

In R^2 every expectation over u and z is a quadrature (evenly spaced angles, Gauss-Hermite), so both sides are
numbers and nothing is left to chance; the runs of several steps are Monte Carlo with the sizes given.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from paper_checks.checks.instances import Array, Instance, circle, random_instance
from paper_checks.checks.privacy import lemma_gdp
from paper_checks.registry import Finding, check

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(12)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_ROUNDING = 1e-9


def _report(gaps: Mapping[str, float] | float, tightest: float) -> Finding:
    """`gaps`: largest left minus right side, relative to the right; `tightest`: largest left/right."""
    worst = gaps if isinstance(gaps, float) else max(gaps.values())
    return Finding(
        worst <= _ROUNDING, numbers={"largest (left - right)/|right|": worst, "largest left/right": tightest}
    )


@dataclass(frozen=True)
class Sides:
    """The two sides of an inequality left <= right."""

    left: float
    right: float

    @property
    def gap(self) -> float:
        return (self.left - self.right) / max(abs(self.right), 1e-9)


# --- Algorithm 1, one step from a fixed x, d = 2 ---


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
def _first_algorithm(count: int) -> dict[str, tuple[float, float]]:
    """Worst gap and largest left/right over `count` problems, convex and not, times step sizes, lambdas and noises."""
    rng = np.random.default_rng(41)
    worst: dict[str, tuple[float, float]] = {}
    for k in range(count):
        problem, x = random_instance(rng, 4, 2, wave=k % 2 == 0), 1.5 * rng.standard_normal(2)
        ell = float(np.linalg.norm(problem.curvature, 2))
        r = float(np.trace(problem.curvature)) / ell
        for alpha in (1 / (8 * ell), 1 / (4 * ell * (r + 2)), 0.1 / ell, 2 / ell):
            for lam, sigma in ((0.01, 0.0), (0.5, 0.7), (0.05, 0.2)):
                for name, sides in _algorithm_1(problem, x, alpha, lam, sigma).items():
                    gap, ratio = worst.get(name, (-math.inf, -math.inf))
                    shift = abs(sides.right) + 1e-9
                    worst[name] = max(gap, sides.gap), max(ratio, sides.left / shift if sides.right > 0 else -math.inf)
    return worst


for _id, _name in (
    ("eq-descent-1", "descent"),
    ("eq-onestep1", "onestep1"),
    ("eq-smooth-rank", "smooth-rank"),
    ("eq-estimator-curvature", "estimator-curvature"),
    ("eq-onestep2", "onestep2"),
):
    check(_id)(lambda full, _name=_name: _report(*_first_algorithm(40 if full else 8)[_name]))  # type: ignore[misc]


# --- Algorithm 2, one step from a random x_t, d = 2 ---


def _clip(values: Array, clip: float) -> Array:
    return np.clip(values, -clip, clip)


def _state(problem: Instance, x0: Array, alpha: float, lam: float, clip: float, sigma: float) -> tuple[Array, Array]:
    """Points and weights of the law of x_1, u_0 over 48 angles and z_0 over Gauss-Hermite nodes."""
    u = circle(48)
    mean = _clip(problem.differences(x0, u, lam), clip).mean(axis=-1)
    moves = (mean[:, None] + sigma * _NODES[None, :])[..., None] * u[:, None, :]
    return (x0 - alpha * moves).reshape(-1, 2), np.tile(_WEIGHTS / u.shape[0], u.shape[0])


def _algorithm_2(
    problem: Instance, points: Array, weights: Array, alpha: float, lam: float, clip: float, sigma: float
) -> dict[str, Sides]:
    """Every displayed inequality between eq:main-smooth and eq:onestep3, for x_t with the given law.

    Q_t: no sample is clipped at step t. Expectations are over x_t, u_t and z_t jointly.
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
        """E[values | Q_t]."""
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
def _second_algorithm(count: int) -> dict[str, tuple[float, float]]:
    rng = np.random.default_rng(42)
    worst: dict[str, tuple[float, float]] = {}
    for k in range(count):
        problem, x0 = random_instance(rng, 4, 2, wave=k % 2 == 0), 1.5 * rng.standard_normal(2)
        ell = float(np.linalg.norm(problem.curvature, 2))
        r = float(np.trace(problem.curvature)) / ell
        for alpha in (1 / (4 * ell * (r + 2)), 1 / ell):
            for lam, share, sigma in ((0.05, 0.6, 0.3), (0.6, 0.95, 0.05), (0.2, 1.2, 1.0)):
                clip = share * problem.lipschitz
                fixed = x0[None], np.ones(1)
                for points, weights in (fixed, _state(problem, x0, alpha, lam, clip, sigma)):
                    for name, sides in _algorithm_2(problem, points, weights, alpha, lam, clip, sigma).items():
                        gap, ratio = worst.get(name, (-math.inf, -math.inf))
                        share_ = sides.left / sides.right if sides.right > 0 else -math.inf
                        worst[name] = max(gap, sides.gap), max(ratio, share_)
    return worst


for _name in ("main-smooth", "total-prob", "grad-quad", "noise-quad", "inner-product", "onestep3"):
    check(f"eq-{_name}")(lambda full, _name=_name: _report(*_second_algorithm(16 if full else 2)[_name]))  # type: ignore[misc]


# --- Runs of several steps ---


@dataclass(frozen=True)
class Trace:
    """Averages over runs: E|grad F(x_t)|^2 and E F(x_t) with standard errors, t = 0..T; clipping; E F changes on Q."""

    square: Array
    square_error: Array
    loss: Array
    loss_error: Array
    clipped: float
    kept_change: Array


def simulate(
    problem: Instance, x0: Array, *, algorithm: int, runs: int, steps: int, alpha: float, lam: float, clip: float,
    sigma: float, seed: int,
) -> Trace:  # fmt: skip
    """Algorithm 1 or 2 from x0, `runs` times."""
    rng, d = np.random.default_rng(seed), problem.d
    x = np.broadcast_to(x0, (runs, d)).copy()
    kept = np.ones(runs, dtype=bool)
    squares, losses = [], []
    for t in range(steps + 1):
        squares.append(np.sum(problem.gradient(x) ** 2, axis=1))
        losses.append(problem.loss(x))
        if t == steps:
            break
        z = rng.standard_normal((runs, d))
        u = math.sqrt(d) * z / np.linalg.norm(z, axis=1, keepdims=True)
        difference = problem.differences(x, u, lam)
        limit = clip / math.sqrt(d) if algorithm == 1 else clip
        kept &= np.all(np.abs(difference) <= limit * (1 + 1e-12), axis=1)
        mean = np.clip(difference, -limit, limit).mean(axis=1)
        if algorithm == 1:
            x = x - alpha * (mean[:, None] * u + sigma * rng.standard_normal((runs, d)))
        else:
            x = x - alpha * (mean + sigma * rng.standard_normal(runs))[:, None] * u
    square, loss = np.array(squares), np.array(losses)
    root = math.sqrt(runs)
    changes = (loss[:-1] - loss[1:]) * kept
    return Trace(
        square.mean(axis=1),
        square.std(axis=1) / root,
        loss.mean(axis=1),
        loss.std(axis=1) / root,
        1 - float(kept.mean()),
        changes.mean(axis=1),
    )


def _noise(problem: Instance, clip: float, steps: int, epsilon: float, delta: float) -> float:
    return math.sqrt(steps) * 2 * clip / problem.n / lemma_gdp(epsilon, delta)


def _budget(problem: Instance, steps: int, growth: float, trace: float, algorithm: int) -> float:
    """The epsilon at which the theorem's T is `steps` (delta = 0.01), by bisection."""
    low, high = 1e-3, 1e5
    for _ in range(200):
        middle = math.sqrt(low * high)
        log = math.log(math.e + middle / 0.01)
        scale = {1: problem.n, 2: problem.n * growth / problem.d, 3: problem.n * growth / 4}[algorithm]
        low, high = (middle, high) if scale * middle / math.sqrt(trace * log) < steps else (low, middle)
    return high


def _proof_bound(theorem: int, full: bool) -> Finding:
    """E|grad F(x_tau)|^2 <= the un-substituted bound; x_tau averaged exactly over tau, 20,000 runs each (seeds 43...).

    At the prescribed step size with T = 12 at its prescribed privacy, and away: half and 1.7 times the step size,
    T = 3, a quarter of the budget. The mean must not pass the bound by 5 standard errors. Bounded losses with known
    minimum (n = d = 3).
    """
    rng, worst, ratios = np.random.default_rng(43 + theorem), -math.inf, []
    runs = 100_000 if full else 20_000
    for k in range(2):
        problem, x0 = random_instance(rng, 3, 3, wave=True), rng.standard_normal(3)
        d, r, h = 3, problem.r, float(np.linalg.norm(problem.curvature, 2))
        ell, lipschitz, bound_b = problem.smoothness, problem.lipschitz, problem.bound
        growth, trace = (d, d) if theorem == 1 else (r + 2, r)
        gap = float(problem.loss(x0)) - problem.minimum()
        for share, steps, budget in ((1.0, 12, 1.0), (0.5, 3, 0.25), (1.7, 12, 1.0)):
            alpha = share / (4 * h * growth)
            epsilon = _budget(problem, steps, growth, trace, theorem) * budget
            c0 = math.sqrt(8 * math.log(2 * math.sqrt(2 * math.pi) * 3 * steps * 20)) * lipschitz
            clip = lipschitz * d if theorem < 3 else (math.sqrt(2) * c0 if k == 0 else 0.8 * lipschitz)
            lam = 0.1 * lipschitz / (ell * d)
            sigma = _noise(problem, clip, steps, epsilon, 0.01)
            run = simulate(problem, x0, algorithm=2 if theorem == 3 else 1, runs=runs, steps=steps, alpha=alpha,
                           lam=lam, clip=clip, sigma=sigma, seed=60 + k)  # fmt: skip
            error = (h * lam) ** 2 * d**3 / 4 + h * alpha * trace * sigma**2 / 2
            if theorem == 3:
                error += (lipschitz**2 * d + 2 * bound_b / alpha) * run.clipped
            right = 2 / (1 - 2 * growth * h * alpha) * (gap / (alpha * steps) + error)
            left = float(np.mean(run.square[:-1]))
            spread = float(np.mean(run.square_error[:-1]))
            worst = max(worst, (left - right) / spread if spread > 0 else (left - right) * math.inf)
            ratios.append(left / right)
    return Finding(worst < 5, numbers={"largest measured/bound": max(ratios), "largest z-score": worst})


for _theorem in (1, 2, 3):
    check(f"thm{_theorem}-proof-bound")(lambda full, _theorem=_theorem: _proof_bound(_theorem, full))  # type: ignore[misc]


@check("eq-onestep3b")
def _(full: bool) -> Finding:
    """eq:onestep3b at every t of 4-step runs with clipping in 0.1% to 90% of runs; 100,000 runs, d = n = 3, seed 47.

    Q: no clipping in the whole run. The right side uses the runs' own P(not Q) and E[(F_t - F_{t+1}) 1_Q].
    """
    rng, worst, ratios, shares = np.random.default_rng(47), -math.inf, [], []
    for k in range(3):
        problem, x0 = random_instance(rng, 3, 3, wave=True), rng.standard_normal(3)
        ell, r, lipschitz = float(np.linalg.norm(problem.curvature, 2)), problem.r, problem.lipschitz
        alpha = 1 / (4 * ell * (r + 2))
        for share in (0.6, 1.0, 1.4):
            sigma, lam = 0.3, 0.1
            trace = simulate(problem, x0, algorithm=2, runs=200_000 if full else 50_000, steps=4, alpha=alpha, lam=lam,
                             clip=share * lipschitz, sigma=sigma, seed=70 + k)  # fmt: skip
            shares.append(trace.clipped)
            right = 4 * trace.kept_change / alpha + 2 * ell * alpha * r * sigma**2 + ell**2 * 27 * lam**2
            right = right + (4 * lipschitz**2 * 3 + 8 * problem.bound / alpha) * trace.clipped
            left = trace.square[:-1]
            worst = max(worst, float(np.max((left - right) / (trace.square_error[:-1] + 4 / alpha * 2e-3))))
            ratios.append(float(np.max(left / right)))
    numbers = {"largest left/right": max(ratios), "P(clipping), least": min(shares), "P(clipping), most": max(shares)}
    return Finding(worst < 5, numbers=numbers)


@check("pl-recursion")
def _(full: bool) -> Finding:
    """The PL recursions with the largest mu for which E|grad F(x_t)|^2 >= 2 mu E[F(x_t) - F*] along the runs.

    That inequality in expectation is all the proofs use. Convex pseudo-Huber sums (n = d = 3), 12 steps, three
    algorithms' constants, 20,000 runs; the last iterate must not pass the bound by 5 standard errors.
    """
    rng, worst, ratios = np.random.default_rng(48), -math.inf, []
    for k in range(3):
        problem, x0 = random_instance(rng, 3, 3, wave=False), 2 * rng.standard_normal(3)
        ell, r, lipschitz, d = float(np.linalg.norm(problem.curvature, 2)), problem.r, problem.lipschitz, 3
        for algorithm, growth, trace in ((1, d, d), (1, r + 2, r), (2, r + 2, r)):
            alpha, lam, sigma = 1 / (4 * ell * growth), 0.05, 0.1
            clip = lipschitz * d if algorithm == 1 else lipschitz * math.sqrt(d)
            run = simulate(problem, x0, algorithm=algorithm, runs=100_000 if full else 20_000, steps=12, alpha=alpha,
                           lam=lam, clip=clip, sigma=sigma, seed=80 + k)  # fmt: skip
            gaps = run.loss - problem.minimum()
            pl = float(np.min(run.square[:-1] / (2 * gaps[:-1])))
            right = math.exp(-pl * alpha * 12 / 2) * gaps[0] + ell**2 * lam**2 * d**3 / (2 * pl)
            right += ell * alpha * trace * sigma**2 / pl
            worst = max(worst, float((gaps[-1] - right) / run.loss_error[-1]))
            ratios.append(float(gaps[-1] / right))
    return Finding(worst < 5, numbers={"largest measured/bound": max(ratios), "largest z-score": worst})
