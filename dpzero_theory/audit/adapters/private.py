"""A run of `optim.private` as a loop to audit.

    loop = private_loop(module, losses, dataset)
    report = check(loop, records, claim, settings={"step_size": 0.1, "smoothing": 1e-3})

Noisy runs are what `make_private` makes, with noise and batches from the operating system; only the public key of the
directions is the audit's seed. Quiet runs are `make_from_seed_not_private`. The sum before noise and the batches are
noted where the run computes them.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.loop import Train
from dpzero_theory.optim.evaluation import Losses
from dpzero_theory.optim.folder import KEY, Budget
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import _make, _Sources, make_from_seed_not_private
from dpzero_theory.optim.records import Data
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.sampler import Batches
from dpzero_theory.privacy.mechanism import noise_law
from dpzero_theory.privacy.noise import SystemNoise

_QUIET = 1e-6
"""Noise multipliers below it are the audit's quiet runs."""


def private_loop(module: Callable[[], nn.Module], losses: Losses, dataset: Callable[[Records], Data]) -> Train:
    """The loop. dataset: records -> data set. Settings: `step_size`, `smoothing`, and `directions_per_step` (1)."""

    def train(records: Records, seed: int, settings: dict[str, Any]) -> Any:
        data = dataset(records)
        plan, execution = _plan(settings, len(data)), {"isolation": settings.get("isolation", "probed")}
        if plan.noise_multiplier < _QUIET:
            run = make_from_seed_not_private(module(), losses, data, plan, seed=seed, **execution)
        else:
            key = seed.to_bytes(16, "little")
            sources = _Sources(SystemNoise(), Batches(plan.sampling, plan.n, plan.sample_rate), key)
            budget = Budget(plan.epsilon(settings["delta"]).upper, settings["delta"], 1)
            run = _make(module(), losses, data, plan, sources, budget, Path("run"), **execution)
        return _noted(run, plan)

    return train


def _plan(settings: dict[str, Any], n: int) -> Plan:
    multiplier, levels = float(settings["noise_multiplier"]), 2**30
    law = noise_law("gaussian", lattice=True)
    return Plan(
        algorithm="dpzero",
        noise="gaussian",
        relation=settings["relation"],
        sampling="full" if settings["batch"] == n else settings["sampling"],
        n=n,
        sample_rate=float(settings["batch"]) / n,
        steps=int(settings["steps"]),
        clip=float(settings["clip"]),
        noise_multiplier=multiplier,
        levels=levels,
        scale=int(law.scale(multiplier, levels)),
        smoothing=float(settings["smoothing"]),
        step_sizes=(float(settings["step_size"]),),
        direction="rademacher",
        directions_per_step=int(settings.get("directions_per_step", 1)),
    )


def _noted(run: Run, plan: Plan) -> dict[str, Any]:
    """All steps; the run's own methods are called, and what they return is noted."""
    total = run._total
    sums: list[Any] = []
    batches: list[list[int]] = []

    def noting_total(release: int, batch: Any) -> Any:
        sums.append(total(release, batch))
        batches.append(batch.tolist())
        return sums[-1].copy()

    run._total = noting_total  # type: ignore[method-assign]
    released: list[tuple[float, ...]] = []
    try:
        run.run(lambda record: released.append(record.sums))
    finally:
        run.close()
    if (key := Path("run") / KEY).exists():
        os.remove(key)  # the one file that may not be seen
    return {
        "releases": np.array(released) * plan.unit,
        "clean": np.array(sums, dtype=np.float64) * plan.unit,
        "batches": batches,
    }
