"""Tests of the reference versions of Algorithms 1 and 2 and DP-GD.

They are compared with plain loops over samples and coordinates.
"""

import math

import numpy as np
import pytest

from benchmarks.problems.lipschitz import LogisticRegression, PseudoHuber
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.sphere import DIRECTIONS
from dpzero_theory.synthetic.problems import Quadratic, paper_spectrum
from tests.optim.reference import dpgd, dpgd_0th, dpzero

N, D, T = 7, 4, 12


class Replay:
    """A noise source that draws from a seeded one and keeps the same numbers as plain floats in `values`."""

    def __init__(self, seed):
        self.source, self.values = SeededNoise(seed), []

    def gaussian(self, std, size=None):
        drawn = self.source.gaussian(std, size)
        self.values.append(drawn)
        return drawn


def problems():
    rng = np.random.default_rng(5)
    data, spectrum = rng.normal(1, 1, (N, D)), paper_spectrum("b", D)
    labels = np.where(rng.random(N) < 0.5, -1.0, 1.0)
    return [Quadratic(data, spectrum), PseudoHuber(data, spectrum), LogisticRegression(data, labels)]


def literal_run(algorithm, problem, x0, alpha, smoothing, clip, directions, noise):
    """Runs the update that the paper displays, one sample and one coordinate at a time, and returns all iterates."""
    x, path = list(x0), [list(x0)]
    for t, z in enumerate(noise):
        total = [0.0] * problem.d
        u = None if directions is None else directions[t]
        if u is not None:
            plus = problem.losses(np.array([a + smoothing * b for a, b in zip(x, u, strict=True)]))
            minus = problem.losses(np.array([a - smoothing * b for a, b in zip(x, u, strict=True)]))
        gradients = problem.gradients(np.array(x))
        scalar = 0.0
        for i in range(problem.n):
            if algorithm is dpgd:
                g = [float(v) for v in gradients[i]]
            else:
                s = (float(plus[i]) - float(minus[i])) / (2 * smoothing)
                scalar += s * min(1.0, clip / abs(s)) / problem.n
                g = [s * float(v) for v in u]
            factor = min(1.0, clip / math.hypot(*g))
            total = [a + factor * b / problem.n for a, b in zip(total, g, strict=True)]
        if algorithm is dpzero:
            x = [a - alpha * (scalar + z) * float(b) for a, b in zip(x, u, strict=True)]
        else:
            x = [a - alpha * (b + c) for a, b, c in zip(x, total, z, strict=True)]
        path.append(x)
    return np.array(path)


@pytest.mark.parametrize("clip", [0.5])
@pytest.mark.parametrize("problem", problems(), ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("algorithm", [dpzero, dpgd_0th, dpgd])
def test_line_by_line(algorithm, problem, clip):
    rng, noise = np.random.default_rng(11), Replay(3)
    x0, smoothing = rng.standard_normal(D), 1e-3
    directions = None if algorithm is dpgd else DIRECTIONS["sphere"].sample(rng, T, D)
    extra = {} if algorithm is dpgd else {"smoothing": smoothing, "directions": directions}
    run = algorithm(problem, x0, steps=T, step_size=0.1, clip=clip, noise_std=0.2, noise=noise, **extra)
    expected = literal_run(algorithm, problem, x0, 0.1, smoothing, clip, directions, noise.values)
    assert len(noise.values) == T
    assert all(np.shape(z) == (() if algorithm is dpzero else (D,)) for z in noise.values)
    assert run.trajectory.shape == (T + 1, D)
    np.testing.assert_allclose(run.trajectory, expected, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(run.last, run.trajectory[-1])
    np.testing.assert_array_equal(run.x_tau, run.trajectory[run.tau])


@pytest.mark.parametrize(("problem", "clip"), list(zip(problems(), [0.05, 1.0, 50.0], strict=True)))
def test_several_directions_line_by_line(problem, clip):
    """It has one norm over a record's K differences, K scalar noises, and the mean of K moves from one point."""
    several, smoothing, noise = 3, 1e-3, Replay(3)
    directions = DIRECTIONS["sphere"].sample(np.random.default_rng(11), T * several, D)
    settings = {"steps": T, "step_size": 0.1, "clip": clip, "noise_std": 0.2, "smoothing": smoothing}
    run = dpzero(problem, np.ones(D), **settings, noise=noise, directions=directions, directions_per_step=several)
    x, path, z = [1.0] * D, [[1.0] * D], iter(noise.values)
    for t in range(T):
        us = directions[t * several : (t + 1) * several]
        shifted = [[problem.losses(np.array(x) + sign * smoothing * u) for sign in (1, -1)] for u in us]
        sums = [0.0] * several
        for i in range(N):
            s = [(float(plus[i]) - float(minus[i])) / (2 * smoothing) for plus, minus in shifted]
            factor = min(1.0, clip / math.hypot(*s))
            sums = [a + factor * b for a, b in zip(sums, s, strict=True)]
        moves = [0.1 / several * (total / N + float(next(z))) for total in sums]
        x = [a - sum(m * float(u[j]) for m, u in zip(moves, us, strict=True)) for j, a in enumerate(x)]
        path.append(x)
    assert len(noise.values) == T * several
    np.testing.assert_allclose(run.trajectory, path, rtol=0, atol=1e-11)
