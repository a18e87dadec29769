"""Tests of the choice of settings on other seeds than those on which they are reported, by tables with known answers.

They also test how it is reported that the best setting is on the edge of its grid.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.kit.rows import Results, read_rows
from benchmarks.sweeps import selection, synthetic

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
    rows = list(selection.select(table(VALUES), "gradient", "last"))
    assert [row["clip"] for row in rows] == [2.0, 2.0, 1.0]
    assert [row["train"] for row in rows] == [2.0, 2.0, 9.0]
    assert [row["test"] for row in rows] == [102.0, 102.0, 109.0]
    assert [row["own_train"] for row in rows] == [1.0, 1.0, 2.5]
    assert {row["selection"] for row in rows} == {"held-out"}


def test_edges_are_marked_with_what_they_gain() -> None:
    rows = list(selection.select(table(VALUES), "gradient", "last"))
    assert [row["edges"] for row in rows] == ["", "", "clip-"]
    assert [row["beyond"] for row in rows] == [1.0, 1.0, 1.0]
    (row,) = selection.select(table({1.0: (4.0,), 2.0: (2.0,), 3.0: (1.0,)}), "gradient", "last")
    assert (row["selection"], row["edges"], row["beyond"]) == ("own", "clip+", 2.0)


def test_seeds_with_a_few_settings_are_reported_by_themselves() -> None:
    """Seeds that have only a few of the settings are reported by themselves.

    Seed 0 has five settings, of which clips 2 and 3 were chosen for the seeds 1 and 2. On the seeds 0 and 2 clip 3 is
    best, on 0 and 1 clip 2. The end of the grid, clip 5, is seen on seed 0.
    """
    whole = table({1.0: (9.0,), 2.0: (1.0,), 3.0: (2.0,), 4.0: (8.0,), 5.0: (7.0,)})
    part = table({2.0: (0.0, 2.0, 9.0), 3.0: (0.0, 3.0, 4.0)})
    rows = list(selection.select(pd.concat([whole, part[part["seed"] > 0]]), "gradient", "last"))
    assert [row["seed"] for row in rows] == [1, 2]
    assert [row["clip"] for row in rows] == [3.0, 2.0]
    assert [row["train"] for row in rows] == [3.0, 9.0]
    assert [row["edges"] for row in rows] == ["", ""]
    assert [row["own_train"] for row in rows] == [None, None]
    (row,) = selection.select(
        pd.concat([whole, part[part["seed"] == 1]]).query("clip != 2 or seed == 0"), "gradient", "last"
    )
    assert (row["clip"], row["train"]) == (3.0, 3.0)
    ends = whole.assign(gradient_train_last=[9.0, 6.0, 6.0, 6.0, 3.0])
    part = table({2.0: (0.0, 5.0), 5.0: (0.0, 1.0)})
    (row,) = selection.select(pd.concat([ends, part[part["seed"] > 0]]), "gradient", "last")
    assert (row["edges"], row["beyond"]) == ("clip+", 2.0)


def test_what_was_not_measured_is_left_out() -> None:
    assert list(selection.select(table(VALUES), "loss", "last")) == []


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
    selection.EXPERIMENT.main(["--rows", str(tmp_path), "--out", str(tmp_path / "selection")])
    rows = read_rows(tmp_path / "selection")
    part = rows[(rows["measured"] == "gradient") & (rows["output"] == "tau")].set_index(["sweep", "seed"])
    assert part.loc["long"].index.tolist() == [0, 1]
    assert (part.loc["long"]["clip"] == 0.5).all()
    assert part.loc["synthetic"]["clip"].tolist() == [2.0, 2.0, 1.0]


def test_no_rows_are_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        selection.EXPERIMENT.main(["--rows", str(tmp_path)])
    assert "--rows must be a folder with rows of" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        selection.EXPERIMENT.main(["--rows", str(tmp_path), "--out", str(tmp_path / "synthetic")])
    assert "--out must not be the folder of a sweep" in capsys.readouterr().err
