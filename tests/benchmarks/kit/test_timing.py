"""Tests of ratios of times measured in turns, and of inputs that are new each time."""

import functools

import numpy as np
import pytest

from benchmarks.kit.timing import median_ratio, timed
from dpzero_theory import privacy


def test_the_error_is_the_spread_of_the_median() -> None:
    """The error stated with a median ratio is, on average, within 10% of the standard deviation of 2,000 medians.

    Each is the median of 41 normal ratios.
    """
    rng = np.random.default_rng(0)
    found = np.array([median_ratio(rng.normal(1.01, 0.05, 41), np.ones(41)) for _ in range(2000)])  # type: ignore[arg-type]
    assert found[:, 0].mean() == pytest.approx(1.01, abs=1e-3)
    assert found[:, 1].mean() == pytest.approx(found[:, 0].std(), rel=0.1)


def test_ratios_are_taken_within_a_turn() -> None:
    assert median_ratio([2.0, 20.0, 6.0], [1.0, 10.0, 2.0])[0] == 2.0


def test_one_turn_has_no_error() -> None:
    with pytest.raises(ValueError, match="at least 2 turns; got 1"):
        median_ratio([1.0], [1.0])


def test_nothing_is_kept_of_earlier_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    question = functools.lru_cache(lambda: asked.append(1))
    monkeypatch.setattr(privacy, "question", question, raising=False)
    assert [timed(question).found for _ in range(3)] == [None] * 3
    assert len(asked) == 3
