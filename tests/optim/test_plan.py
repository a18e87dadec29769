"""Tests of plans: for a target epsilon, from every prescription of the theory, and through JSON."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.problems.poisson import poisson_noise, prescribe_poisson
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_private
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FixedOrder, FixedSize
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.results import RESULTS
from dpzero_theory.theory.sharp import certificate
from dpzero_theory.theory.sharp.last_iterate import prescribe_last_iterate
from tests import paper_oracle as paper
from tests.optim.small import D, Logistic, N, data, losses, plan

EPSILON, DELTA = 2.0, 1e-6
GDP = float(gdp_from_epsilon(EPSILON, DELTA))
SMALL = Problem(n=N, d=D, r=2.0)
WITH_PL = Problem(n=3000, d=D, r=2.0, pl=0.9)
SAME = (
    "algorithm", "n", "relation", "direction", "directions_per_step", "steps", "smoothing", "clip", "noise_multiplier",
)  # fmt: skip


def prescriptions() -> dict[str, Prescription]:
    found = {
        f"{algorithm}, {relation}, {direction}": certificate.prescribe(
            SMALL, GDP, max_steps=50, relation=relation, direction=direction, algorithm=algorithm
        )
        for algorithm, relation, direction in (
            *(("dpzero", relation, "sphere") for relation in Relation),
            ("dpzero", "add-remove", "gaussian"), ("dpzero", "replace-one", "rademacher"),
        )
    }  # fmt: skip
    found |= {
        f"poisson, {relation}, {direction}": prescribe_poisson(
            SMALL, GDP, poisson_noise(EPSILON, DELTA), max_evaluations=40 * N, expected_batch=0.25 * N,
            relation=relation, direction=direction,
        )
        for relation, direction in (("replace-one", "sphere"), ("add-remove", "rademacher"))
    }  # fmt: skip
    found["poisson at rate 1"] = prescribe_poisson(
        SMALL, GDP, poisson_noise(EPSILON, DELTA), max_evaluations=40 * N, expected_batch=N
    )
    found["four directions"] = certificate.prescribe(
        SMALL, GDP, max_steps=50, direction="gaussian", directions_per_step=4
    )
    for name, result in RESULTS.items():
        found[name] = result.prescribe(WITH_PL, GDP, max_steps=30 if result.search else None)
    found["constant noise"] = prescribe_last_iterate(WITH_PL, GDP, max_steps=30)
    return {name: one for name, one in found.items() if one.algorithm == "dpzero"}


PRESCRIBED = prescriptions()


@pytest.mark.parametrize("name", PRESCRIBED)
def test_a_plan_is_its_prescription_and_costs_what_that_was_made_for(name: str) -> None:
    """A plan made from a prescription has its numbers, and costs the (epsilon, delta) that it was made for, or less."""
    prescribed = PRESCRIBED[name]
    found = Plan.from_prescription(prescribed)
    for field in SAME:
        assert getattr(found, field) == getattr(prescribed, field), field
    assert (found.sampling.word, found.sampling.sample_rate) == (prescribed.sampling, prescribed.sample_rate)
    assert found.step_sizes == (prescribed.step_size,)
    assert found.law is not None
    assert found.law.name == "discrete-gaussian"
    assert found.expected_batch == prescribed.expected_batch
    std = found.noise_multiplier * found.clip / found.expected_batch
    assert std == pytest.approx(prescribed.noise_std, rel=1e-14)
    # The lattice's noise is a little wider than the prescribed noise, and no narrower.
    assert found.scale / found.rule.levels * found.clip / found.expected_batch >= std
    assert found.scale / found.rule.levels == pytest.approx(found.noise_multiplier, rel=1e-8)
    cost = found.epsilon(DELTA)
    assert cost.lower <= EPSILON * (1 + 1e-9)
    assert cost.upper == pytest.approx(EPSILON, rel=1e-6)
    if found.sampling.word == "full":
        sensitivity = 2 if found.relation == "replace-one" else 1
        gdp = math.sqrt(found.steps) * sensitivity / found.noise_multiplier
        assert gdp == pytest.approx(prescribed.gdp, rel=1e-9)
        for delta in (1e-3, 1e-9):
            exact = paper.bisect(lambda e, delta=delta: paper.gaussian_delta(e, gdp) > delta, 1e-3, 50, digits=10)
            assert found.epsilon(delta).upper == pytest.approx(float(exact), rel=1e-8)
    assert Plan.from_settings(json.loads(json.dumps(found.settings))) == found


@pytest.mark.parametrize("name", ["poisson at rate 1", "four directions"])
def test_a_prescription_runs(tmp_path: Path, name: str) -> None:
    chosen = Plan.from_prescription(PRESCRIBED[name])
    module = Logistic()
    run = make_private(module, losses, data(), chosen, target_delta=DELTA, folder=tmp_path)
    assert run.private
    for _ in range(2):
        run.step()
    assert module.weight.abs().max() > 0
    assert run.releases_left == chosen.steps - 2
    spent = replace(chosen.release, steps=2)
    assert run.history == [spent]
    assert run.get_epsilon(DELTA) == chosen.epsilon(DELTA).upper > epsilon_of_history([spent], DELTA).upper


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 10**10}, "steps must be an integer"),
        ({"algorithm": "sgd"}, "algorithm must be one of dpzero"),
        ({"algorithm": "mezo"}, "algorithm must be one that is private; got 'mezo'"),
        ({"algorithm": "dpgd-0th"}, "algorithm must be one of dpzero, mezo; got 'dpgd-0th'"),
        ({"batches": FixedOrder(0.5)}, "sampling must be one of full, poisson, fixed-size"),
        ({"batches": FixedSize(0.26)}, r"sample_rate \* n must be an integer"),
        ({"noise_std": 0.0}, "noise_multiplier must be"),
        ({"clip": math.nan}, "(clip|noise_multiplier) must be"),
        ({"step_size": math.inf}, "step_size must be"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        Plan.from_prescription(replace(PRESCRIBED["dpzero, replace-one, sphere"], **changes))
    assert "\n" not in str(caught.value)


def test_noise_may_differ_by_a_calibrations_rounding() -> None:
    begun = plan()
    plan(clip=begun.clip).require_same(begun)
    noise = begun.noise_multiplier
    replace(begun, step=replace(begun.step, noise=noise * (1 - 1e-7))).require_same(begun)
    with pytest.raises(ValueError, match=r"^noise_multiplier must be that of the run that is resumed, "):
        replace(begun, step=replace(begun.step, noise=noise * 0.999)).require_same(begun)


def test_step_sizes_may_be_another_processors() -> None:
    """The last bit of a cosine depends on the C library; a relative difference of a thousandth does not."""
    begun = plan(step_size=lambda release: 1 + math.cos(release))
    sizes = begun.step_sizes
    rounded = replace(begun, step_sizes=(sizes[0], math.nextafter(sizes[1], 1), *sizes[2:]))
    rounded.require_same(begun)
    for other in (sizes[:1], (sizes[0] * 1.001, *sizes[1:])):
        with pytest.raises(ValueError, match=r"^step_sizes must be that of the run that is resumed, "):
            replace(begun, step_sizes=other).require_same(begun)


def test_a_step_that_the_algorithm_does_not_release_is_no_plan() -> None:
    chosen = plan()
    for step, said in (
        (replace(chosen.step, mechanism="gaussian"), "mechanism of step must be one of discrete-gaussian"),
        (replace(chosen.step, mechanism="discrete-gaussian:7"), "mechanism of step must be one of discrete-gaussian"),
        (replace(chosen.step, coordinates=2), "coordinates of step must be 1, as a release has, or left out; got 2"),
        (replace(chosen.step, noise=2.0**30), "noise_multiplier must be"),
        (chosen.sampling, "step must be a Step for dpzero"),
    ):
        with pytest.raises(ValueError, match=f"^{said}"):
            replace(chosen, step=step)
    with pytest.raises(ValueError, match=r"^step must be a Sampling for mezo"):
        replace(chosen, algorithm="mezo")


@pytest.mark.parametrize(("noise", "least"), [("gaussian", 2**28), ("laplace", 2**30)])
def test_a_run_draws_the_law_that_its_step_is_accounted_for(noise: str, least: int) -> None:
    chosen = plan(noise=noise, steps=1, sampling="full", expected_batch=N)
    assert chosen.rule.levels >= least
    assert chosen.law is not None
    assert chosen.release.mechanism == chosen.law.name == {"gaussian": "discrete-gaussian"}.get(noise, noise)
    assert chosen.scale >= chosen.noise_multiplier * chosen.rule.levels
