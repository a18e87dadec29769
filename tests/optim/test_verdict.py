"""Tests of what the releases of a run say of its training."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ncx2

import dpzero_theory as dz
from dpzero_theory.optim import verdict
from dpzero_theory.optim.files.transcript import Record, read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.verdict import Descent
from dpzero_theory.privacy.ledger import Ledger
from tests.optim.small import BUDGET, FULL, STEP, Logistic, data, plan, private

STEPS = 200


def slopes(slope: float) -> Any:
    """Returns losses that are the same for all records, `slope` times c'w with c = (1, 2, ..., 32)/32 and weights w."""
    return lambda module, batch: slope * (module.weight * 2.0 ** torch.arange(-5, 1)).sum().expand(len(batch[0]))


@pytest.mark.filterwarnings("ignore:epsilon 100 protects hardly anything", "ignore:after .* the run diverges")
@pytest.mark.parametrize("slope", [1e-6, 0.5])
@pytest.mark.parametrize("settings", [{"directions_per_step": 4}, {"noise": "laplace"}, {}])
def test_the_descent_is_how_far_a_linear_loss_falls(tmp_path: Path, slope: float, settings: dict[str, Any]) -> None:
    """A step lowers the loss by alpha times the squared slope along u, whose mean over signs u in R^6 is 1365/1024 of
    slope^2, and whose variance is below 2 slope^4 times the square of that."""
    given = {**BUDGET, **STEP, **FULL, "steps": STEPS, "target_epsilon": 100.0, "clip": 2.0, **settings}
    run = make_private_with_epsilon(Logistic(), slopes(slope), data(), **given, folder=tmp_path)
    run.run()
    found = run.descent().verdict
    alpha, square, k = STEP["step_size"], 1365 / 1024 * slope**2, run.plan.directions_per_step
    drawn = alpha * square * math.sqrt(2 * STEPS / k)  # a bound on the standard deviation by the draw of the directions
    assert abs(found.descent - STEPS * alpha * square) < 6 * math.hypot(found.error / 2, drawn)
    assert str({f.name: f.value for f in dz.verify(tmp_path).findings}["verdict"]) == str(found)


def fed(of: Plan, slope: float, slowed: float = 1.0, **named: Any) -> Descent:
    """Returns the descent of a run whose released averages have the mean square slope^2 beside that of their noise, and
    in its second half `slowed` times that."""
    beside = 2 if of.law is not None and of.law.noise == "laplace" else 1
    first, second = (round(math.hypot(s / of.unit, of.scale * beside**0.5)) for s in (slope, slope * slowed**0.5))
    sums = [first if number < of.steps // 2 else second for number in range(of.steps)]
    return Descent(of, records=[Record(number, (total,)) for number, total in enumerate(sums)], **named)


@pytest.mark.parametrize(
    ("share", "slowed", "word", "told"),
    [
        (0.02, 1.0, "stands still", "multiply step_size by about 10"),
        (0.5, 1.0, "learns", ""),
        (0.9, 1.0, "learns", ""),
        (7.0, 0.05, "learns", ""),  # fast at first, slow at the end
        (1.1, 1.0, "diverges", "divide step_size by about 2"),
        (16.0, 0.01, "diverges", "divide step_size by about 20"),  # too far for any loss
        (10.0, 1.0, "diverges", "divide step_size by about 10"),
    ],
)
def test_the_descent_is_compared_with_the_loss_at_the_start(share: float, slowed: float, word: str, told: str) -> None:
    of = plan(steps=STEPS, target_epsilon=1e4, step_size=1.0)
    slope = math.sqrt(share * 0.7 / STEPS * 2 / (1 + slowed))
    found = fed(of, slope, slowed, loss_at_start=0.7).verdict
    assert found.word == word
    assert found.descent == pytest.approx(share * 0.7, rel=0.01)
    assert told in found.remedy
    assert bool(found.remedy) == bool(told)


def test_a_run_without_steps_is_not_judged() -> None:
    assert str(Descent(plan(steps=STEPS)).verdict).endswith("no step has been made")


def test_the_page_on_verdicts_has_their_limits() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "expect.md").read_text()
    assert f"**stands still**: less than {verdict._STILL:.0%} of it" in page
    assert "15 times as much, or more than half of it in the second half of the run" in page
    assert "on the way, twice as much at the first steps to five times at the last" in page
    assert (verdict._HALF, verdict._SOON, verdict._LATE, verdict._MOST, verdict._CHANCE) == (0.5, 2, 5, 15, 1e-6)
    assert "but for a chance of 1e-6" in page


@pytest.mark.parametrize(("noise", "second", "fourth"), [("gaussian", 1, 2), ("laplace", 2, 20)])
def test_the_error_is_two_standard_deviations_of_the_noise(noise: str, second: int, fourth: int) -> None:
    """The square of h + e has the variance Var(e^2) + 4 h^2 Var(e); e^2 of a Gaussian has variance 2 s^4, and of
    Laplace noise 24 b^4 - (2 b^2)^2."""
    of = plan(steps=STEPS, target_epsilon=1.0, step_size=0.3, noise=noise)
    square, b = 0.01, of.scale * of.unit
    found = fed(of, square**0.5, loss_at_start=1e9).verdict
    assert found.error == pytest.approx(0.6 * math.sqrt(STEPS * (fourth * b**4 + 4 * square * second * b**2)), rel=1e-6)
    assert found.descent == pytest.approx(0.3 * STEPS * square, rel=1e-4)


def test_noise_that_hides_everything_is_said() -> None:
    of = plan(steps=STEPS, target_epsilon=0.1)
    generator = np.random.default_rng(1)
    sums = (generator.normal(size=STEPS) * of.scale).astype(np.int64)
    records = [Record(number, (int(total),)) for number, total in enumerate(sums)]
    step = of.step_size(0) * (of.scale * of.unit) ** 2
    assert Descent(of, 5 * step, records).verdict.word == "hidden"
    assert Descent(of, 1e4 * step, records).verdict.word == "stands still"


def test_a_run_that_diverges_is_told_once_and_soon() -> None:
    of = plan(steps=STEPS, target_epsilon=1e4, step_size=1.0)
    descent, sums = Descent(of, 0.7), (round(math.sqrt(100 * 0.7 / STEPS) / of.unit),)
    records = [Record(number, sums) for number in range(STEPS)]
    with pytest.warns(UserWarning, match=r"^after 5 of 200 steps the run diverges: .* divide step_size by") as told:
        _ = [descent.watch(record) for record in records]
    assert len(told) == 1


@pytest.mark.parametrize(("noise", "k"), [("gaussian", 1), ("gaussian", 16), ("laplace", 1)])
def test_noise_alone_is_never_called_divergence(noise: str, k: int) -> None:
    """Two standard deviations at each step, asked in the middle of 50 runs of noise alone, would say so of some."""
    of = plan(steps=STEPS, target_epsilon=0.1, noise=noise, directions_per_step=k)
    generator, start, past = np.random.default_rng(2), of.step_size(0) * (of.scale * of.unit) ** 2 / 100, 0
    for _ in range(50):
        drawn = np.rint(getattr(generator, "normal" if noise == "gaussian" else noise)(size=(STEPS, k)) * of.scale)
        descent, exceeded = Descent(of, start), False
        for number, sums in enumerate(drawn.astype(np.int64)):
            descent.watch(Record(number, tuple(sums.tolist())))
            found = descent.verdict
            exceeded |= found.descent - found.error > 5 * start
        past += exceeded
    assert past > 0


def test_the_bound_on_the_noise_is_near_the_quantile_of_squares() -> None:
    """One direction and a true difference h: the estimate is alpha ((h + e)^2 - s^2), a noncentral chi-square."""
    of = plan(steps=STEPS, target_epsilon=1.0)
    noise, alpha = of.scale * of.unit, of.step_size(0)
    for square in (0.0, 1.0, 30.0):  # h^2 in s^2
        descent = Descent(of, records=[Record(0, (round(noise / of.unit),))])
        bound = square + descent._chance(alpha * noise**2 * square) / (alpha * noise**2)
        exact = ncx2.isf(verdict._CHANCE / STEPS, 1, square) - 1
        assert exact < bound < 1.6 * exact


def test_a_resumed_run_knows_its_whole_descent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = private(tmp_path / "run", steps=6)
    for _ in range(3):
        run.step()
    run.close()
    resumed = private(tmp_path / "run", steps=6, resume=True)
    reads = []
    monkeypatch.setattr(Ledger, "records", lambda self, own=Ledger.records: reads.append(self) or own(self))
    resumed.run()
    assert len(reads) == 1  # the weights catch up by the records that the descent sums up
    whole = Descent(resumed.plan, records=read(tmp_path / "run").records)
    assert resumed.descent().verdict == whole.verdict
    resumed.close()  # as a Trainer does at the end
    assert resumed.descent().verdict == whole.verdict
    with pytest.raises(ValueError, match=r"^loss_at_start must "):
        resumed.descent(0.0)
