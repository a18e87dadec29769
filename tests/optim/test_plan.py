"""Plans: for a target, from every prescription, and through JSON."""

import numpy as np
import pytest

from dpzero_theory.privacy.noise import SeededNoise
from tests.optim.small import plan


def test_noise_has_the_law_of_the_plan() -> None:
    """4,000 draws: variance within 10% (4.5 standard errors) of sigma^2, of 2 b^2 for Laplace."""
    for noise, factor in (("gaussian", 1.0), ("laplace", 2.0)):
        chosen = plan(noise=noise)
        source = SeededNoise(4)
        draws = np.array([chosen.noisy(np.zeros(1, np.int64), source)[0] for _ in range(4000)])
        assert np.mean(draws.astype(float) ** 2) / chosen.scale**2 == pytest.approx(factor, rel=0.1)
