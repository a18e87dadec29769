"""Tests of starting values for a run: against the derivatives that they estimate, and what they refuse."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpzero_theory.check import PreconditionError
from dpzero_theory.optim.losses.starting import Start, starting_values
from dpzero_theory.optim.losses.users import by_user
from dpzero_theory.optim.plan import Plan
from tests.optim.small import D, Logistic, data, losses

GENERATOR = torch.Generator().manual_seed(3)
PUBLIC = TensorDataset(
    torch.randn(200, D, generator=GENERATOR, dtype=torch.float64),
    torch.randint(2, (200,), generator=GENERATOR).double() * 2 - 1,
)
SETTINGS: dict[str, Any] = {
    "n": 1000, "evaluations": 1024, "target_epsilon": 2.0, "target_delta": 1e-5, "expected_batch": 100.0,
    "relation": "add-remove", "sampling": "poisson",
}  # fmt: skip


def start(**changes: Any) -> Start:
    return starting_values(Logistic(), losses, PUBLIC, **{**SETTINGS, **changes})


def test_what_is_measured_is_what_derivatives_give() -> None:
    """The measured gradient norms and curvature agree with derivatives.

    At zero weights a record's gradient is -label x/2 and its Hessian x x^T/4. 32 directions in 6 dimensions see both.
    """
    features = PUBLIC.tensors[0].numpy()
    found = start()
    norm = float(np.median(np.linalg.norm(features, axis=1) / 2))
    assert found.norm == pytest.approx(norm, rel=0.25)
    hessian = features.T @ features / (4 * len(features))
    assert found.trace == pytest.approx(float(np.trace(hessian)), rel=0.25)
    # mostly its diagonal, which second differences along random signs do not see
    assert found.frobenius == pytest.approx(float(np.linalg.norm(hessian)), rel=0.5)
    assert found.target["clip"] == pytest.approx(math.sqrt(found.target["directions_per_step"]) * found.norm)
    with pytest.raises(ValueError, match=r"^clip must be left out, as it is chosen; got 1\.0"):
        start(clip=1.0)


def test_the_step_size_minimises_the_inequality_that_it_comes_from() -> None:
    """The suggested step size alpha minimises, over a grid, the inequality from which it comes.

    The inequality is gap/(alpha T) + alpha tr(H) (sigma^2 + v)/(2 K), and the largest stable step size does not bind
    here.
    """
    found = start(directions_per_step=1, evaluations=20_000)
    target = found.target
    plan = Plan.for_target(n=SETTINGS["n"], **target)
    sigma = plan.noise_multiplier * plan.clip / plan.expected_batch
    assert found.noise == pytest.approx(sigma, rel=1e-9)
    v = float(np.mean((PUBLIC.tensors[0] ** 2).sum(1).numpy() / 4)) / SETTINGS["expected_batch"]
    grid = np.geomspace(1e-5, 10, 20_001)
    bound = math.log(2) / (grid * plan.steps) + grid * found.trace * (sigma**2 + v) / 2
    assert target["step_size"] == pytest.approx(grid[bound.argmin()], rel=0.05)
    assert target["step_size"] < 1 / (found.trace + 2 * found.frobenius)


def test_private_records_are_refused() -> None:
    own = data()
    mixed = TensorDataset(*(torch.cat([a, b[:3]]) for a, b in zip(PUBLIC.tensors, own.tensors, strict=True)))
    with pytest.raises(ValueError, match="public_data must hold no private records; got 3 that"):
        starting_values(Logistic(), losses, mixed, private_data=own, **SETTINGS)


def test_records_may_be_users_with_several_texts() -> None:
    """Users with one text each give the values of the texts, and a user with two the mean of the texts' losses; a text
    of a private user is refused."""
    one_each = by_user(PUBLIC, range(200))
    alone, users = start(), starting_values(Logistic(), losses, one_each, **SETTINGS)
    assert users.target == pytest.approx(alone.target)
    twice = TensorDataset(*(torch.cat([part, part]) for part in PUBLIC.tensors))
    pairs = starting_values(Logistic(), losses, by_user(twice, [*range(200), *range(200)]), **SETTINGS)
    assert pairs.target == pytest.approx(alone.target)
    private = by_user(TensorDataset(*(part[:4] for part in PUBLIC.tensors)), [0, 0, 1, 1])
    with pytest.raises(ValueError, match="public_data must hold no private records; got 4 that"):
        starting_values(Logistic(), losses, one_each, private_data=private, **SETTINGS)


def test_what_shows_no_slope_or_is_not_finite_is_refused() -> None:
    def flat(module: nn.Module, batch: Any) -> torch.Tensor:
        return losses(module, batch) * 0 + 1

    def infinite(module: nn.Module, batch: Any) -> torch.Tensor:
        return losses(module, batch) / 0

    with pytest.raises(PreconditionError, match=r"public_data must show a slope: .* not for a 0-1 error"):
        starting_values(Logistic(), flat, PUBLIC, **SETTINGS)
    with pytest.raises(ValueError, match="losses of public_data must be finite"):
        starting_values(Logistic(), infinite, PUBLIC, **SETTINGS)
    with pytest.raises(ValueError, match="the loss on public_data must be"):
        starting_values(Logistic(), lambda module, batch: losses(module, batch) - 1, PUBLIC, **SETTINGS)
