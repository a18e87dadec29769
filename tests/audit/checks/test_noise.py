"""Tests of the audit's check of noise that repeats; loops with other faults are tested in `test_zoo`."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpzero_theory.audit.checks.noise import independence
from dpzero_theory.audit.noise import NoiseSample
from tests.audit.small import audit, named, one_of_each


@pytest.mark.parametrize(("equal", "status"), [(1, "held"), (12, "violated")])
def test_one_number_that_comes_again_is_chance_and_many_are_not(equal: int, status: str) -> None:
    """One number of noise that repeats is accepted as chance, and many are reported.

    Among 24 pairs of independent Gaussians some pair agrees to six digits in one of 60,000 samples.
    """
    values = np.random.default_rng(5).normal(size=(24, 6, 1))
    values[:equal, 5] = -values[:equal, 0]
    lab: Any = SimpleNamespace(noise=SimpleNamespace(sample=NoiseSample("as claimed", values)))
    assert independence(lab, 1e-7).status == status


def test_noise_that_is_computed_from_weights_may_be_a_step_size() -> None:
    """What follows a step size of its own looks like other noise where only weights are seen; the report says so."""
    [specimen] = named("HalfNoiseInWeights")
    assert "follows a schedule, return `releases`" in audit(specimen, "noise-size")["noise-size"].mend
    assert "schedule" not in audit(*one_of_each("noise-size"), "noise-size")["noise-size"].mend
