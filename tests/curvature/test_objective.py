"""Derivatives of a torch module against the full Hessian, loops and finite differences; regions; closed forms."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from dpzero_theory import sphere
from dpzero_theory.check import PreconditionError
from dpzero_theory.curvature import tasks
from dpzero_theory.curvature.forward import measure_forward, problem_file
from dpzero_theory.curvature.glm import linear_model, softmax_model
from dpzero_theory.curvature.measure import Settings, measure
from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.region import common, descend, nearby
from dpzero_theory.curvature.slopes import clipped_shares
from dpzero_theory.curvature.spectrum import Effort, measure_spectrum
from dpzero_theory.synthetic.data import gaussian_data
from dpzero_theory.synthetic.problems import LogisticRegression, PseudoHuber, Quadratic, paper_spectrum

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""torch's own, from its rules for forward differentiation."""

EFFORT = Effort(search=30, probes=12, steps=16)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_network(samples: int = 30) -> Objective:
    """64 - 2 - 10: d = 160, in batches of 20 and the rest."""
    task = tasks.mlp_digits(2, samples, 0)
    features, labels = task.batches[0]
    parts = list(zip(torch.split(features, 20), torch.split(labels, 20), strict=True))
    return Objective(task.module, task.losses, parts)


def full_hessian(objective: Objective, x: torch.Tensor) -> torch.Tensor:
    """By torch's double backward on the flat vector: another code path than forward over reverse."""
    call = objective._call

    def value(at: torch.Tensor) -> torch.Tensor:
        weights = objective.unflatten(at)
        return (
            sum((functional_call(call, weights, (batch,)).sum() for batch in objective.batches), torch.zeros(()))
            / objective.n
        )

    return torch.autograd.functional.hessian(value, x)  # type: ignore[no-untyped-call, no-any-return]


class Weights(nn.Module):
    """A bare vector as a module."""

    def __init__(self, start: np.ndarray) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.as_tensor(start))


def quadratic_losses(spectrum: torch.Tensor):  # type: ignore[no-untyped-def]
    return lambda module, points: 0.5 * ((module.x - points) ** 2 * spectrum).sum(dim=1)


def huber_losses(spectrum: torch.Tensor):  # type: ignore[no-untyped-def]
    return lambda module, points: (1 + ((module.x - points) ** 2 * spectrum).sum(dim=1)).sqrt() - 1


def logistic_losses(module: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return nn.functional.softplus(-(rows @ module.x))


def test_products_are_those_of_the_full_hessian() -> None:
    objective = small_network()
    x = nearby(objective.start, 1.0, generator())
    exact = full_hessian(objective, x)
    v = torch.randn(objective.d, generator=generator(1), dtype=torch.float64)
    torch.testing.assert_close(objective.hessian(x).apply(v), exact @ v, atol=1e-12, rtol=1e-10)


def test_a_small_network_is_measured_within_its_intervals() -> None:
    """Norm, traces and rank of an indefinite Hessian beside its eigenvalues."""
    objective = small_network()
    values = torch.linalg.eigvalsh(full_hessian(objective, objective.start))
    assert values.min() < -0.01
    found = measure_spectrum(objective.hessian(objective.start), generator(), EFFORT)
    absolute = float(values.abs().sum())
    assert found.norm.low == pytest.approx(float(values.abs().max()), rel=1e-9)
    assert found.trace.contains(float(values.sum()))
    assert found.absolute_trace.contains(absolute)
    assert found.absolute_trace.estimate == pytest.approx(absolute, rel=0.05)
    assert found.rank.contains(absolute / float(values.abs().max()))


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


def test_one_by_one_gradients_are_those_of_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = small_network()
    together = objective.gradient_norms(objective.start)
    monkeypatch.setattr("dpzero_theory.curvature.objective.VMAP_NUMBERS", 1)
    torch.testing.assert_close(objective.gradient_norms(objective.start), together)


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


def test_tied_weights_count_once() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double().eval()
    module[1].weight = module[0].weight
    batch = (torch.ones(2, 4, dtype=torch.float64), torch.tensor([0, 1]))
    assert Objective(module, tasks.cross_entropy, [batch]).d == 16 + 4 + 4


def test_it_refuses_what_would_not_be_per_sample() -> None:
    task = tasks.mlp_digits(3, 10, 0)
    with pytest.raises(ValueError, match=r"losses must have shape \(batch,\) = \[10\]; got \(\)"):
        Objective(task.module, lambda module, batch: tasks.cross_entropy(module, batch).mean(), task.batches)
    with pytest.raises(ValueError, match="module must be in eval mode"):
        Objective(nn.Sequential(nn.Linear(64, 10), nn.Dropout()).double(), task.losses, task.batches)
    with pytest.raises(ValueError, match="batches must hold at least one"):
        Objective(task.module, task.losses, [])


# Closed forms: the constants of synthetic.problems, derived there by hand.


def test_a_quadratic() -> None:
    """Hessian diag(spectrum) everywhere: r and ell of the paper's spectra."""
    spectrum = paper_spectrum("c", 2_000)
    data = gaussian_data(np.random.default_rng(0), 20, 2_000)
    problem = Quadratic(data.copy(), spectrum)
    objective = Objective(
        Weights(np.zeros(2_000)).eval(), quadratic_losses(torch.as_tensor(spectrum)), [torch.as_tensor(data)]
    )
    found = measure_spectrum(objective.hessian(objective.start), generator(), EFFORT, positive=True)
    assert found.norm.low == pytest.approx(problem.smoothness, rel=1e-9)
    assert found.norm.high == pytest.approx(problem.smoothness, rel=1e-6)
    assert found.rank.contains(problem.r)
    assert found.rank.high < 1.2 * found.rank.low
    assert objective.value(objective.start) == pytest.approx(problem.loss(np.zeros(2_000)))


def test_pseudo_huber_is_below_its_bounds_and_reaches_them_at_its_center() -> None:
    """One sample, at its center: the Hessian is A itself. Elsewhere 0 <= Hess <= A and ||grad|| <= ||A||^(1/2)."""
    spectrum = paper_spectrum("b", 400)
    center = np.ones((1, 400))
    objective = Objective(
        Weights(center[0].copy()).eval(), huber_losses(torch.as_tensor(spectrum)), [torch.as_tensor(center)]
    )
    problem = PseudoHuber(center.copy(), spectrum)
    at = measure_spectrum(objective.hessian(objective.start), generator(), EFFORT, positive=True)
    assert at.norm.low == pytest.approx(problem.smoothness, rel=1e-9)
    assert at.trace.contains(spectrum.sum())
    away = nearby(objective.start, 5.0, generator())
    there = measure_spectrum(objective.hessian(away), generator(), EFFORT, positive=True)
    assert there.norm.high <= problem.smoothness
    assert there.trace.high <= spectrum.sum()
    assert float(objective.gradient_norms(away).max()) <= problem.lipschitz


def test_logistic_regression_is_below_the_glm_bounds_and_reaches_them_at_zero() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((50, 30))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    bounds = linear_model(rows)
    problem = LogisticRegression(rows, np.ones(50))
    assert bounds.norm == pytest.approx(problem.spectral_norm)
    assert bounds.trace == pytest.approx(problem.trace)
    assert (bounds.lipschitz, bounds.smoothness, bounds.d) == (pytest.approx(1), pytest.approx(0.25), 30)
    assert bounds.rank == pytest.approx(problem.effective_rank)
    objective = Objective(Weights(np.zeros(30)).eval(), logistic_losses, [torch.as_tensor(rows)])
    at = measure_spectrum(objective.hessian(objective.start), generator(), Effort(search=30, probes=2, steps=2))
    assert at.norm.low == pytest.approx(bounds.norm, rel=1e-9)
    assert at.trace.estimate == pytest.approx(bounds.trace, rel=1e-9)
    away = measure_spectrum(objective.hessian(nearby(objective.start, 9.0, generator())), generator(), EFFORT)
    assert away.norm.high < bounds.norm
    assert away.trace.high < bounds.trace


def test_the_softmax_bound_dominates_every_hessian() -> None:
    """H - Hess F >= 0 at random weights, H written out; and it is the logistic bound for two classes."""
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((40, 5))
    classes = 4
    bounds = softmax_model(rows, classes)
    centering = (np.eye(classes) - 1 / classes) / 2
    upper = torch.as_tensor(np.kron(centering, rows.T @ rows / 40))
    assert bounds.norm == pytest.approx(float(torch.linalg.eigvalsh(upper)[-1]))
    assert bounds.trace == pytest.approx(float(upper.trace()))
    module = nn.Linear(5, classes, bias=False).double().eval()
    labels = torch.as_tensor(rng.integers(0, classes, 40))
    objective = Objective(module, tasks.cross_entropy, [(torch.as_tensor(rows), labels)])
    for seed in range(3):
        x = nearby(objective.start, 3.0 * seed + 0.1, generator(seed))
        assert float(torch.linalg.eigvalsh(upper - full_hessian(objective, x))[0]) >= -1e-12
        assert float(objective.gradient_norms(x).max()) <= bounds.lipschitz
    two = softmax_model(rows, 2)
    assert two.norm == pytest.approx(2 * linear_model(rows).norm)


# Regions.


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
    assert found.absolute_trace.contains(float(bound.trace()))
    assert found.norm.low == pytest.approx(float(values[-1]) ** (1 / power), rel=1e-9)
    with pytest.raises(ValueError, match="power must be even; got 3"):
        common([operator], 3)


def test_descent_never_rises_and_lowers_the_loss() -> None:
    objective = small_network()
    x, value = objective.start, objective.value(objective.start)
    for _ in range(4):
        x = descend(objective, x, 5, 50.0)
        assert objective.value(x) <= value
        value = objective.value(x)
    assert value < 0.9 * objective.value(objective.start)


# Clipping and differences of losses.


def test_clipped_shares_follow_the_law_of_the_sphere() -> None:
    """Independent of the law's own formula: shares counted over Gaussian-made directions; 4 standard errors."""
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


def test_differences_of_losses_measure_trace_and_frobenius_norm() -> None:
    objective = small_network()
    values = torch.linalg.eigvalsh(full_hessian(objective, objective.start))
    found = measure_forward(objective.losses, objective.start, 1e-3, 150, generator())
    assert found.trace.contains(float(values.sum()))
    assert found.squared_frobenius.contains(float((values**2).sum()))
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


# Everything together.


def test_constants_are_those_of_the_network() -> None:
    objective = small_network(3)
    settings = Settings(
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
    quick = Settings(points=1, effort=Effort(search=4, probes=2, steps=2), sample_hessians=2, directions=0)
    found = measure(objective, generator(), data="private", spend_no_privacy_claim=True, settings=quick)
    assert "private data" in found.problem_file().caveats[0]
