"""Samplings of one's own: each is one class and one registration, accounted for and used up to a verified run.

The first has Poisson batches with another cap: where more than B records are drawn, the step takes a uniformly random
set of B of all n records instead. The second is random allocation with one allocation for all epochs, as when data are
shuffled once.
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
from dpzero_theory.privacy.laws.law import ByChance, Cost
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS, FixedSize, FullBatch, Poisson, RandomAllocation, Sampling
from dpzero_theory.privacy.schedule import Indices, allocation
from dpzero_theory.privacy.step import Step
from tests.optim.small import STEP, Logistic, N, data, losses
from tests.privacy.oracle import around, made
from tests.privacy.test_truncation import over_all_data


@dataclass(frozen=True)
class RedrawnPoisson(Sampling):
    """A sampling by Poisson batches with a cap, B = `largest`.

    Where more than B records are drawn, the batch is a uniformly random set of B of all n records instead. Let m be the
    number of other records that are drawn. If m < B the step is a Poisson step. Else, told so, it is at most a step
    with fixed-size batches of rate B/n: for m > B it is one, and for m = B it is one where the record is drawn, and
    without the record where it is not. With add-remove the case m = B would need the record to be there.
    """

    largest: int
    n: int
    name, arguments = "redrawn-poisson", ":B/n"
    runnable = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sample_rate * self.n <= self.largest < self.n:
            raise ValueError(f"largest batch must be at least sample_rate n, and below n; got {self.largest}")

    def require(self, relation: Relation) -> None:
        if relation is Relation.ADD_REMOVE:
            raise ValueError(f"relation must be replace-one or zero-out with sampling {self.name}; got {relation!s}")

    def _used(self) -> float:
        law = stats.binom(self.n - 1, self.sample_rate)
        redrawn = law.sf(self.largest) + self.sample_rate * law.pmf(self.largest)
        return float(self.sample_rate * law.cdf(self.largest - 1) + self.largest / self.n * redrawn)

    def amplified(self, noise: float, steps: int, relation: Relation) -> Cost:
        usual = Poisson(self.sample_rate).cost(noise, 1, relation)
        otherwise = FixedSize(self.largest / self.n).cost(noise, 1, relation)
        below = Poisson(self._used()).cost(noise, steps, relation)
        law = stats.binom(self.n - 1, self.sample_rate)
        full, rarely_full = law.sf(self.largest - 1) * (1 + 1e-9), law.cdf(self.largest - 1) * (1 + 1e-9)
        kinds = [ByChance(((rarely_full, usual.above[k][0][0]), (full, otherwise.above[k][0][0]))) for k in (0, 1)]
        return Cost.of(*kinds, count=steps).bounding(below)

    def chance(self, steps: int) -> float:
        return Poisson(self._used()).chance(steps)

    def batch_size(self, n: int) -> None:
        if n != self.n:
            raise ValueError(f"n must be {self.n} with sampling {self.word}; got {n}")

    def draw(self, source: random.Random, n: int) -> Indices:
        batch = Poisson(self.sample_rate).draw(source, n)
        if len(batch) <= self.largest:
            return batch
        return np.sort(np.array(source.sample(range(n), self.largest), dtype=np.int64))


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

    def amplified(self, noise: float, steps: int, relation: Relation) -> Cost:
        epochs = -(-steps // self.epoch)
        return RandomAllocation(self.sample_rate).cost(noise / math.sqrt(epochs), self.epoch, relation)

    def chance(self, steps: int) -> float:
        return min(steps / self.epoch, 1.0)

    def note(self, relation: Relation) -> str:
        return "shuffled once: the lower end holds where the last epoch is complete"

    def drawer(self, source: random.Random, secret: bytes, n: int) -> Callable[[int], Indices]:
        first = allocation(secret, n, self.epoch, 1)
        return lambda release: first(release % self.epoch)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for kind in (RedrawnPoisson, ShuffledOnce):
        SAMPLINGS.register(kind)
    yield
    for kind in (RedrawnPoisson, ShuffledOnce):
        del SAMPLINGS[kind.name]


@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.ZERO_OUT])
def test_the_bracket_of_redrawn_batches_holds_for_all_data(relation):
    for epsilon in (0.0, 0.5):
        found = delta_of_history(Step(0.8, RedrawnPoisson(0.4, 2, 4), relation), epsilon)
        worst = over_all_data(relation, 0.4, 2, 0.8, epsilon, redrawn=True)[0]
        assert 0 < found.lower * (1 - 1e-5) <= worst < found.upper
    with pytest.raises(ValueError, match="relation must be replace-one or zero-out"):
        Step(1.0, RedrawnPoisson(0.4, 2, 4), Relation.ADD_REMOVE)


@pytest.mark.parametrize(("relation", "other"), [("add-remove", 0.0), ("replace-one", -1.0)])
def test_two_epochs_of_two_steps_against_a_sum_over_outputs(relation, other):
    """Outputs 0 and 2 are of the first step, 1 and 3 of the second; no use is made of what they have in common."""
    noise, epsilon, x = 1.5, 0.3, np.linspace(-7, 8, 61)
    axes = np.meshgrid(x, x, x, x, indexing="ij", sparse=True)

    def law(shift):
        means = [(shift, 0.0, shift, 0.0), (0.0, shift, 0.0, shift)]
        densities = (
            math.prod(stats.norm.pdf(axis, mean, noise) for axis, mean in zip(axes, each, strict=True))
            for each in means
        )
        return sum(densities) / 2 * (x[1] - x[0]) ** 4

    p, q = law(1.0), law(other)
    exact = max(float(np.sum(np.maximum(a - math.exp(epsilon) * b, 0.0))) for a, b in ((p, q), (q, p)))
    assert around(delta_of_history(Step(noise, ShuffledOnce(0.5), relation) * 4, epsilon), exact, 1e-3, width=0.2)


@pytest.mark.parametrize(
    ("word", "value", "relation", "steps", "less", "more"),
    [
        (f"redrawn-poisson:16/{N}", RedrawnPoisson(0.25, 16, N), "replace-one", 4, Poisson(0.25), FixedSize(0.4)),
        ("shuffled-once", ShuffledOnce(0.25), "add-remove", 8, RandomAllocation(0.25), FullBatch()),
    ],
    ids=["redrawn", "shuffled once"],
)
def test_from_epsilon_to_a_verified_run(tmp_path: Path, word, value, relation, steps, less, more):
    release = made(4.0, steps, 0.25, relation, sampling=word)
    assert release.sampling == value
    low, high = (epsilon_of_history(Step(4.0, kind, relation) * steps, 1e-5).upper for kind in (less, more))
    assert low * 0.99 < epsilon_of_history(release, 1e-5).upper < high
    plan = Plan.for_target(
        n=N, target_epsilon=3.0, target_delta=1e-5, expected_batch=N / 4, relation=relation, sampling=word,
        **{**STEP, "steps": steps},
    )  # fmt: skip
    assert epsilon_of_history(release.with_noise(plan.step.noise), 1e-5).upper <= 3.0
    run = make_private(Logistic(), losses, data(), plan, target_delta=1e-5, folder=tmp_path / "run")
    run.run()
    assert run.get_epsilon(1e-5) <= 3.0
    run.close()
    assert verify([str(tmp_path / "run")]) == 0


def test_their_batches():
    source, kind = random.Random(1), RedrawnPoisson(0.25, 11, N)
    sizes = [len(kind.draw(source, N)) for _ in range(2000)]
    assert max(sizes) == 11
    expected = stats.binom.pmf(11, N, 0.25) + stats.binom.sf(11, N, 0.25)
    assert np.mean(np.array(sizes) == 11) == pytest.approx(expected, abs=6 * math.sqrt(0.25 / 2000))
    drawn = ShuffledOnce(0.25).drawer(random.Random(1), bytes(32), N)
    assert sorted(np.concatenate([drawn(step) for step in range(4)]).tolist()) == list(range(N))
    assert all((drawn(step) == drawn(step + 4)).all() for step in range(4))
