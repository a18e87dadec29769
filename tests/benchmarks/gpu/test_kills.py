"""Tests of the comparison by which rows of a job that was killed and resumed count as the same."""

from pathlib import Path

import pytest

from benchmarks.gpu.kills import MEASURED, differences
from benchmarks.kit.rows import Results


def table(folder: Path, values: list[tuple[int, float, float]]) -> None:
    with Results(folder, key=("d",), fields=("loss", "wall_s"), seeds=[], device="cpu", dtype="") as results:
        results.add({"d": d, "loss": loss, "wall_s": seconds} for d, loss, seconds in values)


def test_rows_are_compared_without_what_is_measured(tmp_path: Path) -> None:
    table(tmp_path / "a" / "x", [(1, 0.5, 1.0), (2, 0.25, 2.0)])
    table(tmp_path / "b" / "x", [(2, 0.25, 9.0), (1, 0.5, 3.0)])
    assert differences(tmp_path / "a", tmp_path / "b") == (2, 0)
    table(tmp_path / "b" / "y", [(1, 0.5, 1.0)])
    assert differences(tmp_path / "a", tmp_path / "b") == (3, 1)
    table(tmp_path / "a" / "y", [(1, 0.4999, 1.0)])
    assert differences(tmp_path / "a", tmp_path / "b") == (4, 2)


def test_of_private_rows_what_noise_moves_is_left_out(tmp_path: Path) -> None:
    for folder, private, seeded in (("a", 0.1, 0.5), ("b", 0.2, 0.5), ("c", 0.1, 0.6)):
        with Results(
            tmp_path / folder / "x", key=("epsilon",), fields=("loss",), seeds=[], device="", dtype=""
        ) as rows:
            rows.add([{"epsilon": "6.0", "loss": private}, {"epsilon": "none", "loss": seeded}])
    assert differences(tmp_path / "a", tmp_path / "b") == (2, 0)
    assert differences(tmp_path / "a", tmp_path / "c") == (3, 2)


@pytest.mark.parametrize("name", ["wall_s", "seconds", "peak_mb", "ratio_low", "to_mezo", "cpu_s", "engine_s"])
def test_what_is_measured(name: str) -> None:
    assert MEASURED.search(name)


@pytest.mark.parametrize("name", ["steps", "loss_train_last", "gradient_squared", "d", "status", "clip", "weights_mb"])
def test_what_is_not(name: str) -> None:
    assert bool(MEASURED.search(name)) == (name == "weights_mb")
