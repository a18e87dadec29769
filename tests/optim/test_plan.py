"""Tests of plans: for a target epsilon, from every prescription of the theory, and through JSON."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import optimize, stats

from dpzero_theory.optim.files.transcript import RUN, read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_private
from dpzero_theory.optim.verify import main as verify
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.ledger import Ledger
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FixedOrder, FixedSize
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.results import RESULTS
from dpzero_theory.theory.sharp import certificate
from dpzero_theory.theory.sharp.last_iterate import prescribe_last_iterate
from dpzero_theory.theory.sharp.poisson import poisson_noise, prescribe_poisson
from tests.optim.small import D, Logistic, N, data, losses, plan
from tests.privacy import oracle


def exact_epsilon(gdp: float, delta: float) -> float:
    """Returns the epsilon of mu-GDP at this delta, as the root of the textbook formula, by another solver.

    `gdp` is mu.
    """
    return float(
        optimize.brentq(
            lambda e: stats.norm.cdf(gdp / 2 - e / gdp) - math.exp(e) * stats.norm.cdf(-gdp / 2 - e / gdp) - delta,
            0,
            50,
            xtol=1e-12,
        )
    )


EPSILON, DELTA = 2.0, 1e-6
GDP = float(gdp_from_epsilon(EPSILON, DELTA))
SMALL = Problem(n=N, d=D, r=2.0)
WITH_PL = Problem(n=3000, d=D, r=2.0, pl=0.9)
SAME = (
    "algorithm", "n", "relation", "sampling", "sample_rate", "direction", "directions_per_step", "steps", "smoothing",
    "clip", "noise_multiplier",
)  # fmt: skip


def prescriptions() -> dict[str, Prescription]:
    found = {
        f"{algorithm}, {relation}, {direction}": certificate.prescribe(
            SMALL, GDP, max_steps=50, relation=relation, direction=direction, algorithm=algorithm
        )
        for algorithm, relation, direction in (
            *(("dpzero", relation, "sphere") for relation in Relation),
            ("dpzero", "add-remove", "gaussian"), ("dpzero", "replace-one", "rademacher"),
            ("dpgd-0th", "replace-one", "sphere"), ("dpgd-0th", "add-remove", "rademacher"),
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
        found[name] = result.prescribe(WITH_PL, GDP, max_steps=30 if result.minimised else None)
    found["constant noise"] = prescribe_last_iterate(WITH_PL, GDP, schedule="constant", max_steps=30)
    return found


PRESCRIBED = prescriptions()


@pytest.mark.parametrize("name", PRESCRIBED)
def test_a_plan_is_its_prescription_and_costs_what_that_was_made_for(name: str) -> None:
    """A plan made from a prescription has its numbers, and costs the (epsilon, delta) that it was made for, or less."""
    prescribed = PRESCRIBED[name]
    found = Plan.from_prescription(prescribed)
    for field in SAME:
        assert getattr(found, field) == getattr(prescribed, field), field
    assert found.step_sizes == (prescribed.step_size,)
    assert found.noise == "gaussian"
    assert found.expected_batch == prescribed.expected_batch
    std = found.noise_multiplier * found.clip / found.expected_batch
    assert std == pytest.approx(prescribed.noise_std, rel=1e-14)
    if found.levels:
        # The lattice's noise is a little wider than the prescribed noise, and no narrower.
        assert found.scale / found.levels * found.clip / found.expected_batch >= std
        assert found.scale / found.levels == pytest.approx(found.noise_multiplier, rel=1e-8)
    cost = found.epsilon(DELTA)
    assert cost.lower <= EPSILON * (1 + 1e-9)
    assert cost.upper == pytest.approx(EPSILON, rel=1e-6)
    if found.sampling == "full":
        sensitivity = 2 if found.relation == "replace-one" else 1
        gdp = math.sqrt(found.steps) * sensitivity / found.noise_multiplier
        assert gdp == pytest.approx(prescribed.gdp, rel=1e-9)
        for delta in (1e-3, 1e-9):
            assert found.epsilon(delta).upper == pytest.approx(exact_epsilon(gdp, delta), rel=1e-8)
    assert Plan.from_json(found.to_json()) == found


@pytest.mark.parametrize("name", ["dpgd-0th, replace-one, sphere", "poisson at rate 1", "four directions"])
def test_a_prescription_runs(tmp_path: Path, name: str) -> None:
    chosen = Plan.from_prescription(PRESCRIBED[name])
    module = Logistic()
    run = make_private(module, losses, data(), chosen, target_delta=DELTA, folder=tmp_path)
    assert run.private
    for _ in range(2):
        run.step()
    assert module.weight.abs().max() > 0
    assert run.releases_left == chosen.steps - 2
    spent = chosen.settings.release(2)
    assert run.history == [spent]
    assert run.get_epsilon(DELTA) == chosen.epsilon(DELTA).upper > epsilon_of_history([spent], DELTA).upper


def test_noise_that_shrinks_is_refused_in_one_line() -> None:
    """A prescription whose noise shrinks along the run is refused.

    A plan's noise is constant, and the noise of its last step at every step would cost more than was certified.
    """
    shrinking = prescribe_last_iterate(WITH_PL, GDP, schedule="shrinking", max_steps=30)
    assert shrinking.noise_ratio > 1
    with pytest.raises(ValueError, match=r"^noise_ratio must be 1, as the noise of a run is constant; got 1\.\d+$"):
        Plan.from_prescription(shrinking)
    held = replace(shrinking, noise_ratio=1.0)
    assert Plan.from_prescription(held).epsilon(DELTA).lower > 1.01 * EPSILON


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 10**10}, "steps must be an integer"),
        ({"algorithm": "sgd"}, "algorithm must be one of dpzero"),
        ({"algorithm": "mezo"}, "noise must be one of none"),
        ({"algorithm": "dpgd-0th", "direction": "gaussian"}, "direction must be one of"),
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


def test_another_plan_is_refused_by_the_field_that_differs() -> None:
    begun = plan()
    plan(clip=begun.clip).require_same(begun)
    replace(begun, noise_multiplier=begun.noise_multiplier * (1 - 1e-7)).require_same(begun)
    for name, value in {"clip": 2.0, "smoothing": 1e-2, "noise_multiplier": begun.noise_multiplier * 0.999}.items():
        with pytest.raises(ValueError, match=f"^{name} must be that of the run that is resumed, "):
            replace(begun, **{name: value}).require_same(begun)


def test_step_sizes_may_be_another_processors() -> None:
    """The last bit of a cosine depends on the C library; a relative difference of a thousandth does not."""
    begun = plan(schedule="cosine")
    sizes = begun.step_sizes
    rounded = replace(begun, step_sizes=(sizes[0], math.nextafter(sizes[1], 1), *sizes[2:]))
    rounded.require_same(begun)
    for other in (sizes[:1], (sizes[0] * 1.001, *sizes[1:])):
        with pytest.raises(ValueError, match=r"^step_sizes must be that of the run that is resumed, "):
            replace(begun, step_sizes=other).require_same(begun)


def test_the_key_of_the_directions_may_be_given(tmp_path: Path) -> None:
    key = b"sixteen bytes..."
    make_private(Logistic(), losses, data(), plan(), target_delta=1e-5, folder=tmp_path / "a", key=key).close()
    assert read(tmp_path / "a")[0].key == key.hex()
    with pytest.raises(ValueError, match=r"^key must be 16 bytes; got b'short'"):
        make_private(Logistic(), losses, data(), plan(), target_delta=1e-5, folder=tmp_path / "b", key=b"short")


def test_noise_that_is_less_than_what_is_accounted_for_is_no_plan() -> None:
    chosen = plan()
    for changes in ({"scale": chosen.scale - 1}, {"levels": 0}, {"noise_multiplier": 2 * chosen.noise_multiplier}):
        with pytest.raises(ValueError, match=r"^(scale|levels) must be an integer"):
            replace(chosen, **changes)


def coarse(levels: int, multiplier: float, more: int = 0, **changes: Any) -> Plan:
    """Returns a plan with a lattice of `levels` integers to a clip, as its user may choose one.

    The noise is the least that `multiplier` allows, plus `more` integers; `changes` are changes of the plan.
    """
    scale = math.ceil(multiplier * levels) + more
    return replace(plan(**changes), levels=levels, noise_multiplier=multiplier, scale=scale)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize(("levels", "multiplier"), [(1, 1.3), (2, 2.5), (10, 2.0)])
def test_a_plan_costs_what_its_lattice_does(noise: str, levels: int, multiplier: float) -> None:
    """The run is one step of full batches."""
    chosen = coarse(levels, multiplier, noise=noise, steps=1, sampling="full", expected_batch=N, relation="add-remove")
    if noise == "laplace":
        couples = oracle.laplace(levels, chosen.scale / levels, 1.0, "add-remove")
    else:
        couples = oracle.discrete_gaussian(levels, chosen.scale, 1.0, "add-remove")
    assert chosen.settings.mechanism == f"discrete-{noise}:{levels}"
    assert chosen.law is not None
    assert chosen.law.name == chosen.settings.mechanism
    assert chosen.settings.noise_multiplier == pytest.approx(chosen.scale / levels, rel=1e-15)
    found = chosen.epsilon(0.01)
    assert oracle.exact_delta(found.upper, [couples]) <= 0.01 * (1 + 1e-9)
    assert oracle.exact_delta(found.lower * (1 - 1e-9), [couples]) >= 0.01 * (1 - 1e-9)
    assert found.upper - found.lower < 1e-6


def test_a_lattice_as_fine_as_a_runs_own_is_accounted_for_as_ever() -> None:
    for noise, least, name in (("gaussian", 2**28, "discrete-gaussian"), ("laplace", 2**30, "laplace")):
        for levels in (least, 2**31):
            chosen = coarse(levels, 5.0, more=1, noise=noise, steps=1, sampling="full", expected_batch=N)
            assert chosen.settings.mechanism == name
            assert chosen.settings.noise_multiplier == 5.0
        chosen = coarse(least - 1, 5.0, noise=noise, steps=1, sampling="full", expected_batch=N)
        assert chosen.settings.mechanism == f"discrete-{noise}:{least - 1}"


def test_a_run_on_a_coarse_lattice_claims_what_it_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That is the cost by the law of the lattice; at delta = 0 the epsilon is T times levels/scale."""
    chosen = coarse(1, 4.5, noise="laplace", steps=3, relation="add-remove", sampling="full", expected_batch=N)
    run = make_private(Logistic(), losses, data(), chosen, target_delta=0.0, folder=tmp_path / "run")
    run.run()
    run.close()
    assert run.get_epsilon(0.0) == pytest.approx(3 / 5, rel=1e-9)
    with pytest.raises(ValueError, match="target_epsilon"):
        make_private(
            Logistic(), losses, data(), chosen, target_delta=0.0, target_epsilon=0.59, folder=tmp_path / "less"
        )
    assert verify([str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "(0.600001, 0)-differentially private" in said
    assert "discrete-laplace:1: integers" in said
    ledger = tmp_path / "run" / RUN
    fine = run.plan.settings.changed(mechanism="laplace")
    header, _ = read(ledger)
    ledger.unlink()
    Ledger.create(
        ledger, target_epsilon=0.61, target_delta=0.0, settings=fine, steps=3, block=1, run=header.to_json()
    ).close()
    assert verify([str(tmp_path / "run")]) == 1
    assert "(3 releases of laplace) is not what the plan releases (3 of discrete-laplace:1)" in capsys.readouterr().err
