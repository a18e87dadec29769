"""Tests of the fitted slopes, on values that are known powers of d, by either way to choose settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.kit.rows import Results, read_rows
from benchmarks.sweeps import selection as selected
from benchmarks.sweeps import slopes


def test_a_power_law_has_its_slope() -> None:
    d = np.array([10, 30, 100, 1000])
    assert slopes.slope(d, 5 * d**0.37) == pytest.approx(0.37, abs=1e-12)


def test_intervals_are_students() -> None:
    assert slopes.interval([1.0]) == (1.0, None, None)
    mean, low, high = slopes.interval([0.0, 2.0])
    # For two values the mean is 1, the standard error 1, and t_{0.975, 1} = 12.706.
    assert (mean, low, high) == pytest.approx((1.0, 1 - 12.706, 1 + 12.706), rel=1e-3)


def _rows(method: str, power: float, selection: str = "held-out") -> list[dict[str, Any]]:
    """Returns rows of three seeds whose chosen value is d^power in each dimension d.

    The value on the test set is twice that, and the value for the setting chosen on the seed itself is half of it.
    `method` and `selection` are entries of the rows.
    """
    return [
        {
            **dict(zip(selected.KEY, ("s", method, "a", "zero", "paper", d, "gradient", "tau", seed), strict=True)),
            **{"selection": selection, "steps": 1, "step_size": 1.0, "clip": 1.0},
            **{"train": d**power, "test": 2 * d**power, "own_train": d**power / 2},
            **{"edges": "clip+" if d == 10 else "", "beyond": 2.0},
        }
        for seed in range(3 if selection == "held-out" else 1)
        for d in (10, 100, 1000, 10_000)
    ]


def test_fits_of_both_ways_to_select_stand_side_by_side(tmp_path: Path) -> None:
    with Results(
        tmp_path / "in", key=selected.KEY, fields=selected.FIELDS, seeds=[], device="cpu", dtype="float64"
    ) as results:
        results.add([*_rows("dpzero", 0.5), *_rows("dpgd", 0.75, "own")])
    for _ in range(2):
        slopes.EXPERIMENT.main(["--rows", str(tmp_path / "in"), "--out", str(tmp_path / "slopes")])
        fits = read_rows(tmp_path / "slopes")
        keys = fits[["method", "measured", "selection"]].drop_duplicates().to_numpy().tolist()
        assert sorted(keys) == [
            ["dpgd", "gradient_test", "own"],
            ["dpgd", "gradient_train", "own"],
            ["dpzero", "gradient_test", "held-out"],
            ["dpzero", "gradient_train", "held-out"],
            ["dpzero", "gradient_train", "own"],
        ]
        assert fits["slope"].tolist() == pytest.approx([0.75 if m == "dpgd" else 0.5 for m in fits["method"]])
        assert (fits["seeds"] == [1 if m == "dpgd" else 3 for m in fits["method"]]).all()
        assert fits["edge"].tolist() == [0.25 if r == "all" else 0.0 for r in fits["range"]]


def test_a_seed_without_all_dimensions_does_not_count(tmp_path: Path) -> None:
    with Results(
        tmp_path / "in", key=selected.KEY, fields=selected.FIELDS, seeds=[], device="cpu", dtype="float64"
    ) as results:
        results.add(row for row in _rows("dpzero", 0.5) if (row["seed"], row["d"]) != (2, 10_000))
    slopes.EXPERIMENT.main(["--rows", str(tmp_path / "in"), "--out", str(tmp_path / "slopes")])
    fits = read_rows(tmp_path / "slopes")
    assert (fits["seeds"] == 2).all()
    assert fits["slope"].to_numpy() == pytest.approx(0.5)


def test_rows_of_another_table_are_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        slopes.EXPERIMENT.main(["--rows", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "no rows.csv" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        slopes.EXPERIMENT.main(["--rows", str(tmp_path), "--out", str(tmp_path)])
    assert "--out must not be the folder of --rows" in capsys.readouterr().err


def test_experiments_of_benchmarks_rank_are_selected_too() -> None:
    """The experiments of the rank benchmark are selected too.

    They are those of fixed rank and those whose rank grows like log d, and no others.
    """
    rows = pd.DataFrame(
        {
            **dict(zip(("method", "d", "seed", "steps"), ("dpzero", d, seed, 5), strict=True)),
            **{"experiment": experiment, "step_size": 0.1 / 7, "clip": 1.0, "directions": 1, "r": 5.0},
            **{"gradient_squared": d**power, "last_gradient_squared": d**0.25},
        }
        for experiment, power in (("dimension", 0.5), ("log", 1.0), ("law", 2.0))
        for d in (10, 100, 1000)
        for seed in range(2)
    )
    for sweep, mode, power in (("rank", "fixed", 0.25), ("log", "c", 0.5)):
        found = selected.as_synthetic(rows, *selected.OF_RANK[sweep])
        assert found["step_size"].unique().tolist() == [0.1]
        chosen = [{"sweep": sweep, **row} for row in selected.select(found, "gradient", "tau")]
        assert len(chosen) == 6
        assert {row["mode"] for row in chosen} == {mode}
        (fit, *_) = slopes._fits(pd.DataFrame(chosen))
        assert fit["slope"] == pytest.approx(power)
