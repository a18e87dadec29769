"""Tests of the shares of clipped slopes, which are counted, and computed by the law of the sphere."""

import math

import numpy as np
import pytest

from dpzero_theory import sphere
from dpzero_theory.curvature.slopes import clipped_shares
from tests.curvature.small import generator, small_network

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""


def test_clipped_shares_follow_the_law_of_the_sphere() -> None:
    """The shares of clipped slopes follow the law of the sphere, within 4 standard errors.

    They are counted over directions made of Gaussians, independently of the law's own formula.
    """
    objective = small_network()
    norms = objective.gradient_norms(objective.start)
    clips = [0.5 * float(norms.max()), float(norms.max()), 2 * float(norms.max())]
    found, table = clipped_shares(
        lambda u: objective.projections(objective.start, u), norms, objective.start, clips, 600, generator()
    )
    assert table.shape == (600, 30)
    for item in found:
        error = float((table.abs() >= item.clip).double().mean(dim=1).std()) / math.sqrt(600)
        assert item.law == pytest.approx(item.measured.estimate, abs=4 * error)
        by_hand = np.mean([sphere.sphere_tail(item.clip, float(norm), objective.d) for norm in norms])
        assert item.law == pytest.approx(by_hand)
    assert found[0].law > found[1].law > found[2].law > 0
