"""Tests that no check says 'held' beside an effect that it would have seen, and does not see when it is planted.

Each effect is taken from the words of the sound loop's own report, and planted in exactly that size.
"""

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.zoo.catalogue import Specimen
from benchmarks.zoo.first_order import Array, FirstOrder
from dpzero_theory.audit.finding import HELD, VIOLATED
from dpzero_theory.audit.report import AuditReport
from tests.audit.small import audit

KEY = 2**100
"""A seed as long as a key, since the audit finds noise of a generator with a short seed."""


class Drawn(FirstOrder):
    """A sound loop whose noise is drawn by one generator of the test, so that the test has no chance in it."""

    source_of_all = np.random.default_rng(KEY)

    def noise_source(self, seed: int) -> np.random.Generator:
        return self.source_of_all


def _less(share: float) -> type[Drawn]:
    class Less(Drawn):
        def std(self) -> float:
            return share * super().std()

    return Less


def _other_law(distance: float) -> type[Drawn]:
    class OtherLaw(Drawn):
        """Its noise has the claimed variance, and signs of which a share of one half plus `distance` are positive.

        At 0 its distribution function is `distance` from the Gaussian one.
        """

        def noise(self, size: int) -> Array:
            signs = np.where(self.source.random(size) < 0.5 + distance, 1.0, -1.0)
            return np.asarray(self.std() * signs * np.abs(self.source.normal(size=size)))

    return OtherLaw


def _correlated(correlation: float) -> type[Drawn]:
    class Correlated(Drawn):
        last: Array

        def noise(self, size: int) -> Array:
            new = self.source.normal(size=size)
            kept = new if self.step == 0 else correlation * self.last + np.sqrt(1 - correlation**2) * new
            self.last = kept
            return np.asarray(self.std() * kept)

    return Correlated


def _values(count: float) -> type[Drawn]:
    class FewValues(Drawn):
        pool = np.random.default_rng(1).normal(size=int(count))

        def noise(self, size: int) -> Array:
            return np.asarray(self.std() * self.source.choice(self.pool, size) * self.source.choice([-1, 1], size))

    return FewValues


def _on_grid(bits: float) -> type[Drawn]:
    class OnGrid(Drawn):
        def noise(self, size: int) -> Array:
            spacing = self.std() * 2.0**-bits
            return np.asarray(np.round(super().noise(size) / spacing) * spacing)

    return OnGrid


def _moved(factor: float) -> type[Drawn]:
    class LargerClip(Drawn):
        def clip(self) -> float:
            return super().clip() * factor * (1 + 1e-6)

        def std(self) -> float:
            return float(self.settings["noise_multiplier"]) * super().clip()

    return LargerClip


def _rate(difference: float) -> type[Drawn]:
    class OtherRate(Drawn):
        def batch(self) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
            rate = min(1.0, float(self.settings["batch"]) / int(self.settings["n"]))
            return np.flatnonzero(self.rng.random(len(self.records)) < (rate + difference if rate < 1 else rate))

    return OtherRate


def _one_of_seed(power: str) -> type[Drawn]:
    class OneOfSeed(Drawn):
        """The first number of the noise of its second step comes from its seed."""

        def noise(self, size: int) -> Array:
            found = super().noise(size)
            if self.step == 1:
                found[0] = self.std() * np.random.default_rng(self.seed + 77).normal()
            return found

    return OneOfSeed


def _as_shown(correlation: float) -> type[Drawn]:
    class AsShown(Drawn):
        """The first number of its noise has a correlation with a number that it shows, which is drawn for a later
        step."""

        def noise(self, size: int) -> Array:
            if self.step == 0:
                self.drawn = np.random.default_rng([self.seed, 9]).normal(size=(self.steps(), 1))
                self.outputs["drawn"] = self.drawn
            found = super().noise(size)
            later = self.drawn[(self.step + 1) % len(self.drawn), 0]
            found[0] = correlation * self.std() * later + np.sqrt(1 - correlation**2) * found[0]
            return found

    return AsShown


def _number(text: str, after: str) -> float:
    return float(text.split(after)[1].split()[0])


PLANTED: dict[str, Callable[[str], type[Drawn]]] = {
    "noise-from-seed": _one_of_seed,
    "noise-from-directions": lambda power: _as_shown(_number(power, "correlation of ")),
    "noise-size": lambda power: _less(_number(power, "less than ")),
    "noise-law": lambda power: _other_law(_number(power, "functions ")),
    "noise-independence": lambda power: _correlated(float(power.split()[-1])),
    "noise-repeated": lambda power: _values(_number(power, "fewer than about ")),
    "representable": lambda power: _on_grid(float(power.split("2^-")[1].split()[0]) - 1),
    "sensitivity": lambda power: _moved(_number(power, "more than ") / _number(power, "where ")),
    "batches": lambda power: _rate(_number(power, "within about ")),
}
"""For each check whose report states a size, the loop in which an effect of this size is planted."""


@pytest.fixture(scope="module")
def sound() -> AuditReport:
    Drawn.source_of_all = np.random.default_rng(KEY)
    return audit(Specimen(Drawn, seed="public"))


@pytest.mark.parametrize("name", list(PLANTED))
def test_the_effect_that_a_held_check_would_have_seen_is_seen(sound: AuditReport, name: str) -> None:
    assert sound[name].status == HELD, sound[name].says
    Drawn.source_of_all = np.random.default_rng(KEY + 1)
    after = audit(Specimen(PLANTED[name](sound[name].power), seed="public"), name)[name]
    assert after.status == VIOLATED, f"{sound[name].power}: {after.says}"


def test_every_effect_that_is_stated_is_planted(sound: AuditReport) -> None:
    """Two effects are planted elsewhere: the attack's in test_verdicts.py, and that of `unaccounted`, whose words name
    no size, in the zoo."""
    stated = {entry.check.name for entry in sound.entries if entry.verdict.power}
    assert stated == PLANTED.keys() | {"attack", "unaccounted"}
