"""Tests of the derivatives of a torch module's losses, against the full Hessian, loops and finite differences."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from dpzero_theory.curvature import tasks
from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.region import descend
from tests.curvature.small import full_hessian, generator, nearby, small_network

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""


def test_products_are_those_of_the_full_hessian() -> None:
    objective = small_network()
    x = nearby(objective.start, 1.0, generator())
    exact = full_hessian(objective, x)
    v = torch.randn(objective.d, generator=generator(1), dtype=torch.float64)
    torch.testing.assert_close(objective.hessian(x).apply(v), exact @ v, atol=1e-12, rtol=1e-10)


def test_a_product_with_a_row_of_a_basis_allocates_no_more_than_with_a_vector() -> None:
    """torch copies a tangent that does not lie in memory as its weight does, into as much memory as the weight is a
    view of: here all d weights, once for each weight."""
    objective = small_network()
    hessian, basis = objective.hessian(objective.start), torch.ones(3, objective.d, dtype=torch.float64)

    def allocated(direction: torch.Tensor) -> int:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            hessian.apply(direction)
        return sum(max(0, event.self_cpu_memory_usage) for event in seen.events())

    allocated(basis[1])  # a first product makes what later ones keep
    assert allocated(basis[1]) == allocated(basis[1].clone())


def test_gradients_losses_and_projections() -> None:
    objective = small_network()
    x = objective.start
    loop = []
    module = tasks.mlp_digits(2, 30, 0).module
    for features, labels in objective.batches:
        for a, b in zip(features, labels, strict=True):
            module.zero_grad()
            loss = nn.functional.cross_entropy(module(a[None]), b[None])
            loss.backward()  # type: ignore[no-untyped-call]
            loop.append(torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None]))
    rows = torch.stack(loop)
    torch.testing.assert_close(objective.gradient_norms(x), rows.norm(dim=1))
    torch.testing.assert_close(objective.gradient(x), rows.mean(dim=0))
    u = torch.randn(objective.d, generator=generator(2), dtype=torch.float64)
    torch.testing.assert_close(objective.projections(x, u), rows @ u)
    h = 1e-5
    differences = (objective.losses(x + h * u) - objective.losses(x - h * u)) / (2 * h)
    torch.testing.assert_close(differences, rows @ u, atol=1e-7, rtol=1e-6)
    assert objective.value(x) == pytest.approx(float(objective.losses(x).mean()))


def test_the_hessian_of_the_mean_is_the_mean_of_the_samples() -> None:
    objective = small_network(8)
    v = torch.randn(objective.d, generator=generator(3), dtype=torch.float64)
    each = [objective.sample_hessian(objective.start, i).apply(v) for i in range(8)]
    torch.testing.assert_close(torch.stack(each).mean(dim=0), objective.hessian(objective.start).apply(v))
    with pytest.raises(IndexError):
        objective.sample_hessian(objective.start, 8)


def test_the_module_is_left_alone_and_frozen_weights_are_not_x() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double().eval()
    module[0].weight.requires_grad_(False)
    batch = (torch.randn(5, 4, generator=generator(), dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1]))
    objective = Objective(module, tasks.cross_entropy, [batch])
    before = {name: p.clone() for name, p in module.named_parameters()}
    assert objective.d == 3 + 6 + 2
    descend(objective, objective.start, 3, 1.0)
    objective.hessian(objective.start).apply(objective.start)
    for name, p in module.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is None


def test_it_refuses_what_would_not_be_per_sample() -> None:
    task = tasks.mlp_digits(3, 10, 0)
    with pytest.raises(ValueError, match=r"losses must have shape \(batch,\) = \[10\]; got \(\)"):
        Objective(task.module, lambda module, batch: tasks.cross_entropy(module, batch).mean(), task.batches)
    with pytest.raises(ValueError, match="module must be in eval mode"):
        Objective(nn.Sequential(nn.Linear(64, 10), nn.Dropout()).double(), task.losses, task.batches)
    with pytest.raises(ValueError, match="batches must hold at least one"):
        Objective(task.module, task.losses, [])
