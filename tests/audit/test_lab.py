import numpy as np
import pytest

from benchmarks.zoo.catalogue import SOUND
from benchmarks.zoo.first_order import FirstOrder
from dpzero_theory.audit import datasets
from dpzero_theory.audit.runs import same
from tests.audit.small import STEPS, N, lab, named


def test_quiet_runs_are_the_clipped_sum_over_the_batch() -> None:
    """The first release of a run almost without noise, with all records, is the clipped sum computed by loops."""
    one = lab()
    assert one.runs.repeatable == {}
    rows = one.loop.records
    expected = np.zeros(rows.shape[1] - 1)
    for row in rows:
        gradient = -row[-1] * row[:-1] / 2
        expected += gradient / max(1.0, float(np.sqrt(gradient @ gradient)))
    found = one.runs.quiet(**one.runs.all_records)
    assert found is not None
    np.testing.assert_allclose(found, np.tile(expected / N, (STEPS, 1)), atol=1e-7)


def test_the_scan_sees_the_batches_that_were_drawn() -> None:
    one = lab()
    assert one.influence.scan is not None
    rng = np.random.default_rng(11)
    drawn = np.array([rng.random(N) < one.claim.sample_rate for _ in range(STEPS)])
    np.testing.assert_array_equal(one.influence.scan.included[0], drawn)


def test_noise_is_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FirstOrder, "noise_source", lambda self, seed: np.random.default_rng(99))
    one = lab()
    assert one.noise.sample is not None
    rng = np.random.default_rng(99)
    np.testing.assert_allclose(one.noise.sample.values[0], rng.normal(size=one.noise.sample.values[0].shape), atol=1e-6)


def test_a_loop_that_ignores_its_noise_has_no_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FirstOrder, "std", lambda self: 2.0)
    one = lab()
    assert not one.runs.noise_follows
    assert one.runs.repeatable is None
    assert one.noise.blind
    assert one.noise.sample is not None
    assert 0.9 < one.noise.sample.values.std() < 1.1


def test_a_loop_that_ignores_its_step_size_shows_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    one = lab(step_size=0.3, names=None)
    assert one.runs.frozen == {"step_size": 0.0}
    assert one.runs.comparable_steps == slice(None)
    other = lab()
    del other.loop.settings["step_size"]  # type: ignore[attr-defined]
    other.loop.settings["step_size_"] = 0.3  # type: ignore[index]
    assert other.runs.frozen == {}
    assert other.runs.comparable_steps == slice(0, 1)


def test_one_record_less() -> None:
    assert lab().influence.with_one_less == pytest.approx(1.0, abs=1e-6)
    # What a record adds with one record less cannot be compared here: the loop then has other directions.
    assert lab(SOUND[3]).influence.with_one_less is None
    [specimen] = named("DividesByBatch")
    assert lab(specimen).influence.with_one_less == pytest.approx(N / (N - 1), rel=1e-6)


def test_the_pair_is_clipped_on_both_sides() -> None:
    one = lab(SOUND[3])
    assert one.influence.pair is not None
    assert one.influence.pair.size == pytest.approx(2.0, abs=1e-3)
    base = one.runs.quiet(**one.runs.all_records)
    moved = one.runs.quiet(datasets.replaced(one.loop.records, 3, one.influence.pair.first), **one.runs.all_records)
    assert base is not None
    assert moved is not None
    assert not same(base, moved)
