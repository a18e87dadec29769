"""Tests that what goes wrong in published code for this algorithm does not happen here, one test for each fault."""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpzero_theory.optim.files.transcript import read
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.run import Run
from dpzero_theory.privacy.ledger import BudgetSpentError
from dpzero_theory.privacy.noise import SeededNoise, SystemNoise
from tests.optim.small import POISSON, STEP, Logistic, N, contributions, data, losses, plan, private, weights

SEED = 5


def seeded(module: nn.Module, given: Any = None, **changes: Any) -> Run:
    micro_batch = changes.pop("micro_batch", 64)
    records = data() if given is None else given
    chosen = plan(n=len(records), **changes)
    return make_from_seed_not_private(module, losses, records, chosen, seed=SEED, micro_batch=micro_batch)


def recovered(run: Run, module: Logistic, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The attack on noise from a seed: finds the clipped sum from what is public.

    It has the weights before and after a step, the direction, and noise drawn again from the public seed. Returns the
    errors of the sum found with that noise removed, and with none removed, in units of the noise's standard deviation.
    """
    guess, errors = SeededNoise(int.from_bytes(bytes.fromhex(run._header.key), "little") % 2**64), []
    for number in range(steps):
        truth = contributions(run.plan, run.sums.differences(number, np.arange(N)))[0]
        before = module.weight.detach().clone()
        run.step()
        u = torch.zeros_like(before)
        run.weights.directions.shift(u, number, 0, 1.0, out=u)
        moved = (module.weight.detach() - before) @ u / (u @ u)
        released = float(moved) / (-run.plan.step_size(number) * run.plan.unit)
        errors.append((released - guess.discrete_gaussian(run.plan.scale) - truth, released - truth))
    removed, kept = np.array(errors).T / run.plan.scale
    return removed, kept


def test_fault_a_noise_is_not_a_function_of_any_seed(tmp_path: Path) -> None:
    """Fault (a), noise that is a function of a seed: here the attack's error is that of the noise.

    Against the seeded variant, which says that it is not private, the error is zero. With 400 steps the error's
    standard deviation is known to 3.5%, so the allowed 20% is 5.6 standard errors; for the mechanism alone there are
    20,000 draws and 10 standard errors.
    """
    module = Logistic()
    run = private(tmp_path, module, steps=400)
    removed, kept = recovered(run, module, 400)
    assert np.sqrt(np.mean(kept**2)) == pytest.approx(1.0, rel=0.2)
    assert np.sqrt(np.mean(removed**2)) > np.sqrt(np.mean(kept**2))
    errors = np.array([run.plan.noisy(np.zeros(1, np.int64), SystemNoise())[0] for _ in range(20_000)]) / run.plan.scale
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(1.0, rel=0.05)

    open_to_all = Logistic()
    not_private = seeded(open_to_all, steps=50)
    removed, _ = recovered(not_private, open_to_all, 50)
    assert np.abs(removed).max() < 1e-6
    assert not not_private.private
    assert not_private.get_epsilon(1e-5) == math.inf


def test_fault_d_empty_batches_release_noise_and_are_paid_for(tmp_path: Path) -> None:
    module = Logistic()
    run = private(tmp_path, module)
    run._batches = lambda release: np.arange(0)
    record = run.step()
    assert abs(record.sums[0]) > 0
    assert torch.isfinite(module.weight).all()
    assert run.releases_left == STEP["steps"] - 1


def test_fault_f_the_denominator_is_the_expected_batch(tmp_path: Path) -> None:
    """Fault (f), a denominator that depends on the batch: here it is the expected batch.

    Every move is alpha C/(levels q n) times an integer, whatever the size of the batch, so the noise on the average is
    the same.
    """
    module = Logistic()
    run = seeded(module, **POISSON)
    sizes: list[int] = []
    draw = run._batches
    run._batches = lambda release: (sizes.append(len(batch := draw(release))), batch)[1]
    for number in range(6):
        before = module.weight.detach().clone()
        released = run.step().sums[0]
        expected = before.clone()
        amount = -0.05 * (1.0 / run.plan.rule.levels / 20) * released
        run.weights.directions.shift(expected, number, 0, amount, out=expected)
        assert torch.equal(module.weight.detach(), expected)
    assert len(set(sizes)) > 2


class CountedNoise:
    """A source of noise that stands in for the operating system's, and counts how often it is asked."""

    private = True

    def __init__(self) -> None:
        self.draws = 0

    def discrete_gaussian(self, scale: Any, size: Any = None) -> Any:
        self.draws += 1
        return SystemNoise().discrete_gaussian(scale, size)


@pytest.mark.parametrize("micro_batch", [1, 7, 40])
def test_fault_g_noise_is_added_once_however_many_micro_batches(micro_batch: int) -> None:
    """Fault (g), noise of each micro-batch: here it is drawn once a step, and the sum is that of one micro-batch."""
    run, noise = seeded(Logistic(), micro_batch=micro_batch), CountedNoise()
    whole = seeded(Logistic()).sums.total(0, np.arange(N))
    assert np.abs(run.sums.total(0, np.arange(N)) - whole).max() <= 1e-9 * run.plan.rule.levels * N
    run._noise = noise  # type: ignore[assignment]
    run.run()
    assert noise.draws == STEP["steps"]


def test_fault_j_no_step_beyond_those_accounted_for(tmp_path: Path) -> None:
    run = private(tmp_path)
    run.run()
    kept, transcript = weights(run), read(tmp_path)
    for _ in range(2):
        with pytest.raises(BudgetSpentError, match="all 8 releases of the plan are spent"):
            run.step()
    assert torch.equal(weights(run), kept)
    assert read(tmp_path) == transcript
    assert run.get_epsilon(1e-5) <= 3.0


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"target_epsilon": 4.0}, "noise_multiplier"),
        ({"target_delta": 1e-4}, "noise_multiplier"),
        ({"steps": 9}, "steps"),
        ({"clip": 2.0}, "clip"),
        ({"relation": "add-remove"}, "relation"),
        ({"sampling": "poisson"}, "sampling"),
        ({"directions_per_step": 2}, "directions_per_step"),
        ({"smoothing": 1e-2}, "smoothing"),
        ({"step_size": 0.1}, "step_sizes"),
        ({"direction": "sphere"}, "direction"),
        ({"noise": "laplace"}, "noise"),
    ],
)
def test_fault_k_resuming_refuses_a_changed_setting(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    run = private(tmp_path)
    run.step()
    run.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=f"^{name} must be (that of the run that is resumed|one of nearest)"):
        private(tmp_path, resume=True, **changes)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert private(tmp_path, resume=True).releases_left == STEP["steps"] - 1


def test_fault_l_nothing_but_releases_leaves_a_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    run, told = private(tmp_path), []
    run.run(told.append)
    out, err = capfd.readouterr()
    assert (out, err, caplog.records) == ("", "", [])
    names = ["data.key", "run.sqlite", "run.sqlite-shm", "run.sqlite-wal"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert read(tmp_path / "run.sqlite")[1] == told
    assert set(run.state_dict()) == {"run.key", "run.position", "weights.weight"}
