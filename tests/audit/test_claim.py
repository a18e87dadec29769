import math
from dataclasses import replace

import pytest

from benchmarks.zoo.table import claim
from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.optim.plan import Plan
from dpzero_theory.privacy.sampling import CyclicPoisson, FullBatch, Poisson
from dpzero_theory.privacy.step import Step


def test_units_of_averages_and_sums() -> None:
    mean = replace(claim(), clip=0.5)
    assert mean.unit() == pytest.approx(0.5 / 12)
    assert mean.noise_std() == pytest.approx(2.0 * 0.5 / 12)
    assert mean.noise_std(48) == pytest.approx(2.0 * 0.5 / 48)
    assert replace(mean, average="sum").noise_std() == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": math.nan}, "epsilon must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"relation": "swap"}, "relation must be one of"),
        ({"sampling": "all"}, "sampling must be one of"),
        ({"sampling": "poisson:4"}, "sampling must be poisson, without ':'"),
        ({"sampling": "cyclic-poisson:5"}, "sample_rate must be"),
        ({"sampling": "truncated-poisson:16/50"}, "sampling must be for n = 48 records; got 'truncated-poisson:16/50'"),
        ({"n": 0}, "n must be"),
        ({"batch": 49}, "batch must be"),
        ({"steps": 1.5}, "steps must be"),
        ({"noise_multiplier": 0}, "noise_multiplier must be"),
        ({"clip": math.inf}, "clip must be"),
        ({"average": "median"}, "average must be one of"),
        ({"sampling": "full"}, "batch must be n = 48"),
    ],
)
def test_bad_claims(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(claim(), **change)  # type: ignore[arg-type]


def test_a_sampling_with_its_arguments_is_accounted() -> None:
    one = replace(claim(), sampling="cyclic-poisson:4")
    assert one.release().sampling == "cyclic-poisson:4"
    assert one.drawn() == CyclicPoisson(0.25, 4)
    assert one.drawn(1.0) is None
    assert replace(claim(), sampling="cyclic-poisson").drawn() is None
    assert claim().drawn(1.0) == Poisson(1.0)


def test_views() -> None:
    view = View(hidden=("weights",))
    assert [view.sees(name) for name in ("releases", "weights", "batches", "clean")] == [True, False, False, False]
    with pytest.raises(ValueError, match="seed must be one of"):
        View(seed="hidden")
    with pytest.raises(ValueError, match="records must be one of"):
        View(records="numbers")


def test_what_a_loop_adapts_to_must_be_seen() -> None:
    with pytest.raises(ValueError, match=r"^adaptive must name outputs that the attacker sees; got 'clips'"):
        View(hidden=("clips",), adaptive=("clips",))


def test_a_claim_of_a_step() -> None:
    step = Step(noise=2.0, sampling=Poisson(0.25), relation="add-remove")
    made = Claim.of(step, 12, n=48, clip=1.0, delta=1e-5)
    assert replace(made, epsilon=1.0) == replace(claim(), epsilon=1.0)
    assert made.epsilon == pytest.approx(claim().epsilon, rel=1e-5)
    assert Claim.of(step, 12, n=48, clip=1.0, delta=1e-5, epsilon=9.0, average="sum").epsilon == 9.0
    full = Claim.of(Step(8.0, FullBatch(), "replace-one"), 6, n=48, clip=1.0, delta=1e-5)
    assert (full.sampling, full.batch, full.relation) == ("full", 48, "replace-one")
    plan = Plan(
        Step(8.0, Poisson(0.25), "add-remove", "discrete-gaussian"), n=48, steps=12, clip=2.0, smoothing=1e-3,
        step_sizes=(0.1,),
    )  # fmt: skip
    of_plan = Claim.of(plan, delta=1e-5)
    assert (of_plan.batch, of_plan.steps, of_plan.clip, of_plan.relation) == (12.0, 12, 2.0, "add-remove")
    assert of_plan.epsilon == plan.epsilon(1e-5).upper
    with pytest.raises(ValueError, match="steps, n and clip must be given with a step"):
        Claim.of(step, 12, n=48, delta=1e-5)
    with pytest.raises(ValueError, match="run must have Gaussian noise; got 'laplace'"):
        Claim.of(Step(8.0, FullBatch(), "add-remove", "laplace"), 6, n=48, clip=1.0, delta=1e-5)
