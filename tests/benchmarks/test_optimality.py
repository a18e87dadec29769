"""A small run of the benchmark, and what its committed rows say."""

from pathlib import Path

import pytest

from benchmarks import optimality
from benchmarks.kit.rows import RESULTS, read_rows


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
    assert any("1.29" in line for line in optimality.summary(rows))
