"""Tests of the estimates from differences of losses, without derivatives, against eigenvalues of the full Hessian."""

import numpy as np
import pytest
import torch

from dpzero_theory.check import PreconditionError
from dpzero_theory.curvature.forward import measure_forward, problem_file
from dpzero_theory.curvature.objective import Objective
from tests.curvature.small import Weights, contains, full_hessian, generator, small_network

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""


def test_differences_of_losses_measure_trace_and_frobenius_norm() -> None:
    objective = small_network()
    values = torch.linalg.eigvalsh(full_hessian(objective, objective.start))
    found = measure_forward(objective.losses, objective.start, 1e-3, 150, generator())
    assert contains(found.trace, float(values.sum()))
    assert contains(found.squared_frobenius, float((values**2).sum()))
    assert found.rank.low <= float(values.abs().sum() / values.abs().max())
    norms = objective.gradient_norms(objective.start).numpy()
    assert found.gradient_norms == pytest.approx(norms, rel=0.4)
    assert np.mean(found.gradient_norms**2) == pytest.approx(np.mean(norms**2), rel=0.2)
    file = problem_file(found, "public")
    assert file.constants["smoothness"] >= float(values.abs().max())
    assert set(file.constants) == {"d", "r", "lipschitz", "smoothness", "gap", "loss_bound"}


def test_differences_that_see_nothing_are_refused() -> None:
    flat = Objective(
        Weights(np.zeros(3)).eval(), lambda module, batch: (batch @ module.x) * 0, [torch.ones(2, 3).double()]
    )
    with pytest.raises(PreconditionError, match="curvature must be visible"):
        measure_forward(flat.losses, flat.start, 1e-3, 2, generator())
