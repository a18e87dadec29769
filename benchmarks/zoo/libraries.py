"""Libraries' training loops for the audit: Opacus's engine by default and in secure mode, and our `make_private`."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.zoo.catalogue import D, Specimen, claim
from dpzero_theory.audit.adapters.opacus import engine_loop
from dpzero_theory.audit.adapters.private import private_loop
from dpzero_theory.audit.claim import Claim
from dpzero_theory.audit.loop import Train


def module() -> nn.Module:
    """Return a model of logistic regression with all weights zero."""
    found = nn.Linear(D, 1)
    for parameter in found.parameters():
        nn.init.zeros_(parameter)
    return found


def mean_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.softplus(-labels * outputs[:, 0]).mean()


def losses(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.softplus(-batch[1] * model(batch[0])[:, 0])


def dataset(records: Any) -> TensorDataset:
    rows = torch.tensor(np.asarray(records), dtype=torch.float32)
    return TensorDataset(rows[:, :-1], rows[:, -1])


def opacus_default() -> Train:
    return engine_loop(module, mean_loss)


def opacus_secure() -> Train:
    return engine_loop(module, mean_loss, secure_mode=True)


def opacus_made_finite() -> Train:
    """Return Opacus's loop at its defaults, on records in which what is not finite or very large is set to zero."""
    loop = engine_loop(module, mean_loss)

    def train(records: Any, seed: int, settings: dict[str, Any]) -> Any:
        return loop(np.where(np.abs(records) < _LARGEST, records, 0.0), seed, settings)

    return train


def ours() -> Train:
    return private_loop(module, losses, dataset)


def _public_n() -> Claim:
    """Return a claim for the relation zero-out, under which n is public. It suits the loops of Opacus, whose
    denominator depends on n."""
    return claim(relation="zero-out")


_LARGEST = 1e12
"""Numbers of this size and larger are set to zero, so that no square of one is infinite in single precision."""

_NUMBERS = {"smoothing": 1e-3}
SOUND = (
    Specimen(
        opacus_made_finite,
        claimed=_public_n,
        runs=32,
        repeats=20,
        title="Opacus, secret seed, records made finite, n public",
    ),
    Specimen(
        opacus_secure,
        claimed=_public_n,
        seed="public",
        finite=True,
        runs=32,
        repeats=20,
        title="Opacus, secure mode, finite records, n public",
    ),
    Specimen(ours, seed="public", settings=_NUMBERS, runs=32, repeats=20, title="optim.private, seed public"),
)
FAULTS = (
    Specimen(opacus_default, "noise-from-seed", seed="public", runs=32, title="Opacus at its defaults, seed public"),
    Specimen(
        opacus_secure, "denominator", seed="public", finite=True, runs=32, title="Opacus, secure mode, add-remove"
    ),
    Specimen(opacus_secure, "not-finite", _public_n, seed="public", runs=32, title="Opacus, secure mode, any records"),
)
