"""This package's own optimiser, `optim.private`, as a loop to audit.

    loop = private_loop(module, losses, dataset)
    report = check(loop, records, claim, settings={"step_size": 0.1, "smoothing": 1e-3})

Noisy runs are made by `make_private`, whose noise and batches come from the operating system; the audit's seed is only
the public key from which directions are made. Quiet runs (almost without noise, see `audit.runs`) are made by
`make_from_seed_not_private`. A wrapped data set notes which records are read, and so the batches. The attacker sees the
files and prints of a run, but neither the secret file `data.key` nor warnings meant for whoever holds the records.
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

_QUIET_BELOW = 1e-6
"""A noise multiplier below this is taken to ask for a run without a privacy ledger, almost without noise."""


def private_loop(module: Callable[[], nn.Module], losses: Losses, dataset: Callable[[Records], Data]) -> Train:
    """Returns a training loop for the audit that trains by this package's private zeroth-order optimiser.

    The loop's settings are the claim's numbers, `step_size`, `smoothing`, and optionally `directions_per_step` (1),
    `difference` ("central") and `isolation` ("probed").

    Args:
        module: makes a new module for each run.
        losses: a function (module, micro-batch) -> one loss for each record.
        dataset: makes a data set of the audit's records.
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

        data.asked()  # The start of the run read records that are in no batch; this call forgets them.
        try:
            run.run(note)
        finally:
            run.close()
        if (key := Path("run") / KEY).exists():
            os.remove(key)  # The file data.key is the one file of the run that the attacker may not see.
        return {"releases": np.array(released) * plan.unit, "batches": batches}

    return train


def _plan(settings: dict[str, Any], n: int) -> Plan:
    named = ("epsilon", "delta", "steps", "batch", "clip", "step_size", "smoothing", "relation", "sampling")
    several, difference = int(settings.get("directions_per_step", 1)), settings.get("difference", "central")
    planned = _planned(n, several, difference, tuple(settings[name] for name in named))
    multiplier = float(settings["noise_multiplier"])
    assert planned.law is not None
    return replace(planned, noise_multiplier=multiplier, scale=int(planned.law.scale(multiplier, planned.levels)))


@lru_cache(maxsize=64)
def _planned(n: int, directions_per_step: int, difference: str, claimed: tuple[Any, ...]) -> Plan:
    """Returns a training plan for `n` records with the claimed epsilon; its noise is replaced afterwards.

    `directions_per_step` is the number of directions in a step, `difference` the difference rule, and `claimed` has the
    claim's other numbers.
    """
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
        difference=difference,
    )


@lru_cache(maxsize=64)
def _cost(plan: Plan, delta: float) -> float:
    return plan.epsilon(delta).upper


class _AskedRecords:
    """Wraps the data set `data`, and notes the indices of the records that are read."""

    def __init__(self, data: Data) -> None:
        self._data, self._asked = data, dict[int, None]()

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        self._asked[int(index)] = None
        return self._data[index]

    def asked(self) -> list[int]:
        """Returns, in ascending order, the indices of the records read since the last call of this method."""
        records = sorted(self._asked)
        self._asked.clear()
        return records
