"""Tests of the membership attack, on a small model in the place of the language model."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.audits import membership
from benchmarks.audits.membership import Gain, fitted, judged, measured
from benchmarks.llm.tuned import DELTA
from dpzero_theory.audit.bounds import one_run_epsilon


def test_guesses_that_are_all_right_prove_the_most_and_random_ones_nothing() -> None:
    draw = np.random.default_rng(1)
    inside = draw.integers(0, 2, membership.CANARIES).astype(bool)
    best, none = judged(inside + 0.0, inside), judged(draw.normal(size=inside.size), inside)
    most = one_run_epsilon(membership.GUESSES, membership.GUESSES, membership.CANARIES, DELTA, 0.95)
    assert best["correct"] == membership.GUESSES
    assert best["epsilon_bound"] == most > 3.7
    assert (best["tpr_0.01"], best["tpr_0.1"], best["auc"]) == (1, 1, 1)
    assert none["epsilon_bound"] < 0.5
    assert abs(none["auc"] - 0.5) < 0.15


def test_false_alarms_are_at_most_the_stated_share() -> None:
    inside = np.arange(200) % 2 == 0
    scores = np.where(inside, 0.5, np.arange(200) / 200)
    assert judged(scores, inside)["tpr_0.1"] == 0  # 50 of 100 others are above
    scores = np.where(inside, 0.895, np.arange(200) / 200)
    assert judged(scores, inside)["tpr_0.1"] == 0  # 11 of 100 are not below, though 10 may be
    assert judged(np.where(inside, 0.901, scores), inside)["tpr_0.1"] == 1
    assert judged(np.where(inside, 0.901, scores), inside)["tpr_0.01"] == 0


def test_ridge_regression_finds_who_is_in_the_sums() -> None:
    draw = np.random.default_rng(2)
    design, inside = draw.normal(size=(90, 60)), draw.integers(0, 2, 60).astype(bool)
    sums = design[:, inside].sum(1)
    np.testing.assert_allclose(fitted(design, sums, 0.0), 2.0 * inside - 1, atol=1e-6)
    weak = fitted(design, sums + 3 * draw.normal(size=90), 3.0)
    assert weak[inside].mean() > weak[~inside].mean()


@pytest.mark.parametrize("method", ["mezo", "dpzero", "adamw"])
def test_sums_without_noise_betray_every_canary(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacker computes what each record adds to a sum as the optimiser does, or nothing would be found."""
    for name, value in {"CANARIES": 24, "GUESSES": 12, "STEPS": 3, "ADAMW_STEPS": 3}.items():
        monkeypatch.setattr(membership, name, value)
    draw = torch.Generator().manual_seed(3)
    features, answers = torch.randn(64, 10, generator=draw), torch.randint(2, (64,), generator=draw)
    start = Gain(torch.ones(10), torch.randn(2, 10, generator=draw))
    work: Any = SimpleNamespace(
        start=start,
        canaries=(features[:24], answers[:24]),
        others=(features[24:], answers[24:]),
        accuracy=lambda _: 0.5,
    )
    rows = {row["attack"]: row for row in measured(work, {"method": method, "epsilon": "2", "seed": 1})}
    assert rows.keys() == ({"loss"} if method == "adamw" else {"releases", "loss"})
    assert all(row["epsilon_bound"] >= 0 and row["members"] + 40 == row["n"] for row in rows.values())
    if method == "mezo":
        assert rows["releases"]["correct"] == 12
        assert rows["releases"]["auc"] == 1
    if method == "dpzero":
        assert rows["releases"]["noise_multiplier"] > 1
        assert rows["releases"]["epsilon_upper"] <= 2
