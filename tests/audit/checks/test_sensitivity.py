"""Tests that the audit does not report sound loops that are hard to tell from unsound ones.

Loops with faults are tested in `test_zoo`.
"""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.zoo.catalogue import SOUND, Specimen
from benchmarks.zoo.sound import AdaptiveClip, CorrelatedNoise, Momentum
from benchmarks.zoo.zeroth_order import Array, ZerothOrder
from dpzero_theory.audit.checks.sensitivity import _less_often_clipped
from tests.audit.small import audit, require_sound

WEIGHTS = [one for one in SOUND if "weights" in one.name and "digests" not in one.name]


@pytest.mark.parametrize("repeat", [1, 2])
@pytest.mark.parametrize("specimen", WEIGHTS, ids=lambda specimen: specimen.name)
def test_sound_loops_that_show_weights_are_not_reported(specimen: Specimen, repeat: int) -> None:
    """Sound loops that return weights in place of releases pass the checks of sensitivity.

    Their weights never stay quite where they are, and records a million times as large would show that.
    """
    require_sound(specimen, "sensitivity", "not-finite", "denominator", "batches", "noise-size", repeat=repeat)


NEED_A_WORD = [one for one in SOUND if one.make in (AdaptiveClip, CorrelatedNoise, Momentum)]


@pytest.mark.parametrize("specimen", NEED_A_WORD, ids=lambda specimen: specimen.make.__name__)
def test_sound_loops_that_return_their_releases_in_units_of_the_claim_are_not_reported(specimen: Specimen) -> None:
    """Adaptive clips, correlated noise and momentum pass, with what the tutorial says that such loops return."""
    report = audit(specimen)
    assert report.violations == [], report.text()
    assert report.core_untested == []


def test_an_adaptive_clip_is_asked_for_what_it_took() -> None:
    """Without a word a clip that adapts is reported, with what to say; a named output that is missing is asked for."""
    specimen = next(one for one in SOUND if one.make is AdaptiveClip)
    silent = audit(replace(specimen, adaptive=()), "sensitivity")["sensitivity"]
    assert silent.status == "violated"
    assert "name it in the view's `adaptive`" in silent.mend
    missing = audit(replace(specimen, adaptive=("scales",)), "sensitivity")["sensitivity"]
    assert missing.status == "could not be tested"
    assert "'scales' is missing" in missing.says


class _SometimesHalf(ZerothOrder):
    """A sound zeroth-order loop in which every record adds half of its clipped share along some directions."""

    def clipped(self, differences: Array) -> Array:
        return super().clipped(differences) * (0.5 if self.direction_seed % 4 == 2 else 1.0)


def test_what_follows_directions_is_no_denominator() -> None:
    """Changes that depend on a step's direction must not be taken for a denominator that depends on the batch.

    With the seed under which the audit first exchanges records no direction is such a one; with the next seed some are.
    """
    require_sound(Specimen(_SometimesHalf), "denominator", "batches")


def test_a_start_that_clips_less_is_no_denominator_and_one_that_follows_the_batch_is() -> None:
    """The test of denominators accepts steps that change less for a reason other than the batch, and no others.

    All steps of one seed have the same start. If they change less with all records too, that is not the denominator; if
    the change follows the size of the batch, it is.
    """
    start = np.where(np.arange(4)[:, None] < 2, 2.0, 1.0) * np.ones((4, 12))
    assert _less_often_clipped(start, start) == 1.0
    sizes = np.random.default_rng(3).integers(8, 17, start.shape)
    assert _less_often_clipped(start * 8 / sizes, start) < 1e-9
    assert _less_often_clipped(np.where(sizes > 15, np.nan, start), start) == 1.0
