"""Check the sharpened theorem's certificates on whole runs, for every law of directions, vector noise and Poisson
sampling."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.problems.poisson import prescribe_poisson
from dpzero_theory.check import Array
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.sharp import certificate as sharp
from dpzero_theory.theory.sharp import last_iterate as pl_run
from paper_checks.outcome import EVERY_KIND, KINDS, SEED, STANDARD_ERRORS, Checked, clip_jointly, draw, within
from paper_checks.sharp.steps import sum_quadratic

CHAINS = 24


def runs() -> Checked:
    """In whole runs the mean squared gradient, plus 3 standard errors, is below the certified bound. There are 24
    runs of each law of directions, of Algorithm 1 and of Poisson sampling, on pseudo-Huber losses with d = 12 and n
    = 300."""
    rng, h = np.random.default_rng(SEED + 13), np.arange(1, 13, dtype=float) ** -0.5
    loss = _Huber(rng.standard_normal((300, 12)) + 1, h)
    problem, gdp = Problem(n=300, d=12, r=float(h.sum()), gap=loss.gap), 8.0
    found: dict[str, Prescription] = {
        f"{kind} {k}": sharp.prescribe(problem, gdp, max_steps=steps, direction=kind, directions_per_step=k)
        for k, steps in ((1, 750), (6, 250))
        for kind in EVERY_KIND
        if kind != "frame" or k > 1
    }
    found["vector"] = sharp.prescribe(problem, gdp, max_steps=750, algorithm="dpgd-0th")
    for k in (1, 6):
        found[f"poisson {k}"] = prescribe_poisson(
            problem,
            gdp,
            lambda rate, steps, _: 2 * rate * math.sqrt(steps) / gdp,
            max_evaluations=30 * 750,
            max_steps=750,
            directions_per_step=k,
        )
    return _measured({name: (p, _mean_squares(loss, p, rng)) for name, p in found.items()}, "mean gradient squared")


def unbounded_runs() -> Checked:
    """Section 11 of the sharpened theorem's proof: in whole runs on losses whose gradients no constant of use bounds,
    the mean squared gradient plus 3 standard errors is below the certificate for their second or fourth moment, or
    their mean excess.

    There are 24 runs for each of these and each law of directions, on 400 pseudo-Huber losses whose steepest gradients
    have a Pareto law: the longest is about five times the root mean square.
    """
    rng, h = np.random.default_rng(SEED + 27), np.arange(1, 13, dtype=float) ** -0.5
    widths = 0.3 * (1 + rng.pareto(2.2, 400))
    loss = _Huber(rng.standard_normal((400, 12)) + 1, h, widths)
    level = float(np.quantile(widths, 0.95))
    given: dict[str, dict[str, Any]] = {
        "m = 2": {"gradient_moment": (2.0, float(np.mean(widths**2)))},
        "m = 4": {"gradient_moment": (4.0, float(np.mean(widths**4)))},
        "excess": {"mean_excess": (level, float(np.mean(np.maximum(widths - level, 0))))},
    }
    found = {}
    for (name, bound), kind in itertools.product(given.items(), EVERY_KIND):
        problem = Problem(n=400, d=12, r=float(h.sum()), gap=loss.gap, **bound)
        p = sharp.prescribe(problem, 8.0, max_steps=250, direction=kind, directions_per_step=6)
        found[f"{name} {kind}"] = p, _mean_squares(loss, p, rng)
    return _measured(found, "mean gradient squared, long gradients")


def other_shapes() -> Checked:
    """Section 14 of the sharpened theorem's proof: in whole runs with directions B^(1/2) u the mean of g'B g, g the
    gradient of F, plus 3 standard errors, is below the certificate for B^(1/2) H B^(1/2) and the gradients' norms after
    B^(1/2).

    There are 24 runs for each law of directions and each B = H^power, on pseudo-Huber losses with d = 12.
    """
    rng, h = np.random.default_rng(SEED + 28), np.arange(1, 13, dtype=float) ** -1.0
    loss = _Huber(rng.standard_normal((300, 12)) + 1, h)
    found = {}
    for power, kind in itertools.product((-0.75, 0.5, 1.0), KINDS):
        shape = h**power
        largest = float((shape * h).max())
        problem = Problem(
            n=300,
            d=12,
            r=float((shape * h).sum()) / largest,
            lipschitz=math.sqrt(largest),
            smoothness=largest,
            gap=loss.gap,
        )
        p = sharp.prescribe(problem, 8.0, max_steps=250, direction=kind, directions_per_step=6)
        found[f"H^{power:g} {kind}"] = p, _mean_squares(loss, p, rng, shape)
    return _measured(found, "mean of g'Bg")


def _measured(found: dict[str, tuple[Prescription, Array]], what: str) -> Checked:
    """Return whether the means of several runs, plus 3 standard errors, are below the bounds of their prescriptions."""
    ratios = {
        name: float(total.mean() + 3 * total.std() / math.sqrt(len(total))) / p.bound
        for name, (p, total) in found.items()
    }
    shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return within(max(ratios.values()), 1.0, f"measured {what} over certified: {shown}")


def _mean_squares(loss: "_Huber", p: Prescription, rng: np.random.Generator, shape: Array | float = 1.0) -> Array:
    """Run the prescription p from 0 with directions B^(1/2) u, `CHAINS` times on the loss, and return each run's mean
    of g'B g over its steps, where g is the gradient of the mean loss. `shape` is the diagonal of B, shape (d,) or one
    number for all coordinates."""
    k, (n, d), rate = p.directions_per_step, loss.centers.shape, p.sample_rate
    vector = p.algorithm == "dpgd-0th"
    x, total = np.zeros((CHAINS, d)), np.zeros(CHAINS)
    for _ in range(p.steps):
        total += np.sum(shape * loss.gradient(x) ** 2, axis=1) / p.steps
        directions = draw(p.direction, rng, CHAINS, k, d) * np.sqrt(shape)
        clipped = clip_jointly(loss.differences(x, directions, p.smoothing), p.clip / math.sqrt(d if vector else 1))
        m = (clipped * (rng.random((CHAINS, 1, n)) < rate)).sum(axis=2) / (rate * n)
        noise = p.noise_std * rng.standard_normal((CHAINS, d if vector else k))
        step = (
            (m[:, None, :] @ directions)[:, 0] + noise if vector else ((m + noise)[:, None, :] @ directions)[:, 0] / k
        )
        x = x - p.step_size * step
    return total


def last_iterate() -> Checked:
    """Section 8 of the sharpened theorem's proof: over 4,000 runs on pseudo-Huber losses, the mean of F(x_T) - F* at
    the last iterate x_T is below its certified bound. Runs that leave the ball on which the PL inequality holds count
    as 0, as in the bound."""
    rng = np.random.default_rng(SEED + 12)
    worst, shares = -math.inf, []
    for d, k in ((3, 1), (12, 1), (12, 4)):
        data = 0.3 * rng.standard_normal((15, d)) / math.sqrt(d)
        loss = _Huber(data, np.ones(d))
        best, least = loss.minimum()
        radius = 1.0
        reach = np.sqrt(1 + (radius + np.linalg.norm(data - best, axis=1)) ** 2)
        # the Hessian of f_i is at least I/(1 + |x - x_i|^2)^(3/2), so the mean of reach^-3 is a PL constant where |x -
        # best| <= radius
        pl = float(np.mean(reach**-3.0))
        start = best + 0.5 / math.sqrt(d)
        gap = float(loss.losses(start[None, :]).mean()) - least
        problem = Problem(n=3000, d=d, r=d, gap=gap, pl=pl)
        p = pl_run.prescribe_last_iterate(problem, 0.6, max_steps=400 // k, directions_per_step=k)
        x = np.tile(start, (4000, 1))
        inside = np.ones(4000, dtype=bool)
        for _ in range(p.steps):
            inside &= np.linalg.norm(x - best, axis=1) <= radius
            directions = draw("sphere", rng, 4000, k, d)
            m = clip_jointly(loss.differences(x, directions, p.smoothing), p.clip).mean(axis=2)
            noise = p.noise_std * rng.standard_normal((4000, k))
            x = x - p.step_size * ((m + noise)[:, None, :] @ directions)[:, 0] / k
        final = (loss.losses(x).mean(axis=1) - least) * inside
        error = float(final.std()) / math.sqrt(4000)
        worst = max(worst, (float(final.mean()) - p.bound) / error)
        shares.append(float(final.mean()) / p.bound)
    text = (
        f"last iterate under PL, measured over certified {', '.join(f'{share:.2f}' for share in shares)}: violation (z)"
    )
    return within(worst, STANDARD_ERRORS, text)


@dataclass(frozen=True)
class _Huber:
    """The losses w_i^2 sqrt(1 + (x - x_i)' A (x - x_i)/w_i^2) with diagonal A of norm 1, evaluated at many points x at
    once. `centers` has the x_i as rows, `spectrum` is the diagonal of A and `widths` are the w_i. A sample's gradient
    is shorter than w_i, and its curvature is at most A."""

    centers: Array
    spectrum: Array
    widths: Array | float = 1.0

    def losses(self, points: Array) -> Array:
        """Return each of n samples' loss at each of m points, shape (m, n); `points` has shape (m, d)."""
        ones = np.ones(len(self.centers))
        square = np.square(self.widths)
        values: Array = square * np.sqrt(1 + 2 * sum_quadratic(points, self.centers, ones, self.spectrum) / square)
        return values

    def gradient(self, points: Array) -> Array:
        """Return the gradient of the mean loss at each of m points, shape (m, d), as `points` is."""
        weights = np.square(self.widths) / self.losses(points)
        mean: Array = self.spectrum * (
            points * weights.mean(axis=1)[:, None] - weights @ self.centers / len(self.centers)
        )
        return mean

    def differences(self, x: Array, directions: Array, smoothing: float) -> Array:
        """Return each sample's central differences, shape (m, K, n), at the points x, shape (m, d), along K directions
        of each, shape (m, K, d)."""
        m, k, d = directions.shape
        points, moved = np.repeat(x, k, axis=0), smoothing * directions.reshape(m * k, d)
        rise = (self.losses(points + moved) - self.losses(points - moved)) / (2 * smoothing)
        return rise.reshape(m, k, -1)

    @property
    def gap(self) -> float:
        """How far the mean loss at 0 is above its minimum."""
        return float(self.losses(np.zeros((1, len(self.spectrum)))).mean()) - self.minimum()[1]

    def minimum(self) -> tuple[Array, float]:
        """Return the minimiser of the mean loss, found by gradient descent, and the mean loss there."""
        best = np.zeros((1, self.centers.shape[1]))
        for _ in range(3000):
            before, best = best, best - self.gradient(best)
            if np.array_equal(before, best):
                break
        return best[0], float(self.losses(best).mean())
