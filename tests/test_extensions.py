"""Tests that users can add an algorithm, a noise law, a law of directions and a sampling.

Each is defined in this file and registered once, and then used from calibration to a verified run.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpzero_theory.check import Array
from dpzero_theory.optim.files.transcript import read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.step.algorithm import ALGORITHMS, Algorithm, Sums
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.laws.law import UNKNOWN, Cost
from dpzero_theory.privacy.ledger import Ledger
from dpzero_theory.privacy.mechanism import MECHANISMS, Mechanism, StepLike
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS, Poisson, Sampling, sampling_of
from dpzero_theory.privacy.schedule import Indices
from dpzero_theory.privacy.stated import approximate
from dpzero_theory.privacy.step import step_of
from dpzero_theory.registry import Registry
from dpzero_theory.sphere import DIRECTIONS, DirectionLaw
from tests.optim.small import STEP, D, Logistic, N, data, losses
from tests.privacy.oracle import noise_for


class Signs(Algorithm):
    """An algorithm in which every record votes: +1 or -1 clip, the sign of its difference, in units of the lattice."""

    name = "votes"
    levels = 2**30
    dtype = np.int64

    def contributions(self, differences: Array, clip: float) -> Sums:
        total: Sums = (self.levels * np.sign(np.nan_to_num(differences)).astype(np.int64)).sum(axis=0)
        return total


class Wide(Mechanism):
    """A noise law for the tests: discrete Laplace noise of twice the parameter that the plan names.

    At equal noise multipliers it costs half the epsilon.
    """

    name = "wide-laplace"
    noise = "wide"
    lattice = True
    exactness = "integers with exactly the discrete Laplace law"
    samplings = ("full", "poisson", "every-other")

    def cost(self, step: StepLike, size: int = 1, n: int | None = None) -> Cost:
        each = size * step.relation.sensitivity / (2 * step.noise) * (1 + 1e-12)
        if each > 100:
            return replace(UNKNOWN, pure=(step.steps * each, 0.0))
        return approximate(each, steps=step.steps, relation=step.relation).cost()

    def multiplier(self, step: StepLike, target_epsilon: float) -> float:
        return step.steps * step.relation.sensitivity / (2 * target_epsilon) * (1 + 1e-11)

    def scale(self, noise_multiplier: float, levels: int) -> int:
        return math.ceil(noise_multiplier * levels)

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        return source.discrete_laplace(2 * scale, shape)


@dataclass(frozen=True)
class EveryOther(Sampling):
    """A sampling by Poisson batches of even-numbered records at twice the rate; odd-numbered ones are never used."""

    name = "every-other"
    runnable = True

    def amplified(self, noise: float, steps: int, relation: Relation) -> Cost:
        return Poisson(2 * self.sample_rate).cost(noise, steps, relation)

    def draw(self, source: random.Random, n: int) -> Indices:
        return np.array([i for i in range(0, n, 2) if source.random() < 2 * self.sample_rate], np.int64)


TWO_POINT = DirectionLaw(
    name="lopsided",
    sample=lambda rng, size, d: rng.choice([-1.0, 1.0], size=(size, d)),
    table=lambda: np.array([-1.0, 1.0]),
    fixed_norm=True,
)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Registers each extension once, and removes it after the test."""
    additions: list[tuple[Registry[Any], Any]] = [
        (ALGORITHMS, Signs()), (MECHANISMS, Wide()), (SAMPLINGS, EveryOther), (DIRECTIONS, TWO_POINT),
    ]  # fmt: skip
    for registry, value in additions:
        registry.register(value)
    yield
    for registry, value in additions:
        del registry[value.name]


def arguments(folder: Path, **changes: Any) -> dict[str, Any]:
    target = {"target_epsilon": 3.0, "target_delta": 1e-5, "expected_batch": N / 4, "relation": "add-remove"}
    return {**STEP, **target, "sampling": "poisson", "folder": folder, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "votes"},
        {"noise": "wide"},
        {"direction": "lopsided"},
        {"sampling": "every-other"},
        {"algorithm": "votes", "noise": "wide", "direction": "lopsided", "sampling": "every-other"},
    ],
)
def test_an_extension_runs_end_to_end(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A run with an extension is calibrated, paid for, resumed, reported and replayed, bit for bit."""
    module = Logistic()
    run = make_private_with_epsilon(module, losses, data(), **arguments(tmp_path, **changes))
    for _ in range(3):
        run.step()
    run.close()
    module = Logistic()
    run = make_private_with_epsilon(module, losses, data(), **arguments(tmp_path, resume=True, **changes))
    run.run()
    spent = run.get_epsilon(1e-5)
    assert 2.9 < spent <= 3.0
    assert epsilon_of_history(run.history, 1e-5).upper == spent
    run.close()
    with Ledger.open(tmp_path / "run.sqlite") as ledger:
        assert ledger.history[0].mechanism == ("wide-laplace" if "noise" in changes else "discrete-gaussian")
    again = Logistic()
    header = read(tmp_path / "run.sqlite").header
    read(tmp_path / "run.sqlite").replayed(again)
    assert torch.equal(again.weight, module.weight)
    assert np.abs(module.weight.detach().numpy()).max() > 0
    assert Plan.from_settings(header.plan.settings) == run.plan
    assert len(again.weight) == D


def test_the_new_sampling_is_accounted_and_drawn() -> None:
    here = step_of(2.0, 50, sampling="every-other", relation="add-remove", sample_rate=0.1)
    known = step_of(2.0, 50, sampling="poisson", relation="add-remove", sample_rate=0.2)
    assert epsilon_of_history([here], 1e-5) == epsilon_of_history([known], 1e-5)
    assert noise_for(
        target_epsilon=2, target_delta=1e-5, steps=50, sampling="every-other", relation="add-remove", sample_rate=0.1
    ).upper == pytest.approx(
        noise_for(
            target_epsilon=2, target_delta=1e-5, steps=50, sampling="poisson", relation="add-remove", sample_rate=0.2
        ).upper,
        rel=1e-4,
    )
    batch = sampling_of("every-other", 0.1).draw(random.Random(1), 1000)
    assert 60 < len(batch) < 140
    assert not (batch % 2).any()


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"mechanism must be one of gaussian, .*wide-laplace.*; got 'staircase'"):
        step_of(1.0, 1, sampling="full", relation="add-remove", mechanism="staircase")
    with pytest.raises(ValueError, match=r"sampling must be one of full, .*every-other.*; got 'shuffle'"):
        step_of(1.0, 1, sampling="shuffle", relation="add-remove", sample_rate=0.5)
    with pytest.raises(ValueError, match="must have a name of its own; got 'wide-laplace'"):
        MECHANISMS.register(Wide())


def test_laws_compose_with_each_other() -> None:
    """The added noise law costs what any mechanism with its pure epsilon may cost, and no release is forgotten."""
    gaussian = step_of(5.0, 10, sampling="full", relation="add-remove")
    wide = step_of(20.0, 4, sampling="full", relation="add-remove", mechanism="wide-laplace")
    alone = epsilon_of_history([gaussian], 1e-5).upper
    both = epsilon_of_history([gaussian, wide], 1e-5).upper
    known = approximate(0.025, steps=4, relation="add-remove")
    assert alone < both == pytest.approx(epsilon_of_history([gaussian, known], 1e-5).upper, rel=1e-9)
    assert both <= alone + 0.1
    assert delta_of_history([gaussian, wide], both).upper == pytest.approx(1e-5, rel=1e-3)
