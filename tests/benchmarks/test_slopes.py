"""Tests of the choice of settings on other seeds than those on which they are reported, and of the fitted slopes, on
tables with known answers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks import slopes, synthetic
from benchmarks.kit.rows import Results, read_rows

VALUES = {1.0: (3.0, 1.0, 9.0), 2.0: (2.0, 2.0, 2.5), 3.0: (1.0, 5.0, 5.0)}
"""The training value of each clip on the seeds 0, 1 and 2."""


def table(values: Mapping[float, tuple[float, ...]]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **dict(zip(synthetic.KEY, ("dpzero", "c", 10, "zero", "paper", seed, 10, 0.1, clip), strict=True)),
            "gradient_train_last": value,
            "gradient_test_last": value + 100,
        }
        for clip, found in values.items()
        for seed, value in enumerate(found)
    )


def test_a_setting_is_chosen_on_the_other_seeds() -> None:
    """The setting for a seed is the one with the best mean on the other two seeds.

    The means of the three clips are (5, 2.25, 5) for seed 0, (6, 2.25, 3) for seed 1, and (2, 2, 3) for seed 2, where
    the first of equals is taken.
    """
    rows = list(slopes.select(table(VALUES), "gradient", "last"))
    assert [row["clip"] for row in rows] == [2.0, 2.0, 1.0]
    assert [row["train"] for row in rows] == [2.0, 2.0, 9.0]
    assert [row["test"] for row in rows] == [102.0, 102.0, 109.0]
    assert [row["own_train"] for row in rows] == [1.0, 1.0, 2.5]
    assert {row["selection"] for row in rows} == {"held-out"}


def test_edges_are_marked_with_what_they_gain() -> None:
    rows = list(slopes.select(table(VALUES), "gradient", "last"))
    assert [row["edges"] for row in rows] == ["", "", "clip-"]
    assert [row["beyond"] for row in rows] == [1.0, 1.0, 1.0]
    (row,) = slopes.select(table({1.0: (4.0,), 2.0: (2.0,), 3.0: (1.0,)}), "gradient", "last")
    assert (row["selection"], row["edges"], row["beyond"]) == ("own", "clip+", 2.0)


def test_seeds_with_a_few_settings_are_reported_by_themselves() -> None:
    """Seeds that have only a few of the settings are reported by themselves.

    Seed 0 has five settings, of which clips 2 and 3 were chosen for the seeds 1 and 2. On the seeds 0 and 2 clip 3 is
    best, on 0 and 1 clip 2. The end of the grid, clip 5, is seen on seed 0.
    """
    whole = table({1.0: (9.0,), 2.0: (1.0,), 3.0: (2.0,), 4.0: (8.0,), 5.0: (7.0,)})
    part = table({2.0: (0.0, 2.0, 9.0), 3.0: (0.0, 3.0, 4.0)})
    rows = list(slopes.select(pd.concat([whole, part[part["seed"] > 0]]), "gradient", "last"))
    assert [row["seed"] for row in rows] == [1, 2]
    assert [row["clip"] for row in rows] == [3.0, 2.0]
    assert [row["train"] for row in rows] == [3.0, 9.0]
    assert [row["edges"] for row in rows] == ["", ""]
    assert [row["own_train"] for row in rows] == [None, None]
    (row,) = slopes.select(
        pd.concat([whole, part[part["seed"] == 1]]).query("clip != 2 or seed == 0"), "gradient", "last"
    )
    assert (row["clip"], row["train"]) == (3.0, 3.0)
    ends = whole.assign(gradient_train_last=[9.0, 6.0, 6.0, 6.0, 3.0])
    part = table({2.0: (0.0, 5.0), 5.0: (0.0, 1.0)})
    (row,) = slopes.select(pd.concat([ends, part[part["seed"] > 0]]), "gradient", "last")
    assert (row["edges"], row["beyond"]) == ("clip+", 2.0)


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
            **{"sweep": "s", "method": method, "mode": "a", "start": "zero", "calibration": "paper", "d": d},
            **{"measured": "gradient", "output": "tau", "seed": seed},
            **{"selection": selection, "steps": 1, "step_size": 1.0, "clip": 1.0},
            **{"train": d**power, "test": 2 * d**power, "own_train": d**power / 2},
            **{"edges": "clip+" if d == 10 else None, "beyond": 2.0},
        }
        for seed in range(3 if selection == "held-out" else 1)
        for d in (10, 100, 1000, 10_000)
    ]


def test_fits_of_both_ways_to_select_stand_side_by_side() -> None:
    fits = pd.DataFrame(slopes.fits(pd.DataFrame([*_rows("dpzero", 0.5), *_rows("dpgd", 0.75, "own")])))
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


def test_a_seed_without_all_dimensions_does_not_count() -> None:
    rows = [row for row in _rows("dpzero", 0.5) if (row["seed"], row["d"]) != (2, 10_000)]
    assert {fit["seeds"] for fit in slopes.fits(pd.DataFrame(rows))} == {2}


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
        found = slopes._of_rank(rows, *slopes.OF_RANK[sweep])
        assert found["step_size"].unique().tolist() == [0.1]
        chosen = [{"sweep": sweep, **row} for row in slopes.select(found, "gradient", "tau")]
        assert len(chosen) == 6
        assert {row["mode"] for row in chosen} == {mode}
        (fit, *_) = slopes.fits(pd.DataFrame(chosen))
        assert fit["slope"] == pytest.approx(power)


def _write(folder: Path, clips: Mapping[float, tuple[float, ...]], seeds: int) -> None:
    with Results(
        folder, key=synthetic.KEY, fields=synthetic.FIELDS, seeds=[], device="cpu", dtype="float64"
    ) as results:
        lines: list[dict[str, Any]] = []
        for clip, found in clips.items():
            for seed in range(seeds):
                key = ("dpzero", "c", 10, "zero", "paper", seed, 10, 0.1, clip)
                measured = dict.fromkeys(synthetic.FIELDS, found[seed])
                lines.append({**dict(zip(synthetic.KEY, key, strict=True)), **measured})
        results.add(lines)


def test_the_long_sweep_extends_the_papers_where_it_has_been_run(tmp_path: Path) -> None:
    """The longer sweep adds its settings to the paper's grid on the seeds on which it has been run.

    Two of three seeds have it, and its smaller clip is the best.
    """
    _write(tmp_path / "synthetic", VALUES, 3)
    _write(tmp_path / "synthetic_long", {0.5: (0.5, 0.5), 1.0: VALUES[1.0]}, 2)
    rows = pd.DataFrame(
        {"sweep": sweep, **row}
        for sweep in ("synthetic", "long")
        for row in slopes.select(slopes.load(tmp_path, sweep)[0], "gradient", "tau")  # type: ignore[arg-type]
    ).set_index(["sweep", "seed"])
    assert rows.loc["long"].index.tolist() == [0, 1]
    assert (rows.loc["long"]["clip"] == 0.5).all()
    assert rows.loc["synthetic"]["clip"].tolist() == [2.0, 2.0, 1.0]


def test_the_command_writes_both_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(VALUES)
    rows = pd.concat(
        [rows.assign(d=d, **dict.fromkeys(synthetic.FIELDS, rows["gradient_train_last"])) for d in (10, 100)]
    )
    made = {"key": synthetic.KEY, "fields": synthetic.FIELDS, "seeds": [], "device": "cpu", "dtype": "float64"}
    with Results(tmp_path / "synthetic", **made) as results:  # type: ignore[arg-type]
        results.add(rows.to_dict("records"))  # type: ignore[arg-type]
    for _ in range(2):
        slopes.EXPERIMENT.main(["--rows", str(tmp_path), "--out", str(tmp_path)])
    assert len(read_rows(tmp_path / "selection")) == 2 * 3 * 2 * 3
    assert read_rows(tmp_path / "slopes")["slope"].abs().max() < 1e-12
    with pytest.raises(SystemExit):
        slopes.EXPERIMENT.main(["--rows", str(tmp_path / "slopes"), "--out", str(tmp_path)])
    assert "--rows must be a folder with rows of" in capsys.readouterr().err
