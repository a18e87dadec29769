"""Tests that a sampling defined in this file alone can be accounted for and used up to a verified run.

It has Poisson batches with another cap: where more than B records are drawn, the step takes a uniformly random set of B
of all n records instead. Nothing in the library knows of it: what follows is one class and one registration.
"""

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_private
from dpzero_theory.optim.verify import main as verify
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.cost import Cost
from dpzero_theory.privacy.laws.law import ByChance
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS, FixedSize, Poisson, Sampling
from dpzero_theory.privacy.schedule import Indices
from dpzero_theory.privacy.step import Release, Step
from tests.optim.small import STEP, Logistic, N, data, losses


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

    @classmethod
    def of(cls, arguments: str, sample_rate: float | None) -> Self:
        found = re.fullmatch(r"(\d+)/(\d+)", arguments)
        if found is None:
            raise ValueError(f"sampling must be {cls.name}:B/n; got {arguments!r}")
        return cls(sample_rate, *map(int, found.groups()))  # type: ignore[arg-type]  # checked by _rate

    @property
    def word(self) -> str:
        return f"{self.name}:{self.largest}/{self.n}"

    def require(self, relation: Relation) -> None:
        if relation is Relation.ADD_REMOVE:
            raise ValueError(f"relation must be replace-one or zero-out with sampling {self.name}; got {relation!s}")

    def _used(self) -> float:
        law = stats.binom(self.n - 1, self.sample_rate)
        redrawn = law.sf(self.largest) + self.sample_rate * law.pmf(self.largest)
        return float(self.sample_rate * law.cdf(self.largest - 1) + self.largest / self.n * redrawn)

    def cost(self, noise: float, steps: int, relation: Relation) -> Cost:
        usual = Poisson(self.sample_rate).cost(noise, 1, relation)
        otherwise = FixedSize(self.largest / self.n).cost(noise, 1, relation)
        below = Poisson(self._used()).cost(noise, steps, relation)
        law = stats.binom(self.n - 1, self.sample_rate)
        full, rarely_full = law.sf(self.largest - 1) * (1 + 1e-9), law.cdf(self.largest - 1) * (1 + 1e-9)
        kinds = [ByChance(((rarely_full, usual.above[k][0][0]), (full, otherwise.above[k][0][0]))) for k in (0, 1)]
        return Cost.of(*kinds, count=steps).bounding(below)

    def chance(self, steps: int) -> tuple[float, str]:
        return Poisson(self._used()).chance(steps)

    def batch_size(self, n: int) -> None:
        if n != self.n:
            raise ValueError(f"n must be {self.n} with sampling {self.word}; got {n}")

    def most(self, n: int, chance: float) -> int:
        return self.largest

    def draw(self, source: random.Random, n: int) -> Indices:
        batch = Poisson(self.sample_rate).draw(source, n)
        if len(batch) <= self.largest:
            return batch
        return np.sort(np.array(source.sample(range(n), self.largest), dtype=np.int64))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    SAMPLINGS.register(RedrawnPoisson)
    yield
    del SAMPLINGS._values[RedrawnPoisson.name]


X = np.linspace(-14, 14, 8001)


def density(contributions: list[float], rate: float, largest: int, noise: float) -> np.ndarray:
    """Returns the density of the noisy sum of one batch of scalars, by enumeration of the records that are drawn.

    `contributions` are the records' scalars, `rate` is the sampling rate, `largest` the cap B, and `noise` the standard
    deviation.
    """
    n, law = len(contributions), Counter[tuple[int, ...]]()
    kept = list(itertools.combinations(range(n), largest))
    for size in range(n + 1):
        for drawn in itertools.combinations(range(n), size):
            batches = [drawn] if size <= largest else kept
            for batch in batches:
                law[batch] += rate**size * (1 - rate) ** (n - size) / len(batches)
    return sum(p * stats.norm.pdf(X, sum(contributions[i] for i in batch), noise) for batch, p in law.items())


@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.ZERO_OUT])
def test_the_bracket_holds_for_all_data(relation: Relation) -> None:
    """The bracket of one step holds for every scalar data set with three other records at -1, 0 or 1.

    The batches are enumerated.
    """
    rate, largest, noise = 0.4, 2, 0.8
    drawn = Step(noise, RedrawnPoisson(rate, largest, 4), relation)
    pairs = [(1.0, 0.0)] if relation is Relation.ZERO_OUT else [(1.0, -1.0), (1.0, 0.0)]
    for epsilon in (0.0, 0.5):
        bracket, worst = delta_of_history(drawn, epsilon), 0.0
        for others in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), 3):
            for one, other in pairs:
                p, q = (density([value, *others], rate, largest, noise) for value in (one, other))
                for a, b in ((p, q), (q, p)):
                    found = float(np.sum(np.maximum(a - math.exp(epsilon) * b, 0.0)) * (X[1] - X[0]))
                    worst = max(worst, found)
        assert 0 < bracket.lower * (1 - 1e-5) <= worst < bracket.upper


def test_from_epsilon_to_a_verified_run(tmp_path: Path) -> None:
    word = f"redrawn-poisson:16/{N}"
    words = {"sampling": word, "relation": "replace-one", "sample_rate": 0.25}
    release = Release(4.0, 4, **words)
    assert release.step.sampling == RedrawnPoisson(0.25, 16, N)
    plain, fixed = (
        epsilon_of_history([Release(4.0, 4, sampling=kind, relation="replace-one")], 1e-5).upper
        for kind in (Poisson(0.25), FixedSize(0.4))
    )
    assert plain * 0.99 < epsilon_of_history([release], 1e-5).upper < fixed
    noise = calibrate_noise_multiplier(target_epsilon=3.0, target_delta=1e-5, steps=4, **words).value
    assert epsilon_of_history([Release(noise, 4, **words)], 1e-5).upper <= 3.0
    plan = Plan.for_target(
        n=N,
        target_epsilon=3.0,
        target_delta=1e-5,
        expected_batch=N / 4,
        relation="replace-one",
        sampling=word,
        **{**STEP, "steps": 4},
    )
    assert plan.step.noise == pytest.approx(noise, rel=1e-6)
    run = make_private(Logistic(), losses, data(), plan, target_delta=1e-5, folder=tmp_path / "run")
    run.run()
    assert run.get_epsilon(1e-5) <= 3.0
    run.close()
    assert verify([str(tmp_path / "run")]) == 0


def test_batches_above_the_cap_are_drawn_again() -> None:
    source, kind = random.Random(1), RedrawnPoisson(0.25, 11, N)
    sizes = [len(kind.draw(source, N)) for _ in range(2000)]
    assert max(sizes) == 11
    expected = stats.binom.pmf(11, N, 0.25) + stats.binom.sf(11, N, 0.25)
    assert np.mean(np.array(sizes) == 11) == pytest.approx(expected, abs=6 * math.sqrt(0.25 / 2000))
    with pytest.raises(ValueError, match="relation must be replace-one or zero-out"):
        Step(1.0, kind, Relation.ADD_REMOVE)
