"""Tests that the bound common to several points is above each point's Hessian, and of gradient descent."""

import pytest
import torch

from dpzero_theory.curvature.region import common
from dpzero_theory.curvature.spectrum import Effort, measure_spectrum
from tests.curvature.small import contains, full_hessian, generator, nearby, small_network

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""


@pytest.mark.parametrize("power", [2, 4])
def test_the_common_bound_dominates_every_point(power: int) -> None:
    objective = small_network(10)
    points = [nearby(objective.start, 3.0, generator(seed)) for seed in range(2)]
    hessians = [full_hessian(objective, x) for x in points]
    values, vectors = torch.linalg.eigh(sum(torch.linalg.matrix_power(a, power) for a in hessians))
    bound = (vectors * values.clamp(min=0) ** (1 / power)) @ vectors.T
    for a in hessians:
        for sign in (1, -1):
            assert float(torch.linalg.eigvalsh(bound - sign * a)[0]) >= -1e-9
    operator = common([objective.hessian(x) for x in points], power)
    found = measure_spectrum(operator, generator(), Effort(search=30, probes=6, steps=8), root=power)
    assert contains(found.absolute_trace, float(bound.trace()))
    assert found.norm.low == pytest.approx(float(values[-1]) ** (1 / power), rel=1e-9)
    with pytest.raises(ValueError, match="power must be even; got 3"):
        common([operator], 3)
