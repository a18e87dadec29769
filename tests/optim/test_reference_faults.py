"""Tests that what goes wrong in published code for this algorithm does not happen here, one test for each fault."""

import logging
import math
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpzero_theory.optim.files.transcript import Header, read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.ledger import BudgetSpentError
from dpzero_theory.privacy.noise import SeededNoise, SystemNoise
from dpzero_theory.privacy.step import Release
from tests.optim.small import BUDGET, FULL, POISSON, STEP, D, Logistic, N, data, losses, plan, private, weights

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
        truth = run.plan.contributions(run.sums.differences(number, np.arange(N)), D)[0]
        before = module.weight.detach().clone()
        run.step()
        u = torch.zeros_like(before)
        run.weights.directions.add_(u, number, 0, run.weights.directions.factor(number, run.weights.sizes))
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


@pytest.mark.parametrize("reduced", [lambda v: v.mean(), lambda v: v.mean()[None], lambda v: v[:, None], lambda v: [v]])
def test_fault_b_losses_that_are_not_one_for_each_record_are_refused(tmp_path: Path, reduced: Any) -> None:
    with pytest.raises(ValueError, match=r"losses must be a tensor of shape \(batch,\)"):
        make_private_with_epsilon(
            Logistic(),
            lambda module, batch: reduced(losses(module, batch)),
            data(),
            **{**BUDGET, **STEP, **FULL},
            folder=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_fault_b_losses_that_are_reduced_only_later_count_as_nothing(tmp_path: Path) -> None:
    """Fault (b), losses that are averages over the batch: losses that become so only after the start count as nothing.

    They are so on some paths only, here after the eight evaluations of the start. A refusal would show whose record
    took the path. What is released is then the noise: within 8 standard deviations, with no clipped sum of a batch in
    it.
    """
    calls = count(1)

    def sometimes(module: nn.Module, batch: Any) -> torch.Tensor:
        found = losses(module, batch)
        return found if next(calls) <= 8 else found.mean()

    run = make_private_with_epsilon(Logistic(), sometimes, data(), **{**BUDGET, **STEP, **FULL}, folder=tmp_path)
    assert not run.sums.total(0, np.arange(N)).any()
    assert abs(run.step().sums[0]) < 8 * run.plan.scale
    assert run.releases_left == STEP["steps"] - 1


@pytest.mark.filterwarnings("ignore:module runs in eval mode")
def test_fault_b_batch_normalisation_does_not_mix_records(tmp_path: Path) -> None:
    """Fault (b), losses that depend on other records: batch normalisation does not mix records here.

    The module is evaluated in eval mode, so a record's loss is the same whatever the others are, and the buffers stay.
    """
    module = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1), nn.Dropout(0.5)).double().train()

    def each(module: nn.Module, batch: Any) -> torch.Tensor:
        return module(batch[0])[:, 0]

    run = make_private_with_epsilon(module, each, data(), **{**BUDGET, **STEP, **FULL}, folder=tmp_path)
    buffers = [buffer.clone() for buffer in module.buffers()]
    with run.weights.shifted(0, 1e-3):
        alone, together = (each(module, data()[:count]) for count in (2, N))
    torch.testing.assert_close(alone, together[:2], rtol=0, atol=1e-14)
    run.step()
    assert all(torch.equal(a, b) for a, b in zip(buffers, module.buffers(), strict=True))
    assert module.training


def test_fault_c_sampling_is_what_is_accounted() -> None:
    """Fault (c), other sampling than is accounted for: Poisson batches get the epsilon of Poisson sampling.

    It is that of their own relation. Orders of records that could be known are not offered.
    """
    for relation in ("add-remove", "replace-one"):
        chosen = plan(**{**POISSON, "relation": relation})
        exact = epsilon_of_history([chosen.settings.release(chosen.steps)], 1e-5)
        assert exact.lower <= 3.0
        assert exact.upper == pytest.approx(3.0, rel=1e-6)
        same = "replace-one" if relation == "replace-one" else "zero-out"
        known = Release(chosen.noise_multiplier, 8, sampling="fixed-order", relation=same, sample_rate=0.5)
        assert epsilon_of_history([known], 1e-5).lower > 3.5
    sizes = {len(seeded(Logistic(), **POISSON)._batches.draw()) for _ in range(1)}
    drawn = seeded(Logistic(), **POISSON)._batches
    sizes |= {len(drawn.draw()) for _ in range(20)}
    assert len(sizes) > 3
    for other in ("fixed-order", "shuffled"):
        with pytest.raises(ValueError, match="sampling must be one of full, poisson, fixed-size"):
            plan(**{**POISSON, "sampling": other})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("k", [1, 3])
def test_fault_d_losses_that_are_not_finite_leave_the_release_bounded(bad: float, k: int) -> None:
    """Fault (d), losses that are not finite: such a record moves the release by at most its clip.

    The weights stay finite.
    """

    def broken(module: nn.Module, batch: Any) -> torch.Tensor:
        found = losses(module, batch)
        first = batch[0][:, 0] == data().tensors[0][0, 0]
        return torch.where(first & (module(batch[0]) > 0), bad, found)

    sums = []
    for function in (losses, broken):
        module = Logistic()
        run = make_from_seed_not_private(module, function, data(), plan(directions_per_step=k), seed=SEED)
        sums.append(run.sums.total(0, np.arange(N)))
        run.run()
        assert torch.isfinite(module.weight).all()
    difference = np.sqrt(np.sum((sums[0] - sums[1]).astype(float) ** 2))
    assert 0 < difference <= 2 * run.plan.levels


def test_fault_d_empty_batches_release_noise_and_are_paid_for(tmp_path: Path) -> None:
    module = Logistic()
    run = private(tmp_path, module)
    run._batches.draw = lambda release: np.arange(0)  # type: ignore[method-assign]
    record = run.step()
    assert abs(record.sums[0]) > 0
    assert torch.isfinite(module.weight).all()
    assert run.releases_left == STEP["steps"] - 1


def test_fault_e_n_is_counted_from_the_data() -> None:
    for n in (10, 33):
        few = TensorDataset(*(tensor[:n] for tensor in data().tensors))
        run = seeded(Logistic(), few, expected_batch=n)
        assert (run.plan.n, run.plan.expected_batch) == (n, n)
    with pytest.raises(ValueError, match="data must hold the plan's n = 40 records; got 33"):
        make_from_seed_not_private(Logistic(), losses, few, plan(), seed=SEED)


def test_fault_f_the_denominator_is_the_expected_batch(tmp_path: Path) -> None:
    """Fault (f), a denominator that depends on the batch: here it is the expected batch.

    Every move is alpha C/(levels q n) times an integer, whatever the size of the batch, so the noise on the average is
    the same.
    """
    module = Logistic()
    run = seeded(module, **POISSON)
    sizes: list[int] = []
    draw = run._batches.draw
    run._batches.draw = lambda release: (sizes.append(len(batch := draw(release))), batch)[1]  # type: ignore[method-assign]
    for number in range(6):
        before = module.weight.detach().clone()
        released = run.step().sums[0]
        expected = before.clone()
        run.weights.directions.add_(expected, number, 0, -0.05 * (1.0 / run.plan.levels / 20) * released)
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
    run, noise = seeded(Logistic(), micro_batch=micro_batch), CountedNoise()
    run._noise = noise  # type: ignore[assignment]
    run.run()
    assert noise.draws == STEP["steps"]


def test_fault_g_micro_batches_do_not_change_the_step() -> None:
    modules = [Logistic() for _ in range(3)]
    for module, micro_batch in zip(modules, (1, 7, 40), strict=True):
        seeded(module, micro_batch=micro_batch).run()
    for module in modules[1:]:
        torch.testing.assert_close(module.weight, modules[0].weight, rtol=0, atol=1e-9)


def test_fault_h_several_directions_cost_what_one_does() -> None:
    """Fault (h), paying once for several directions: a step with K directions costs what a step with one does.

    The vector of a record's K differences is clipped jointly, so the same noise multiplier gives the same epsilon.
    """
    one, several = plan(), plan(directions_per_step=8)
    assert several.noise_multiplier == pytest.approx(one.noise_multiplier, rel=1e-9)
    run = seeded(Logistic(), directions_per_step=8, clip=1e-3)
    rows = run.sums.differences(0, np.arange(N))
    assert (np.linalg.norm(rows, axis=1) > 1e-3).all()
    for row in rows:
        total = run.plan.contributions(row[None], D)
        assert sum(int(entry) ** 2 for entry in total) <= run.plan.levels**2


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
        ({"precision": "stochastic"}, "precision"),
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_fault_n_weights_are_restored_exactly(dtype: torch.dtype) -> None:
    """Fault (n), weights that are not restored exactly: steps of size zero leave every bit.

    That holds also when the losses fail half way.
    """
    module = Logistic(dtype)
    module.weight.data.copy_(torch.linspace(-0.3, 0.7, 6))
    before = module.weight.detach().clone()

    def float32_losses(module: nn.Module, batch: Any) -> torch.Tensor:
        return losses(module, batch).float()

    run = make_from_seed_not_private(module, float32_losses, data(dtype), plan(step_size=0.0), seed=SEED)
    run.run()
    assert torch.equal(module.weight, before)

    for error in (RuntimeError("out of memory"), KeyboardInterrupt()):

        def failing(module: nn.Module, batch: Any, error: BaseException = error) -> torch.Tensor:
            raise error

        run = make_from_seed_not_private(module, float32_losses, data(dtype), plan(step_size=0.0), seed=SEED)
        run.sums._evaluation._losses = failing
        with nullcontext() if isinstance(error, Exception) else pytest.raises(KeyboardInterrupt):
            run.step()
        assert torch.equal(module.weight, before)


def test_the_header_names_everything_that_the_privacy_depends_on() -> None:
    chosen = Plan.for_target(n=N, **{**BUDGET, **STEP, **FULL})
    text = Header(chosen, "00" * 16, "00" * 32, "nearest").to_json()
    for name in ("noise", "relation", "sampling", '"n"', "sample_rate", "steps", "clip", "noise_multiplier", "scale"):
        assert name in text
