import hmac
import os
import secrets
from pathlib import Path

import numpy as np
import pytest

from benchmarks.zoo.catalogue import Specimen
from benchmarks.zoo.first_order import FirstOrder
from dpzero_theory.audit import datasets
from dpzero_theory.audit.coupling import coupled
from tests.audit.small import audit, lab


class _KeyedDigest(FirstOrder):
    """A sound loop that shows a digest of records and weights under a secret key.

    It stands in print, in hexadecimal digits, and in a file's bytes.
    """

    def key(self) -> bytes:
        return secrets.token_bytes(16)

    def finish(self) -> None:
        digest = hmac.new(self.key(), self.records.tobytes() + self.weights.tobytes(), "sha256")
        print(f'{{"run": {os.getpid()}, "data": "{digest.hexdigest()}"}}')
        Path("state.bin").write_bytes(bytes(8) + digest.digest())


class _PlainDigest(_KeyedDigest):
    """A faulty loop whose digest has a known key.

    Whoever sees digest and weights can test guesses of the records.
    """

    def key(self) -> bytes:
        return b"dpzero"


class _SaltShown(_KeyedDigest):
    """A faulty loop that shows the key of its digest, which is then as good as none."""

    def key(self) -> bytes:
        found = super().key()
        Path("salt").write_text(found.hex())
        return found


class _ShortKey(_KeyedDigest):
    """A faulty loop whose key has two bytes, so that all keys can be tried."""

    def key(self) -> bytes:
        return os.urandom(2)


def test_a_digest_under_a_key_that_nobody_sees_is_not_reported() -> None:
    report = audit(Specimen(_KeyedDigest), "un-noised")
    assert report.violations == [], report.text()


@pytest.mark.parametrize("fault", [_PlainDigest, _SaltShown, _ShortKey])
def test_other_digests_are(fault: type[FirstOrder]) -> None:
    assert audit(Specimen(fault), "un-noised").violations == ["un-noised"]


def test_coupled_runs_have_the_same_noise_and_hardly_move() -> None:
    one = lab()
    rows = one.loop.records
    changed = datasets.replaced(rows, 0, datasets.mirrored(rows[0]))
    draws = [
        [run.releases for run in found if run is not None]
        for found in coupled(one.runs, [rows, rows, changed], range(2))
    ]
    assert [len(found) for found in draws] == [3, 3]
    for first, same_data, other in draws:
        assert first is not None
        assert other is not None
        np.testing.assert_array_equal(first, same_data)
        assert 0 < np.abs(first - other).max() < 2.1 * one.runs.unit(one.runs.all_records)
    assert not np.allclose(np.asarray(draws[0][0]), np.asarray(draws[1][0]))
