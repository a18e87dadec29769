"""Tests of the audit of Opacus's PrivacyEngine: what the engine releases, and what the audit notes of it."""

import numpy as np
import pytest

pytest.importorskip("opacus")

from benchmarks.zoo.catalogue import claim, records
from benchmarks.zoo.libraries import FAULTS, SOUND, opacus_default, opacus_secure
from dpzero_theory.audit.claim import View
from dpzero_theory.audit.conformance import check
from dpzero_theory.audit.loop import Loop
from tests.audit.small import audit


def test_what_is_noted_is_what_is_released() -> None:
    """At zero weights, every sum before noise that the audit notes equals the clipped per-record gradients by hand."""
    rows = records()
    found = Loop(opacus_default(), rows, claim(), View(), {"step_size": 0.0}).run(seed=3, noise_multiplier=1e-9)
    assert found.releases is not None
    assert found.clean is not None
    assert found.batches is not None
    np.testing.assert_allclose(found.releases, found.clean, atol=1e-6)
    features = np.hstack([rows[:, :-1], np.ones((len(rows), 1))])
    gradients = -0.5 * rows[:, -1:] * features
    gradients *= np.minimum(1, 1 / np.linalg.norm(gradients, axis=1, keepdims=True))
    for batch, clean in zip(found.batches, found.clean, strict=True):
        np.testing.assert_allclose(clean, gradients[batch].sum(axis=0) / 12, atol=1e-5)


def test_defaults_and_secure_mode() -> None:
    names = ("noise-from-seed", "batches-secret")
    settings = {"step_size": 0.1}
    default = check(opacus_default(), records(), claim(), View(), settings, checks=names, runs=24)
    secure = check(opacus_secure(), records(), claim(), View(), settings, checks=names, runs=24)
    assert default.violations == list(names)
    assert secure.violations == []


def test_the_denominator_counts_records() -> None:
    assert audit(FAULTS[1], "denominator").violations == ["denominator"]
    assert audit(SOUND[1], "denominator").violations == []
