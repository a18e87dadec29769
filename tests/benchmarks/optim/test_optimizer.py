"""Tests that the page of results says what the committed rows of the optimizer's benchmark say."""

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.optim import optimizer_privacy
from benchmarks.training import optimizer_digits


def test_attack_sensitivity_and_ranks_are_within_their_bounds() -> None:
    rows = read_rows(RESULTS / "optimizer_privacy").set_index("part")
    assert set(rows.index) == set(optimizer_privacy.PARTS)
    for part, (_, cases, low, high) in optimizer_privacy.PARTS.items():
        assert rows.loc[part, "cases"] == cases
        assert low <= rows["measured"][part] <= high


def test_dpzero_beats_dpgd_0th_by_the_margin() -> None:
    rows = read_rows(RESULTS / "optimizer_digits")
    assert rows["seed"].nunique() == 5
    means = rows.groupby(["model", "method", *optimizer_digits.KEY[3:]])["accuracy"].mean()
    best = means.groupby(level=["model", "method"]).max().unstack()
    assert set(best.index) == set(optimizer_digits.MODELS)
    assert (best["dpzero"] - best["dpgd-0th"] >= optimizer_digits.MARGIN).all()


def test_the_generated_neighbours_reach_the_sensitivity() -> None:
    assert 0.9 < optimizer_privacy.sensitivity(200) <= 1
