"""Tests that a sampling defined in this file alone can be accounted for and used up to a verified run.

It is random allocation with another rule of epochs: every record gets one uniformly random step of an epoch of t steps,
once, and is used in that step of every epoch, as when data are shuffled once. Nothing in the library knows of it: what
follows is one class and one registration.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_private
from dpzero_theory.optim.verify import main as verify
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.cost import Cost
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS, FullBatch, RandomAllocation, Sampling
from dpzero_theory.privacy.schedule import Allocation, Indices
from dpzero_theory.privacy.step import Release, Step
from tests.optim.small import STEP, Logistic, N, data, losses


@dataclass(frozen=True)
class ShuffledOnce(Sampling):
    """A sampling by which each record is in one uniformly random step of an epoch, the same one in every epoch.

    Records are independent. The density ratio of E epochs is the mean over the t steps i of products over the epochs e
    of factors Y_{e,i}, and those of step i are together as one Gaussian release with noise s/sqrt(E). A history may
    choose its shifts from the outputs before: with these given, each factor is log-normal with mean 1, and the ratio is
    linear in it. So replacing the factors by independent ones with the largest shift, from the last to the first, can
    only raise the divergence (derivation.md, section 7). E epochs cost what one epoch of a random allocation
    with that noise does. An epoch that is not complete counts as a whole one, which is an upper end only.
    """

    name = "shuffled-once"
    runnable = lasting = scheduled = True

    @property
    def epoch(self) -> int:
        return math.floor((1 + 1e-12) / self.sample_rate)

    def cost(self, noise: float, steps: int, relation: Relation) -> Cost:
        epochs = -(-steps // self.epoch)
        return RandomAllocation(self.sample_rate).cost(noise / math.sqrt(epochs), self.epoch, relation)

    def chance(self, steps: int) -> tuple[float, str]:
        return min(steps / self.epoch, 1.0), "steps * sample_rate"

    def note(self, relation: Relation) -> str:
        return "shuffled once: the lower end holds where the last epoch is complete"

    def drawer(self, source: random.Random, secret: bytes, n: int) -> Callable[[int], Indices]:
        first = Allocation(secret, n, self.epoch, 1)
        return lambda release: first(release % self.epoch)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    SAMPLINGS.register(ShuffledOnce)
    yield
    del SAMPLINGS._values[ShuffledOnce.name]


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_two_epochs_of_two_steps_against_a_sum_over_outputs(relation: Relation) -> None:
    """Two epochs of two steps agree with a sum over all four outputs on a grid.

    No use is made of what the outputs of a step have in common.
    """
    noise, epsilon = 1.5, 0.3
    x = np.linspace(-7, 8, 61)
    axes = np.meshgrid(x, x, x, x, indexing="ij", sparse=True)

    def law(shift: float) -> np.ndarray:
        """Returns the law of the four outputs where the record moves its step's outputs by `shift`.

        Outputs 0 and 2 are of the first step, 1 and 3 of the second.
        """
        means = [(shift, 0.0, shift, 0.0), (0.0, shift, 0.0, shift)]
        return (
            sum(
                0.5 * math.prod(stats.norm.pdf(axis, mean, noise) for axis, mean in zip(axes, each, strict=True))
                for each in means
            )
            * (x[1] - x[0]) ** 4
        )

    p, q = law(1.0), law(-1.0 if relation is Relation.REPLACE_ONE else 0.0)
    exact = max(float(np.sum(np.maximum(a - math.exp(epsilon) * b, 0.0))) for a, b in ((p, q), (q, p)))
    found = delta_of_history(Step(noise, ShuffledOnce(0.5), relation) * 4, epsilon)
    assert found.lower * (1 - 1e-3) <= exact <= found.upper * (1 + 1e-3)
    assert found.upper < 1.2 * found.lower


def test_from_epsilon_to_a_verified_run(tmp_path: Path) -> None:
    words = {"sampling": "shuffled-once", "relation": "add-remove", "sample_rate": 0.25}
    release = Release(4.0, 8, **words)
    assert release.step.sampling == ShuffledOnce(0.25)
    anew, full = (
        epsilon_of_history([Release(4.0, 8, sampling=kind, relation="add-remove")], 1e-5).upper
        for kind in (RandomAllocation(0.25), FullBatch())
    )
    assert anew < epsilon_of_history([release], 1e-5).upper < full
    noise = calibrate_noise_multiplier(target_epsilon=3.0, target_delta=1e-5, steps=8, **words).value
    assert epsilon_of_history([Release(noise, 8, **words)], 1e-5).upper <= 3.0
    plan = Plan.for_target(
        n=N, target_epsilon=3.0, target_delta=1e-5, expected_batch=N / 4, relation="add-remove",
        sampling="shuffled-once", **STEP,
    )  # fmt: skip
    assert plan.step.noise == pytest.approx(noise, rel=1e-6)
    run = make_private(Logistic(), losses, data(), plan, target_delta=1e-5, folder=tmp_path / "run")
    run.run()
    assert run.get_epsilon(1e-5) <= 3.0
    run.close()
    assert verify([str(tmp_path / "run")]) == 0


def test_every_epoch_is_the_same() -> None:
    drawn = ShuffledOnce(0.25).drawer(random.Random(1), bytes(32), N)
    assert sorted(np.concatenate([drawn(step) for step in range(4)]).tolist()) == list(range(N))
    assert all((drawn(step) == drawn(step + 4)).all() for step in range(4))
