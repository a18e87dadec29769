"""Tests of the comparison of difference rules at equal evaluations: its grids, its intervals, a small run, and what the
page says of the committed rows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.training import equal_evaluations, equal_points
from benchmarks.training.equal_evaluations import CHOOSING, REPORTED, Comparison, Variant
from benchmarks.training.equal_points import Found, about, above, at_equal_k, best, compared
from dpzero_theory.difference import DIFFERENCES


def test_the_first_grid_is_about_the_pair_that_central_differences_chose() -> None:
    rows = pd.DataFrame(
        [
            {"step_size": a, "clip": 2.0 * c, "seed": seed, "chosen_by": -abs(a - 0.1) - abs(c - 1)}
            for a in (0.01, 0.03, 0.1, 0.3) for c in (0.5, 1.0, 2.0, 4.0) for seed in CHOOSING
        ]
    )  # fmt: skip
    assert about(rows, 4) == ((0.5, 1.0, 2.0), (0.03, 0.1, 0.3))


def test_intervals_are_those_of_welch() -> None:
    rng = np.random.default_rng(0)
    one, other = (Found(rule, 4, 0.5, rng.normal(70, scale, 5)) for rule, scale in (("forward", 1), ("central", 3)))
    interval = ttest_ind(one.reported, other.reported, equal_var=False).confidence_interval()
    mean, half = above(one, other)
    assert (mean - half, mean + half) == pytest.approx((interval.low, interval.high))
    assert above(one, one) == (0.0, 0.0)


def test_the_gain_at_equal_k_covers_the_truth() -> None:
    """In 400 made comparisons with a true gain of 2 the 95% interval covers it in 95%, within 4.5 standard errors."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        cells = [
            Found(rule, k, 0.5, rng.normal(k + (2 if rule == "forward" else 0), 1.5, 5))
            for rule in ("forward", "central") for k in (1, 4, 16, 64)
        ]  # fmt: skip
        mean, half = at_equal_k(cells)
        covered += abs(mean - 2) <= half
    assert abs(covered / 400 - 0.95) <= 4.5 * np.sqrt(0.95 * 0.05 / 400)


def test_the_rule_is_chosen_by_the_records_that_choose() -> None:
    cells = [Found("central", 4, 0.7, np.array([90.0])), Found("forward", 4, 0.8, np.array([80.0]))]
    assert best(cells, "central", "forward") == cells[1]
    assert best(cells, "exact") is None


def test_every_rule_has_as_many_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small run on digits: forward differences make as many steps as 2 K T evaluations allow, and the run resumes."""
    preset = Comparison({"digits": (8,)}, (Variant(1), Variant(4)), folder="central")
    monkeypatch.setitem(equal_evaluations.PRESETS, "smoke", preset)
    assert equal_evaluations.EXPERIMENT.main(["--preset", "smoke", "--out", str(tmp_path / "central")]) == 0
    monkeypatch.setattr(equal_points, "RESULTS", tmp_path)
    monkeypatch.setattr(equal_points, "KS", (4,))
    monkeypatch.setitem(equal_points.PLACES, "heads", (preset, ("forward", "exact"), tmp_path / "points"))
    assert equal_points.EXPERIMENT.main([]) == 0
    rows = read_rows(tmp_path / "points")
    assert set(rows["steps"]) == {3}  # the largest T with 5 T <= 16
    assert set(rows["difference"]) == {"forward", "exact"}
    assert all(
        sorted(part["seed"].unique()) == sorted([*CHOOSING, *REPORTED]) for _, part in rows.groupby("difference")
    )
    assert equal_points.EXPERIMENT.main([]) == 0
    assert read_rows(tmp_path / "points").equals(rows)


def test_the_page_says_what_the_committed_rows_say() -> None:
    rows = compared()
    for cells in rows.values():
        assert all(len(cell.reported) == len(REPORTED) for cell in cells)
    gains = np.array([at_equal_k(cells) for cells in rows.values()])
    sure = int((gains[:, 0] > gains[:, 1]).sum())
    text = " ".join((RESULTS.parents[1] / "docs/howto/difference.md").read_text().split())
    assert f"by {gains[:, 0].min():.1f} to {gains[:, 0].max():.1f} points in the {len(rows)} rows" in text
    assert f"in {sure} of them by more than the interval" in text
    chosen = [one.difference for cells in rows.values() if (one := best(cells, *DIFFERENCES))]
    others = len(chosen) - chosen.count("central")
    assert f"chosen in {others} of them: forward in {chosen.count('forward')}, and exact in the three" in text
    assert chosen.count("exact") == 3
