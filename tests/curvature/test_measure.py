"""Tests of the measured constants of a network against its full Hessians, and of private data."""

import pytest
import torch

from dpzero_theory.check import PreconditionError
from dpzero_theory.curvature import tasks
from dpzero_theory.curvature.measure import MeasureSettings, measure
from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.region import descend
from dpzero_theory.curvature.spectrum import Effort
from tests.curvature.small import EFFORT, full_hessian, generator, small_network

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""


def test_constants_are_those_of_the_network() -> None:
    objective = small_network(3)
    settings = MeasureSettings(
        points=2,
        path_steps=3,
        effort=EFFORT,
        sample_hessians=3,
        directions=20,
        sample_effort=Effort(search=20, probes=2, steps=4),
    )
    found = measure(objective, generator(), data="public", settings=settings)
    end = descend(objective, objective.start, 3, 1 / found.points[0].spectrum.norm.high)
    assert found.points[1].value == pytest.approx(objective.value(end))
    constants = found.constants()
    largest = max(float(objective.gradient_norms(x).max()) for x in (objective.start, end))
    assert constants["lipschitz"] == pytest.approx(largest)
    exact = max(
        float(
            torch.linalg.matrix_norm(
                full_hessian(Objective(objective._call.module, tasks.cross_entropy, [objective._sample(i)]), x), 2
            )
        )
        for x in (objective.start, end)
        for i in range(3)
    )
    assert constants["smoothness"] == pytest.approx(exact, rel=1e-3)
    assert constants["smoothness"] >= exact * (1 - 1e-9)
    squares = sum(torch.linalg.matrix_power(full_hessian(objective, x), 2) for x in (objective.start, end))
    trace = float(torch.linalg.eigvalsh(squares).clamp(min=0).sqrt().sum())
    assert trace <= constants["r"] * constants["smoothness"] <= 1.3 * trace
    assert constants["gap"] == pytest.approx(objective.value(objective.start))
    assert any("estimates, not bounds" in caveat for caveat in found.caveats())


def test_private_data_is_refused_unless_the_claim_is_given_up() -> None:
    objective = small_network(4)
    with pytest.raises(PreconditionError, match="data must be public or synthetic"):
        measure(objective, generator(), data="private")
    quick = MeasureSettings(points=1, effort=Effort(search=4, probes=2, steps=2), sample_hessians=2, directions=0)
    found = measure(objective, generator(), data="private", spend_no_privacy_claim=True, settings=quick)
    assert "private data" in found.problem_file().caveats[0]
