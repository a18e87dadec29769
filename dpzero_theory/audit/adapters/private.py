"""A run of `optim.private` as a loop to audit.

    loop = private_loop(module, losses, dataset)
    report = check(loop, records, claim, settings={"step_size": 0.1, "smoothing": 1e-3})

Noisy runs are made by `make_private`, with noise and batches from the operating system; only the public key of the
directions is the audit's seed. Quiet runs are made by `make_from_seed_not_private`. The data set notes which records
are asked for. The attacker does not see `data.key`, nor what the start says to whoever holds the records (a warning of
rounding); files and prints of the run are seen.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.loop import Train
from dpzero_theory.optim.files.folder import KEY
from dpzero_theory.optim.files.transcript import Record
from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.losses.records import Data
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private

_QUIET_BELOW = 1e-6  # Noise multipliers below this are those of the audit's quiet runs


def private_loop(module: Callable[[], nn.Module], losses: Losses, dataset: Callable[[Records], Data]) -> Train:
    """The loop; `dataset` makes a data set of records.

    Its settings are `step_size`, `smoothing`, and `directions_per_step`, which is 1 if not given.
    """

    def train(records: Records, seed: int, settings: dict[str, Any]) -> Any:
        data = _AskedRecords(dataset(records))
        plan, isolation = _plan(settings, len(data)), settings.get("isolation", "probed")
        with warnings.catch_warnings(action="ignore"):
            if plan.noise_multiplier < _QUIET_BELOW:
                run = make_from_seed_not_private(module(), losses, data, plan, seed=seed, isolation=isolation)
            else:
                run = make_private(
                    module(),
                    losses,
                    data,
                    plan,
                    target_delta=settings["delta"],
                    target_epsilon=_cost(plan, settings["delta"]),
                    folder="run",
                    key=seed.to_bytes(16, "little"),
                    isolation=isolation,
                )
        released: list[tuple[float, ...]] = []
        batches: list[list[int]] = []

        def note(record: Record) -> None:
            released.append(record.sums)
            batches.append(data.asked())

        data.asked()  # forget the records that the start of the run asked for
        try:
            run.run(note)
        finally:
            run.close()
        if (key := Path("run") / KEY).exists():
            os.remove(key)  # data.key is the one file that the attacker may not see
        return {"releases": np.array(released) * plan.unit, "batches": batches}

    return train


def _plan(settings: dict[str, Any], n: int) -> Plan:
    named = ("epsilon", "delta", "steps", "batch", "clip", "step_size", "smoothing", "relation", "sampling")
    planned = _planned(n, int(settings.get("directions_per_step", 1)), tuple(settings[name] for name in named))
    multiplier = float(settings["noise_multiplier"])
    assert planned.law is not None
    return replace(planned, noise_multiplier=multiplier, scale=int(planned.law.scale(multiplier, planned.levels)))


@lru_cache(maxsize=64)
def _planned(n: int, directions_per_step: int, claimed: tuple[Any, ...]) -> Plan:
    """The plan for the claimed epsilon; its noise is then replaced by the noise multiplier asked for."""
    epsilon, delta, steps, batch, clip, step_size, smoothing, relation, sampling = claimed
    return Plan.for_target(
        n=n,
        target_epsilon=epsilon,
        target_delta=delta,
        steps=steps,
        expected_batch=batch,
        clip=clip,
        step_size=step_size,
        smoothing=smoothing,
        relation=relation,
        sampling="full" if batch == n else sampling,
        directions_per_step=directions_per_step,
    )


@lru_cache(maxsize=64)
def _cost(plan: Plan, delta: float) -> float:
    return plan.epsilon(delta).upper


class _AskedRecords:
    """A data set that notes the numbers of the records that are asked for."""

    def __init__(self, data: Data) -> None:
        self._data, self._asked = data, dict[int, None]()

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        self._asked[int(index)] = None
        return self._data[index]

    def asked(self) -> list[int]:
        """The numbers of the records asked for since the last call of this method."""
        found = sorted(self._asked)
        self._asked.clear()
        return found
