"""Tests of the audit's accounting checks on loops that stop early; loops with faults are tested in `test_zoo`."""

from dataclasses import replace

import pytest

from benchmarks.zoo import catalogue
from benchmarks.zoo.catalogue import SOUND, Specimen
from benchmarks.zoo.first_order import FirstOrder
from dpzero_theory.audit.conformance import check as conformance
from dpzero_theory.audit.finding import HELD
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


@pytest.mark.parametrize(("delta", "warned"), [(1e-5, False), (1 / 49, False), (1 / 48, True), (0.1, True)])
def test_a_delta_that_is_not_below_one_over_n_is_warned_of(delta: float, warned: bool) -> None:
    claimed = replace(catalogue.claim(), delta=delta)
    assert claimed.n == 48
    found = conformance(
        SOUND[0].make(), catalogue.records(), claimed, settings={"step_size": 0.1}, checks=("accounting",)
    )
    assert found["accounting"].status == HELD
    assert ("warning: delta" in found["accounting"].says) == warned
