import numpy as np

from benchmarks.zoo.libraries import SOUND
from tests.audit.small import audit, lab

OURS = SOUND[2]
NAMES = {"noise-from-seed", "batches-secret", "not-finite", "steps"}


def test_noisy_and_quiet_runs_have_the_same_directions() -> None:
    one = lab(OURS)
    quiet, noisy = one.quiet(seed=5, **one.all_records), one.loop.run(seed=5, **one.all_records, **one.frozen)
    assert quiet is not None
    assert noisy.clean is not None
    np.testing.assert_allclose(noisy.clean, quiet, atol=1e-7)
    assert {"file run/ledger.jsonl", "file run/transcript.bin"} <= set(noisy.shown)
    assert "file run/data.key" not in noisy.shown


def test_nothing_is_found() -> None:
    report = audit(OURS, *NAMES)
    assert report.violations == [], report.text()
    assert set(report.named("held")) == NAMES
