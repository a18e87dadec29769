"""What adaptive budgets cost and random policies against them, in a small run, and what the committed rows say."""

import math

import numpy as np
import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.privacy import adaptive
from dpzero_theory.privacy.filter import Filter
from dpzero_theory.privacy.sampling import FullBatch
from dpzero_theory.privacy.step import Step


def test_the_cost_of_a_full_batch_setting_has_a_closed_form() -> None:
    """The best single t over a fine grid, for which T t (t + 1)/(2 s^2) is t epsilon + log delta - log c(t)."""
    cell = dict(zip(adaptive.NAMES, (100, 100, 50, 2.0, 1e-5), strict=True))
    row = adaptive.cost({"setting": 1, **cell})
    t = np.geomspace(0.5, 100, 20_001)
    limit = t * 2.0 + math.log(1e-5) - (t * np.log(t) - (1 + t) * np.log1p(t))
    fits = limit > 0
    best = math.sqrt(float(np.min(50 * (t * (t + 1))[fits] / (2 * limit[fits]))))
    assert row["filter_noise"] == pytest.approx(best, rel=3e-4)
    assert row["planned_noise"] < row["filter_noise"] < 1.15 * row["planned_noise"]
    assert row["filter_steps"] < 50


def test_a_policy_attains_what_it_would_with_more_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    few = adaptive.policy({"setting": 7})
    monkeypatch.setattr(adaptive, "RUNS", 40_000)
    many = adaptive.policy({"setting": 7})
    assert abs(few["attained"] - many["attained"]) < 6 * few["error"]
    assert not many["exceeds"]


def test_a_policy_with_a_larger_budget_is_seen_to_exceed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of twice the epsilon is spent by policies that are judged by the smaller one."""
    step = Step(1.0, FullBatch(), "add-remove")
    wide = Filter(2 * adaptive.EPSILON, adaptive.DELTA, planned=step)
    monkeypatch.setattr(adaptive, "_budget", lambda: wide)
    assert any(adaptive.policy({"setting": number})["exceeds"] for number in range(1, 20))


def test_the_committed_rows_are_whole_and_no_policy_exceeds() -> None:
    assert len(read_rows(RESULTS / "adaptive_cost")) == len(adaptive.SETTINGS)
    made = read_rows(RESULTS / "adaptive_policies")
    assert len(made) == adaptive.POLICIES
    assert not made["exceeds"].any()
    assert made["attained"].median() > adaptive.DELTA / 4
