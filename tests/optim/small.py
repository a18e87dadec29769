"""A small logistic regression, as a torch module and as a problem for the reference algorithms."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.run import Run

N, D = 40, 6
FEATURES = np.random.default_rng(7).normal(size=(N, D))
LABELS = np.where(FEATURES @ np.linspace(-1, 1, D) > 0, 1.0, -1.0)

BUDGET: dict[str, Any] = {"target_epsilon": 3.0, "target_delta": 1e-5}
STEP: dict[str, Any] = {"steps": 8, "clip": 1.0, "step_size": 0.05, "smoothing": 1e-3}
POISSON: dict[str, Any] = {"expected_batch": N / 2, "relation": "add-remove", "sampling": "poisson"}
FULL: dict[str, Any] = {"expected_batch": N, "relation": "replace-one", "sampling": "full"}
"""The settings of full batches, for which noise is calibrated in closed form."""


class Logistic(nn.Module):
    """Logistic regression with one parameter, `weight` of shape (D,), which is zero at first."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(D, dtype=dtype))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features @ self.weight


def losses(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    features, labels = batch
    return nn.functional.softplus(-labels * module(features))


def data(dtype: torch.dtype = torch.float64) -> TensorDataset:
    return TensorDataset(torch.tensor(FEATURES, dtype=dtype), torch.tensor(LABELS, dtype=dtype))


class Problem:
    """The losses of `Logistic` in the form that `tests.optim.reference` takes."""

    n, d = N, D

    def losses(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.logaddexp(0.0, -LABELS * (FEATURES @ x))
        return found


def plan(**changes: Any) -> Plan:
    return Plan.for_target(**{"n": N, **BUDGET, **STEP, **FULL, **changes})


def contributions(of: Plan, differences: NDArray[np.float64]) -> NDArray[Any]:
    """Returns the sum of what records with these differences contribute to a release of a plan."""
    return of.rule.contributions(differences, of.clip)


def private(folder: Path, module: nn.Module | None = None, **changes: Any) -> Run:
    arguments = {**BUDGET, **STEP, **FULL, "folder": folder, **changes}
    return make_private_with_epsilon(Logistic() if module is None else module, losses, data(), **arguments)


def weights(run: Run) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in run.weights.parameters])
