"""Tests of the lower bound: the hardest loss of its family meets the problem's constants.

Its drift is what clipping keeps of the gradient, and its bound is below the certificate.
"""

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.problems.hardest import hardest
from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import prescribe

GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)
AT: dict[str, Any] = {"step_size": 0.02, "steps": 5000, "clip": 2.0, "noise_std": 0.1}


@pytest.mark.parametrize(("k", "steps"), [(1, 10**5), (16, 10**4), (256, 10**5)])
def test_the_limit_is_below_the_certificate_and_near_it(k: int, steps: int) -> None:
    problem = Problem(n=10_000, d=2000, r=8.178, lipschitz=3.0, smoothness=0.5, gap=18.0)
    p = prescribe(problem, GDP, max_steps=steps, direction="gaussian", directions_per_step=k)
    at = {name: getattr(p, name) for name in ("step_size", "steps", "clip", "noise_std", "directions_per_step")}
    h = hardest(problem, **at)
    assert 0.75 * p.bound < h.bound < p.bound
    assert math.hypot(h.forward, h.saturation) == pytest.approx(3.0)
    assert h.backward <= h.forward
    assert h.forward / h.width <= 0.5 * (1 + 1e-12)
    assert h.slope / h.width + h.curved * h.curvature == pytest.approx(8.178 * 0.5)
    assert h.slope * (h.start - h.width / 2) == pytest.approx(18.0)
    assert h.slope == pytest.approx(h.share * h.forward - (1 - h.share) * h.backward)
    assert h.start - h.width == pytest.approx(p.step_size * steps * h.drift)
    longer = hardest(problem, **at, lengthened=3.0, coordinates=90)
    assert longer.slope < h.slope
    assert longer.curved == 90


def test_the_drift_is_the_clipped_mean_by_sampling() -> None:
    """The drift of the hardest loss is the clipped mean along its slope, by sampling.

    It is tested where ||grad psi|| is 0 or rho, within 4.5 standard errors, a threshold fixed beforehand.
    """
    h = hardest(PAPER, **{**AT, "clip": 1.2})
    y = np.random.default_rng(0).standard_normal((400_000, 2))
    for inward, sign in ((0.0, 0), (h.saturation, 1)):
        parts = [(h.share, h.forward), (1 - h.share, -h.backward)]
        sample = sum(w * y[:, 0] * np.clip(a * y[:, 0] + inward * y[:, 1], -1.2, 1.2) for w, a in parts)
        error = float(np.std(sample)) / math.sqrt(len(y))
        assert float(np.mean(sample)) <= h.drift + 4.5 * error
        if sign == 0:
            assert float(np.mean(sample)) >= h.drift - 0.02


def test_refused() -> None:
    with pytest.raises(PreconditionError, match="gap must be below"):
        hardest(PAPER, **{**AT, "step_size": 1e-5, "steps": 10})
    for name, value in (("saturation", 1.0), ("lengthened", -1), ("coordinates", 0), ("clip", 0)):
        with pytest.raises(ValueError, match=name):
            hardest(PAPER, **{**AT, name: value})
