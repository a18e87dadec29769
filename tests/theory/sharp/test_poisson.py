"""Tests of the certificate for Poisson mini-batches: full batches at rate one, the accountant's noise, and the caps."""

import math

import pytest

from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import certificate, prescribe
from dpzero_theory.theory.sharp.poisson import ANY_LOSS, poisson_noise, prescribe_for_points, prescribe_poisson

GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)


def test_poisson_with_the_accountant() -> None:
    accountant = poisson_noise(2, 1e-6)
    fixed = prescribe_poisson(PAPER, GDP, accountant, max_evaluations=4_672_000, expected_batch=0.01 * PAPER.n)
    assert fixed.steps == 46_720
    assert fixed.noise_multiplier == pytest.approx(accountant(0.01, 46_720, Relation.REPLACE_ONE), rel=1e-14)
    assert (fixed.sampling, fixed.sample_rate, fixed.relation) == ("poisson", 0.01, Relation.REPLACE_ONE)
    assert fixed.noise_std == pytest.approx(fixed.noise_multiplier * fixed.clip / 100, rel=1e-12)
    found = prescribe_poisson(PAPER, GDP, accountant, max_evaluations=4_672_000, max_steps=200_000)
    assert found.steps <= 200_000
    assert found.evaluations <= 4_672_001
    assert found.bound < fixed.bound < prescribe(PAPER, GDP, max_evaluations=4_672_000).bound
    again = certificate(
        PAPER,
        step_size=found.step_size,
        steps=found.steps,
        clip=found.clip,
        smoothing=found.smoothing,
        noise_std=found.noise_std,
        sample_rate=found.sample_rate,
    )
    assert again.bound == found.bound


def test_the_accountant_is_asked_about_the_relation_that_is_prescribed() -> None:
    asked = []

    def noise(rate: float, steps: int, relation: Relation) -> float:
        asked.append(relation)
        return relation.sensitivity * math.sqrt(steps) / GDP

    both = {
        name: prescribe_poisson(PAPER, GDP, noise, max_evaluations=10**6, expected_batch=0.1 * PAPER.n, relation=name)
        for name in Relation
    }
    assert set(asked) == set(Relation)
    assert all(p.relation is name for name, p in both.items())
    assert both[Relation.ADD_REMOVE].bound < both[Relation.REPLACE_ONE].bound
    with pytest.raises(ValueError, match=r"^relation must be one of"):
        prescribe_poisson(PAPER, GDP, noise, max_evaluations=10**6, relation="neighbours")


def test_batch_steps_directions_and_rule_are_chosen_together() -> None:
    """At 9,344 evaluations of each record a choice by hand, K = 23, batch 77, 26,355 steps, is beaten by both rules.

    No rule, K and rate of a coarse grid has a smaller bound than what is found.
    """
    noise, budget = poisson_noise(2, 1e-6), 9_344 * PAPER.n
    found = prescribe_for_points(PAPER, 2, 1e-6, max_points=budget)
    assert (found.difference, found.sampling) == ("forward", "poisson")
    assert found.points <= budget * (1 + 1e-9)
    by_hand = prescribe_poisson(
        PAPER, GDP, noise, max_points=77 * 24 * 26_355, expected_batch=77, directions_per_step=23, difference="forward"
    )
    assert found.bound < by_hand.bound < prescribe(PAPER, GDP, max_points=budget, directions_per_step="best").bound
    for rule in ANY_LOSS:
        for k in (8, 64):
            for batch in (5, 100):
                other = prescribe_poisson(
                    PAPER,
                    GDP,
                    noise,
                    max_points=budget,
                    expected_batch=batch,
                    directions_per_step=k,
                    difference=rule,
                )
                assert found.bound <= other.bound
