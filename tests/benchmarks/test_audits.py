"""Tests of the zoo of audited loops and of the membership attack, and of what the page says of their rows."""

import contextlib
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.audits import membership
from benchmarks.audits.audit_zoo import EXPERIMENT, REPEATS
from benchmarks.audits.membership import Gain, fitted, judged, measured
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.llm.tuned import DELTA
from benchmarks.zoo.table import FAULTS, LOOPS, SOUND, Loop, records
from dpzero_theory.audit.bounds import one_run_epsilon
from dpzero_theory.audit.conformance import CHECKS

OTHER_STEPS = {"one-step-more", "stops-by-loss", "early-stopping", "sound-ends-by-a-noised-count"}
"""Loops that make another number of steps than claimed, or one that follows the data or the releases."""


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_makes_the_claimed_number_of_steps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loop = LOOPS[name]
    settings = {**vars(loop.claimed), **loop.given}
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        monkeypatch.setattr("warnings.warn", lambda *said, **how: None)
        found = loop.train()(records(loop.claimed.n), 5, settings)
    key = "releases" if "releases" in found else "trajectory"
    released = np.asarray(found[key])
    assert np.isfinite(released).all()
    assert name in OTHER_STEPS or len(released) == loop.claimed.steps + (key == "trajectory")
    assert loop.viewed


def test_every_fault_names_checks_of_the_audit() -> None:
    assert all(set(loop.finds) <= set(CHECKS) and loop.says for loop in LOOPS.values())
    assert {loop.finds[0] for loop in FAULTS.values()} == set(CHECKS)


def test_a_changed_line_takes_the_place_of_one_line() -> None:
    with pytest.raises(ValueError, match="not enough values to unpack"):
        Loop("none", "", change=["nothing = 3"]).train()


def test_a_row_of_a_fault_and_of_a_sound_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--loops", "noise-none", "claims-less", "--quick", "--out", str(tmp_path)]
    assert EXPERIMENT.main(line) == 0
    rows = read_rows(tmp_path).set_index("loop")
    assert list(rows["found"]) == ["yes", "yes"]
    assert [rows.loc["noise-none", name] for name in ("un-noised", "sensitivity")] == ["VIOLATED", "untested"]
    assert EXPERIMENT.main(line) == 0
    assert "2 of 2 audits of faults found them" in capsys.readouterr().out


def _page() -> str:
    return " ".join((RESULTS.parents[1] / "docs" / "results" / "audit.md").read_text().split())


def test_the_rows_are_of_these_loops_and_the_page_says_what_they_say() -> None:
    faults, sound = read_rows(RESULTS / "audit_zoo"), read_rows(RESULTS / "audit_zoo_sound")
    assert set(faults["loop"]) == set(FAULTS)
    assert set(sound["loop"]) == set(SOUND)
    assert not (sound["found"] == "yes").any()
    found = int((faults["found"] == "yes").sum())
    assert found >= 0.95 * len(faults)
    assert f"| faulty | {len(faults)} | {len(faults)} | {found} |" in _page()
    assert f"| sound | {sound['loop'].nunique()} | {len(sound)} | 0 |" in _page()
    missed = faults.loc[faults["found"] != "yes", "loop"]
    assert all(f"`{name}`" in _page() for name in missed)
    assert sound.groupby("loop").size().max() <= REPEATS


def test_of_what_was_found_at_first_try_the_checks_that_are_left_keep_95_percent() -> None:
    """The loops were invented by people who had not seen the checks; those of the second person were audited again."""
    rows = read_rows(RESULTS / "audit_invented")
    once = rows[(rows["sound"] == "no") & (rows["first_try_right"] == "yes")]
    kept = int((once["found_now"] == "yes").sum())
    assert (rows.loc[rows["sound"] == "yes", "found_now"] == "yes").all()
    third = read_rows(RESULTS / "audit_third")
    assert int((third["judged"] == "found").sum()) == 81
    said = re.search(r"Of the 81 faults that were found, (\d+) were found by checks that are left", _page())
    assert said
    assert kept + int(said[1]) >= 0.95 * (len(once) + 81)


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
