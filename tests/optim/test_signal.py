"""Tests of the ratio of a run's released numbers to their noise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpzero_theory.optim.files.transcript import TranscriptError, read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.signal import signal
from tests.optim.small import STEP, Logistic, N, data, plan


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
    assert found.numbers == of.steps * of.directions_per_step
    assert found.spread == pytest.approx(np.sqrt((kurtosis - 1) / found.numbers))
    assert abs(found.ratio - 1) < 4 * found.spread


def test_what_the_records_add_is_counted_in_units_of_the_noise(tmp_path: Path) -> None:
    """Each record adds slope (1'u) to the sum, less than the clip, so that the sum is known before the noise."""
    of = plan(target_epsilon=100.0, steps=60, clip=6.0, direction="rademacher")
    folder, (added, noise) = made(tmp_path / "run", of, slope=1.0), (N, of.noise_multiplier * of.clip)
    found = signal(folder)
    # 1'u has mean square 6 over signs u in R^6
    expected = 1 + 6 * (added / noise) ** 2
    assert found.ratio == pytest.approx(expected, rel=0.5)
    assert expected > 1 + 6 * found.spread
    averages = of.unit * np.array([record.sums for record in read(folder / "transcript.bin")[1]])
    assert found.ratio == pytest.approx(np.mean(averages**2) / (noise / of.expected_batch) ** 2, rel=1e-6)


def test_a_run_without_noise_without_numbers_or_without_a_step_is_refused(tmp_path: Path) -> None:
    settings = {name: STEP[name] for name in ("steps", "step_size", "smoothing")}
    mezo = Plan.without_privacy(n=N, expected_batch=N, sampling="full", **settings)
    for name, of in (("mezo", mezo), ("dpgd-0th", plan(algorithm="dpgd-0th"))):
        with pytest.raises(ValueError, match=f"folder must hold a run that releases noisy numbers; got one of {name}"):
            signal(made(tmp_path / name, of))
    with pytest.raises(ValueError, match="folder must hold a run that has made a step; got none in"):
        signal(made(tmp_path / "begun", plan(), steps=0))


def test_a_damaged_transcript_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "run", plan()) / "transcript.bin"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(TranscriptError, match="does not match its check"):
        signal(tmp_path / "run")
