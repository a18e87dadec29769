"""The audit of this package's own optimiser, as of anyone's loop.

Noisy runs are made by `make_private`, whose noise and batches come from the operating system; the audit's seed is only
the public key from which directions are made. Quiet runs are made by `make_from_seed_not_private`. The attacker sees
the files and prints of a run, but not the secret file `data.key`.
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import dpzero_theory as dz
from benchmarks.zoo.table import D, claim, records
from dpzero_theory.audit.conformance import check
from dpzero_theory.optim.files.folder import KEY


class _Asked:
    """A data set that notes which records are read, and so the batches."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.asked = torch.tensor(np.asarray(rows), dtype=torch.float32), set[int]()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.asked.add(int(index))
        return self.rows[index]

    def batch(self) -> list[int]:
        found = sorted(self.asked)
        self.asked.clear()
        return found


def _losses(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return nn.functional.softplus(-rows[:, -1] * model(rows[:, :-1])[:, 0])


def _train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    data, module = _Asked(rows), nn.Linear(D, 1)
    plan = dz.Plan.for_target(
        n=len(data),
        target_epsilon=settings["epsilon"],
        target_delta=settings["delta"],
        steps=settings["steps"],
        expected_batch=settings["batch"],
        clip=settings["clip"],
        step_size=settings["step_size"],
        smoothing=1e-3,
        relation=settings["relation"],
        sampling="full" if settings["batch"] == len(data) else settings["sampling"],
    )
    multiplier = float(settings["noise_multiplier"])
    plan = replace(plan, step=replace(plan.step, noise=multiplier))
    with warnings.catch_warnings(action="ignore"):
        if multiplier < 1e-6:
            run = dz.make_from_seed_not_private(module, _losses, data, plan, seed=seed)
        else:
            key = seed.to_bytes(16, "little")
            run = dz.make_private(module, _losses, data, plan, target_delta=settings["delta"], folder="run", key=key)
    data.batch()  # the start of the run read records that are in no batch
    releases, batches = [], []
    try:
        for _ in range(settings["steps"]):
            releases.append(run.step().sums)
            batches.append(data.batch())
    finally:
        run.close()
    (Path("run") / KEY).unlink(missing_ok=True)
    return {"releases": np.array(releases) * run.plan.unit, "batches": batches}


def test_nothing_is_reported_of_our_own_loop() -> None:
    names = ("noise-from-seed", "noise-size", "noise-law", "sensitivity", "not-finite", "batches", "un-noised")
    one = claim(steps=4)
    report = check(_train, records(), one, dz.View(seed="public"), {"step_size": 0.1}, checks=names, runs=24)
    assert report.violations == [], report.text()
    assert not report.core_untested, report.text()
