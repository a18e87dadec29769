"""Opacus's PrivacyEngine as a loop to audit.

    from dpzero_theory.audit import Claim, View, check
    from dpzero_theory.audit.adapters.opacus import engine_loop
    loop = engine_loop(lambda: nn.Linear(5, 1), losses)
    report = check(loop, records, claim, View(seed="secret"), {"step_size": 0.1})

The engine is used through its public calls (`make_private`, `attach_step_hook`). A hook notes what each step releases
and its sum before noise; a wrapped data set notes which records the engine asks for, which are the batches. `losses`
takes the module's outputs and the targets and returns the mean loss.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.loop import Train

Losses = Callable[[Tensor, Tensor], Tensor]
"""A loss function of the module's outputs and the targets, which returns the mean loss over the batch."""


class _AskedDataset(Dataset[tuple[Tensor, Tensor]]):
    """A data set of records as pairs (features, target), where the target is a record's last column.

    Its attribute `asked` lists the indices of the records that were read.
    """

    def __init__(self, records: Records) -> None:
        rows = torch.tensor(np.asarray(records), dtype=torch.float32)
        self._features, self._targets, self.asked = rows[:, :-1], rows[:, -1], list[int]()

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.asked.append(int(index))
        return self._features[index], self._targets[index]


def engine_loop(module: Callable[[], nn.Module], losses: Losses, *, secure_mode: bool = False) -> Train:
    """Returns a training loop for the audit: SGD under an Opacus PrivacyEngine with Poisson batches.

    The loop's settings are the numbers of its claim and `step_size`.

    Args:
        module: makes a new module for each run.
        losses: a function of the module's outputs and the targets that returns the mean loss.
        secure_mode: the engine's own setting, which needs torchcsprng. Where that package is not installed, a torch
            generator seeded with 64 bits from the operating system stands in for its generator, and Opacus's own code
            for the mode (which sums four Gaussian draws for each number of noise) runs unchanged. The audit then tests
            the floating-point noise of this mode, but not the strength of its generator.
    """

    def train(records: Records, seed: int, settings: dict[str, Any]) -> Any:
        with _csprng() if secure_mode else nullcontext():
            return _EngineRun(module(), losses, _AskedDataset(records), settings, secure_mode).outcome()

    return train


class _EngineRun:
    """One training run of an Opacus PrivacyEngine; keeps its steps' releases, their sums before noise, and batches."""

    def __init__(
        self, module: nn.Module, losses: Losses, data: _AskedDataset, settings: dict[str, Any], secure_mode: bool
    ) -> None:
        self._data, self._losses, self._steps = data, losses, int(settings["steps"])
        self._module, self._optimizer, self._loader = PrivacyEngine(secure_mode=secure_mode).make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=float(settings["step_size"])),
            data_loader=DataLoader(data, batch_size=int(settings["batch"])),
            noise_multiplier=float(settings["noise_multiplier"]),
            max_grad_norm=float(settings["clip"]),
        )
        self._accountant = self._optimizer.step_hook
        self._optimizer.attach_step_hook(self._note)
        self._releases: list[Tensor] = []
        self._clean: list[Tensor] = []
        self._batches: list[list[int]] = []

    def _note(self, optimizer: Any) -> None:
        self._accountant(optimizer)
        share = optimizer.expected_batch_size * optimizer.accumulated_iterations
        self._releases.append(torch.cat([p.grad.flatten() for p in optimizer.params]).clone())
        self._clean.append(torch.cat([p.summed_grad.flatten() for p in optimizer.params]) / share)
        self._batches.append(sorted(self._data.asked))
        self._data.asked.clear()

    def outcome(self) -> dict[str, Any]:
        self._data.asked.clear()  # Opacus read a record when the engine was made; that record is in no batch.
        while len(self._releases) < self._steps:
            for features, targets in self._loader:
                self._optimizer.zero_grad()
                torch.autograd.backward(self._losses(self._module(features), targets))
                self._optimizer.step()
                if len(self._releases) == self._steps:
                    break
        releases, clean = (torch.stack(rows).double().numpy() for rows in (self._releases, self._clean))
        return {"releases": releases, "clean": clean, "batches": self._batches}


@contextmanager
def _csprng() -> Iterator[None]:
    """A context manager in whose block `import torchcsprng` works.

    Where that package is not installed, a stand-in has the two functions that Opacus uses.
    """
    if importlib.util.find_spec("torchcsprng"):
        yield
        return
    stand_in = ModuleType("torchcsprng")
    stand_in.create_random_device_generator = _generator  # type: ignore[attr-defined]
    sys.modules["torchcsprng"] = stand_in
    try:
        yield
    finally:
        del sys.modules["torchcsprng"]


def _generator(token: str) -> torch.Generator:
    return torch.Generator().manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
