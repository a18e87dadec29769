"""Tests of the ratio of a run's released numbers to their noise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from dpzero_theory.optim.files.transcript import read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.signal import Signal, signal
from tests.optim.small import STEP, D, Logistic, N, data, losses, plan


def made(folder: Path, of: Plan, slope: float = 0.0, steps: int | None = None) -> Path:
    """Returns the folder of a run whose records all have the loss `slope` times the sum of the weights."""

    def losses(module: Logistic, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return slope * module.weight.sum().expand(len(batch[0]))

    run = make_from_seed_not_private(Logistic(), losses, data(), of, seed=0, folder=folder)  # type: ignore[arg-type]
    for _ in range(of.steps if steps is None else steps):
        run.step()
    run.close()
    return folder


@pytest.mark.parametrize(
    ("changes", "kurtosis"), [({"steps": 100, "directions_per_step": 4}, 3), ({"steps": 300, "noise": "laplace"}, 6)]
)
def test_of_noise_alone_the_ratio_is_one_within_its_spread(tmp_path: Path, changes: Any, kurtosis: int) -> None:
    of = plan(**changes)
    found = signal(made(tmp_path / "run", of))
    assert found.numbers == of.steps * of.directions_per_step / 10
    assert found.spread == pytest.approx(np.sqrt((kurtosis - 1) / found.numbers))
    assert found.ratio_spread == pytest.approx(found.spread / np.sqrt(10))
    assert abs(found.ratio - 1) < 4 * found.ratio_spread
    assert max(abs(found.first - 1), abs(found.last - 1)) < 4 * found.spread


def learned(folder: Path, **changes: Any) -> tuple[Signal, float]:
    """Returns the signal of a private run on 400 records of which one feature tells the label, and their mean loss
    after it, which is log 2 before."""
    x = torch.randn(400, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    records = TensorDataset(x, torch.where(x[:, 0] > 0, 1.0, -1.0).double())
    of = plan(**{**RUN, **changes})
    module = Logistic()
    run = make_from_seed_not_private(module, losses, records, of, seed=1, folder=folder)
    run.run()
    run.close()
    return signal(folder), losses(module, records.tensors).mean().item()  # type: ignore[arg-type]


RUN: dict[str, Any] = {
    "n": 400, "expected_batch": 400, "steps": 200, "directions_per_step": 4, "target_epsilon": 8.0, "clip": 2.0,
    "step_size": 1.0, "smoothing": 1e-3,
}  # fmt: skip


def test_a_run_that_learns_begins_above_the_noise_and_falls(tmp_path: Path) -> None:
    found, loss = learned(tmp_path / "run")
    assert loss < np.log(2) / 2
    assert found.first > 1 + 6 * found.spread
    assert found.last < found.first / 3


def test_what_the_records_add_is_counted_in_units_of_the_noise(tmp_path: Path) -> None:
    """Each record adds slope (1'u) to the sum, less than the clip, so that the sum is known before the noise."""
    of = plan(target_epsilon=100.0, steps=60, clip=6.0, direction="rademacher")
    folder, (added, noise) = made(tmp_path / "run", of, slope=1.0), (N, of.noise_multiplier * of.clip)
    found = signal(folder)
    # 1'u has mean square 6 over signs u in R^6
    expected = 1 + 6 * (added / noise) ** 2
    assert found.ratio == pytest.approx(expected, rel=0.5)
    assert expected > 1 + 6 * found.ratio_spread
    averages = of.unit * np.array([record.sums for record in read(folder / "run.sqlite")[1]])
    assert found.ratio == pytest.approx(np.mean(averages**2) / (noise / of.expected_batch) ** 2, rel=1e-6)


def test_a_run_without_noise_without_numbers_or_without_a_step_is_refused(tmp_path: Path) -> None:
    settings = {name: STEP[name] for name in ("steps", "step_size", "smoothing")}
    mezo = Plan.without_privacy(n=N, expected_batch=N, sampling="full", **settings)
    for name, of in (("mezo", mezo), ("dpgd-0th", plan(algorithm="dpgd-0th"))):
        with pytest.raises(ValueError, match=f"folder must hold a run that releases noisy numbers; got one of {name}"):
            signal(made(tmp_path / name, of))
    with pytest.raises(ValueError, match="folder must hold a run that has made a step; got none in"):
        signal(made(tmp_path / "begun", plan(), steps=0))
