"""Tests a small run of the benchmark of optimality, and what its committed rows say."""

from pathlib import Path

import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.theory import optimality


def test_a_row_of_each_member() -> None:
    base = {"n": 10_000, "epsilon": 2.0, "r": 8.178, "chosen": "best", "evaluations": 1000}
    for member in optimality.MEMBERS:
        row = optimality.measure({**base, "member": member, "step_factor": 1.0, "clip_factor": 1.0}, 8)
        assert set(row) <= {*optimality.KEY, *optimality.FIELDS}
        assert 0 < row["least_0.5"] <= row["measured"] < row["certified"] < row["one_run"]
        assert (row["limit"] is None) == (member != "mean")


def test_committed_rows_hold_and_are_near_the_certificate() -> None:
    rows = read_rows(Path(RESULTS / "optimality"))
    assert len(rows) == len(list(optimality.cases()))
    certified = rows[rows["certified"].notna()]
    assert ((certified["measured"] + 3 * certified["standard_error"]) <= certified["certified"]).all()
    assert (rows["highest"] <= rows["one_run"]).all()
    own = rows[(rows["member"] == "mean") & (rows["step_factor"] == 1) & (rows["clip_factor"] == 1)]
    shares = own["measured"] / own["certified"]
    assert shares.min() == pytest.approx(0.776, abs=0.001)
    assert shares.max() == pytest.approx(0.894, abs=0.001)
    assert (own["limit"] <= own["measured"]).all()
    text = " ".join((RESULTS.parents[1] / "dpzero_theory/theory/sharp/proof.md").read_text().split())
    lengthened = rows[rows["member"].isin(["long", "long-spread"])]
    setting = ["n", "epsilon", "r", "evaluations", "chosen"]
    hardest = lengthened.groupby(setting)[["last", "suffix_0.02", "suffix_0.1", "suffix_0.5"]].max()
    better = (1 / hardest).mul(lengthened.groupby(setting)["prescribed"].first(), axis=0)
    base = better.loc[(10_000, 2.0, 8.178)]
    assert len(base) == 6
    assert f"at most {base.min().min():.2f} to {base.max().max():.2f} times better" in text
    assert f"{better.min().min():.2f} to {better.max().max():.2f} with its other $n$" in text
    assert any("1.29" in line for line in optimality.summary(rows))
