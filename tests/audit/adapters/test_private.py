import numpy as np

from benchmarks.zoo.libraries import SOUND
from tests.audit.small import audit, lab

OURS = SOUND[2]
NAMES = {"noise-from-seed", "batches-secret", "not-finite", "steps"}


def test_noisy_and_quiet_runs_have_the_same_directions() -> None:
    one = lab(OURS)
    quiet = one.quiet(one.loudest, seed=5, **one.all_records)
    noisy = one.loop.run(one.loudest, seed=5, **one.all_records, **one.frozen)
    assert quiet is not None
    assert noisy.releases is not None
    noise = (noisy.releases - quiet) / one.claim.noise_std(one.claim.n)
    assert np.abs(noise).max() < 8
    assert np.abs(quiet).min() > 10 * one.claim.noise_std(one.claim.n)
    assert noisy.batches == [list(range(one.claim.n))] * one.claim.steps
    assert {"file run/ledger.jsonl", "file run/transcript.bin"} <= set(noisy.shown)
    assert "file run/data.key" not in noisy.shown


def test_nothing_is_found() -> None:
    report = audit(OURS, *NAMES)
    assert report.violations == [], report.text()
    assert set(report.named("held")) == NAMES
