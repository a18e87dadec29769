"""Check the proofs' inequalities for whole runs (Theorems 1 to 3, Corollary 1) by Monte Carlo, with sample sizes,
seeds and thresholds that are fixed here."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from paper_checks.checks.divergence import lemma_gdp
from paper_checks.checks.instances import Array, Instance, on_sphere, random_instance
from paper_checks.checks.sphere import exact_tail
from paper_checks.registry import Finding, check


@dataclass(frozen=True)
class Trace:
    """Averages over simulated runs with iterates x_0, ..., x_T.

    Attributes:
        square: mean of |grad F(x_t)|^2 for each t from 0 to T.
        square_error: the standard error of `square`.
        loss: mean of F(x_t) for each t from 0 to T.
        loss_error: the standard error of `loss`.
        clipped: the share of runs in which some sample was clipped.
        kept_change: mean over all runs of F(x_t) - F(x_{t+1}), which counts as 0 in runs with clipping, for t below T.
    """

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
    """Make `runs` runs of `steps` steps of Algorithm 1 or 2 (`algorithm`) from x0 and average over them. alpha is the
    step size, lam the smoothing, and sigma the noise's standard deviation. `problem` has the losses. In Algorithm 2
    clip is the bound on the absolute value of a sample's difference quotient, in Algorithm 1 on the norm of that
    quotient times the direction, which has norm sqrt(d). `seed` draws directions and noise."""
    rng, d = np.random.default_rng(seed), problem.d
    x = np.broadcast_to(x0, (runs, d)).copy()
    kept = np.ones(runs, dtype=bool)
    squares, losses = [], []
    for t in range(steps + 1):
        squares.append(np.sum(problem.gradient(x) ** 2, axis=1))
        losses.append(problem.loss(x))
        if t == steps:
            break
        u = on_sphere(rng.standard_normal((runs, d)))
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
    """Return the epsilon at which the number of steps T that Theorem 1, 2 or 3 (`algorithm`) prescribes is `steps`, at
    delta = 0.01. `growth` is d for Theorem 1 and r + 2 for the others, and `trace` is d for Theorem 1 and r for the
    others. `problem` has the number n of samples and the dimension d."""
    scale = {1: problem.n, 2: problem.n * growth / problem.d, 3: problem.n * growth / 4}[algorithm]

    def excess(epsilon: float) -> float:
        return scale * epsilon / math.sqrt(trace * math.log(math.e + epsilon / 0.01)) - steps

    return float(brentq(excess, 1e-3, 1e5, rtol=1e-15))


def _proof_bound(theorem: int, full: bool) -> Finding:
    """Check that E|grad F(x_tau)|^2 is below the bound of Theorem 1, 2 or 3 before its parameters are substituted,
    where x_tau is a random iterate.

    There are 20,000 runs (100,000 if `full`) on bounded losses with a known minimum (n = d = 3) at each of three
    settings: the prescribed step size, T = 12 steps and epsilon; half the step size, T = 3 and a quarter of epsilon;
    and 1.7 times the step size. The mean over all iterates must not pass the bound by 5 standard errors.
    """
    rng, worst, ratios = np.random.default_rng(43 + theorem), -math.inf, []
    runs = 100_000 if full else 20_000
    for k in range(2):
        problem, x0 = random_instance(rng, 3, 3, wave=True), rng.standard_normal(3)
        d, r, h = 3, problem.r, float(np.linalg.norm(problem.curvature, 2))
        ell, lipschitz, bound_b = problem.smoothness, problem.lipschitz, problem.bound
        growth, trace = (d, d) if theorem == 1 else (r + 2, r)
        gap = float(problem.loss(x0)) - problem.minimum()
        for share, steps, part in ((1.0, 12, 1.0), (0.5, 3, 0.25), (1.7, 12, 1.0)):
            alpha = share / (4 * h * growth)
            epsilon = _budget(problem, steps, growth, trace, theorem) * part
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


@check("clip-union-bound")
def _(full: bool) -> Finding:
    rng, worst, runs, steps, n = np.random.default_rng(49), -math.inf, 20_000, 4, 3
    shares = []
    for k in range(2):
        problem, x0 = random_instance(rng, n, 3, wave=True), rng.standard_normal(3)
        lipschitz, lam = problem.lipschitz, 0.05
        for bound in (1.0, 0.5, 0.1):
            threshold = math.sqrt(8 * math.log(2 * math.sqrt(2 * math.pi) * n * steps / bound)) * lipschitz
            trace = simulate(problem, x0, algorithm=2, runs=runs, steps=steps, alpha=0.2, lam=lam,
                             clip=threshold + problem.smoothness * lam * 3 / 2, sigma=0.3, seed=90 + k)  # fmt: skip
            worst = max(worst, (trace.clipped - bound) / math.sqrt(bound * max(1 - bound, 1e-3) / runs))
    for c in np.linspace(1, 5, 9).tolist():
        chance = exact_tail(c, 200)
        shares.append(chance / (2 * math.sqrt(2 * math.pi) * math.exp(-(c**2) / 8)))
    holds = worst < 5 and max(shares) <= 1
    return Finding(holds, numbers={"largest exact/bound, one step": max(shares), "largest z-score": worst})
