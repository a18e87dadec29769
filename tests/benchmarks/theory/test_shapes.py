"""The recursion for second moments of runs with directions of another shape, against runs."""

import math

import numpy as np
import pytest

from benchmarks.theory import shapes


def test_second_moments_are_those_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "STEPS", 12)
    rng = np.random.default_rng(0)
    d, runs, variance, step_size = 3, 40_000, 0.3, 0.15
    half = rng.standard_normal((d, d))
    curvature, start, weights = half @ half.T / d, rng.standard_normal(d), rng.standard_normal((d, d))
    height, gradient = shapes.moments(curvature, start, variance, step_size, weights)
    x, total = np.tile(start, (runs, 1)), np.zeros(runs)
    for _ in range(12):
        total += np.sum((x @ weights.T) ** 2, axis=1) / 12
        u = rng.standard_normal((runs, shapes.K, d))
        release = np.einsum("rkd,rd->rk", u, x @ curvature)
        release += math.sqrt(variance * shapes.K) * rng.standard_normal((runs, shapes.K))
        x -= step_size / shapes.K * np.einsum("rkd,rk->rd", u, release)
    ends = np.einsum("rd,de,re->r", x, curvature, x)
    for sample, first, stated in (
        (ends, start @ curvature @ start, height),
        (total, np.sum((weights @ start) ** 2), gradient),
    ):
        assert abs(sample.mean() / first - stated) <= 4.5 * sample.std() / first / math.sqrt(runs)
