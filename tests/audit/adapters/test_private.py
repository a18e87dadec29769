from dataclasses import replace

import numpy as np
import pytest

from benchmarks.zoo import catalogue
from benchmarks.zoo.libraries import SOUND
from dpzero_theory.audit import datasets
from dpzero_theory.audit.adapters import private
from dpzero_theory.audit.checks.leaks import differing
from dpzero_theory.audit.conformance import every
from dpzero_theory.audit.coupling import CLIPPED, LARGER, coupled
from tests.audit.small import audit, lab

OURS = SOUND[2]
FULL = replace(OURS, claimed=lambda: catalogue.claim("full", "replace-one"))
NAMES = {"noise-from-seed", "batches-secret", "not-finite", "steps"}


def test_noisy_and_quiet_runs_have_the_same_directions() -> None:
    one = lab(OURS)
    quiet = one.runs.quiet(one.influence.loudest, seed=5, **one.runs.all_records)
    noisy = one.loop.run(one.influence.loudest, seed=5, **one.runs.all_records, **one.runs.frozen)
    assert quiet is not None
    assert noisy.releases is not None
    noise = (noisy.releases - quiet) / one.claim.noise_std(one.claim.n)
    assert np.abs(noise).max() < 8
    assert np.abs(quiet).min() > 10 * one.claim.noise_std(one.claim.n)
    assert noisy.batches == [list(range(one.claim.n))] * one.claim.steps
    assert {"file run/run.sqlite"} <= set(noisy.shown)
    assert "file run/data.key" not in noisy.shown


@pytest.mark.parametrize("seed", ["public", "secret"])
def test_nothing_is_found(seed: str) -> None:
    report = audit(replace(OURS, seed=seed), *NAMES)
    assert report.violations == [], report.text()
    assert set(report.named("held")) == NAMES


def test_nothing_is_found_in_the_bits_of_the_noise() -> None:
    report = audit(FULL, "representable", "noise-shown", "records-shown")
    assert report.violations == [], report.text()
    assert len(report.named("held")) == 3


@pytest.mark.parametrize("key", ["removed", "shown"])
def test_the_digest_of_the_records_says_something_to_those_with_its_key(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key == "shown":
        monkeypatch.setattr(private.os, "remove", lambda path: None)
    one = lab(FULL)
    rows = one.loop.records
    worlds = [
        datasets.replaced(rows, 0, datasets.scaled(rows[0], factor)) for factor in (CLIPPED[0], CLIPPED[0] * LARGER)
    ]
    [found] = coupled(one.runs, worlds * 2, [0])
    places = differing(found)
    assert places is not None
    assert bool(places) == (key == "shown")
    assert {name for name, _ in places} <= {"file run/run.sqlite"}


def test_checks_on_other_records() -> None:
    """Checks that do not need several hundred runs hold on other records than the loop's own."""
    few = {check.name for check in every()} - {"un-noised", "unaccounted"}
    report = audit(OURS, *few, repeat=1)
    assert report.violations == [], report.text()
    assert set(report.named("could not be tested")) == {"noise-from-directions", "one-run"}
