"""Tests of the audit's accounting checks on loops that stop early; loops with faults are tested in `test_zoo`."""

import pytest

from benchmarks.zoo.catalogue import Specimen
from benchmarks.zoo.first_order import FirstOrder
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import Release
from tests.audit.small import audit


class _StopsHalfWay(FirstOrder):
    """A sound loop that makes half of its steps, and reports `share` times the epsilon that these cost."""

    share = 1.0

    def steps(self) -> int:
        return super().steps() // 2

    def finish(self) -> None:
        rate = self.settings["batch"] / self.settings["n"]
        spent = Release(2.0, self.steps(), sampling="poisson", relation="add-remove", sample_rate=rate)
        self.outputs["epsilon"] = self.share * epsilon_of_history([spent], self.settings["delta"]).upper


class _SaysLess(_StopsHalfWay):
    share = 0.9


@pytest.mark.parametrize(("make", "found"), [(_StopsHalfWay, []), (_SaysLess, ["accounting"])])
def test_what_is_reported_is_held_against_the_steps_that_were_made(make: type[FirstOrder], found: list[str]) -> None:
    assert audit(Specimen(make), "accounting").violations == found
