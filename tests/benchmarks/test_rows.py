"""Tests of files of results: they survive interruption, damaged rows are refused, and rows are found by their keys."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit.rows import Results, read_manifest, read_rows, read_text


def make(folder: Path, **changes: Any) -> Results:
    options: dict[str, Any] = {
        "key": ["mode", "d", "seed"],
        "fields": ["value", "note"],
        "seeds": [0, 1],
        "device": "cpu",
        "dtype": "float64",
        "settings": {"n": 10},
    }
    return Results(folder, **{**options, **changes})


def row(seed: int, value: float | None = 0.5, d: int = 20, status: str = "ok") -> dict[str, Any]:
    return {"mode": "a", "d": d, "seed": seed, "value": value, "status": status}


def test_rows_come_back_exactly_and_missing_values_are_empty(tmp_path: Path) -> None:
    with make(tmp_path) as results:
        results.add([row(0, 0.1 + 0.2), {**row(1, None), "note": "two, parts"}])
    assert read_text(tmp_path)[1].splitlines() == [
        "mode,d,seed,value,note,status",
        "a,20,0,0.30000000000000004,,ok",
        'a,20,1,,"two, parts",ok',
    ]
    table = read_rows(tmp_path)
    assert table["value"][0] == 0.1 + 0.2
    assert table["value"].isna().tolist() == [False, True]
    manifest = read_manifest(tmp_path)
    assert manifest["seeds"] == [0, 1]
    assert manifest["rows"] == 2
    assert manifest["failed"] == 0
    assert manifest["settings"] == {"n": 10}
    assert {"command", "commit", "versions", "device", "dtype", "wall_s", "sha256"} <= set(manifest)
    assert "numpy" in manifest["versions"]


def test_the_manifest_names_no_folder_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--data", str(tmp_path / "records"), "--seeds", "3"])
    with make(tmp_path / "rows") as results:
        results.add([row(0)])
    assert read_manifest(tmp_path / "rows")["command"].endswith("--data records --seeds 3")


@pytest.mark.parametrize("compress", [False, True])
def test_resume_skips_complete_keys_and_retries_failed_ones(tmp_path: Path, compress: bool) -> None:
    with make(tmp_path, compress=compress) as results:
        results.add([row(0, 1.0), row(1, None, status="diverged at step 3")])
    assert (tmp_path / "rows.csv.gz").exists() == compress
    assert len(read_rows(tmp_path)) == 1
    assert len(read_rows(tmp_path, failed=True)) == 2
    with make(tmp_path, seeds=[2], compress=compress) as results:
        assert results.done(mode="a", d=20, seed=0)
        assert not results.done(mode="a", d=20, seed=1)
        assert not results.done(mode="a", d=20, seed=2)
        results.add([row(1, 2.0)])
        results.add([row(2, 3.0)])
    assert (tmp_path / "rows.csv").exists() != compress
    assert read_rows(tmp_path)["value"].tolist() == [1.0, 2.0, 3.0]
    manifest = read_manifest(tmp_path)
    assert manifest["seeds"] == [0, 1, 2]
    assert manifest["failed"] == 0
    assert len(manifest["earlier"]) == 1


def test_bad_rows_are_refused_and_none_of_their_batch_is_saved(tmp_path: Path) -> None:
    with make(tmp_path) as results:
        results.add([row(0)])
        before = (tmp_path / "rows.csv").read_bytes()
        bad_rows: Sequence[tuple[dict[str, Any], str]] = (
            (row(2, float("nan")), "finite"),
            (row(2, float("inf")), "finite"),
            ({**row(2), "valu": 1.0}, "unknown column 'valu'"),
            ({"mode": "a", "d": 20}, "key column 'seed'"),
            (row(0), "already"),
            (row(1), "already"),
        )
        for bad, message in bad_rows:
            with pytest.raises(ValueError, match=message):
                results.add([row(1), bad])
        assert (tmp_path / "rows.csv").read_bytes() == before
        assert not results.done(mode="a", d=20, seed=1)


@pytest.mark.parametrize("changes", [{"settings": {"n": 11}}, {"dtype": "float32"}, {"fields": ["value", "other"]}])
def test_rows_of_other_settings_are_not_mixed(tmp_path: Path, changes: dict[str, Any]) -> None:
    with make(tmp_path) as results:
        results.add([row(0)])
    with pytest.raises(ValueError, match="holds rows"), make(tmp_path, **changes):
        pass
    assert len(read_rows(tmp_path)) == 1


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with make(tmp_path) as results:
        with pytest.raises(BlockingIOError, match="another process"), make(tmp_path):
            pass
        results.add([row(0)])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a,20,0,0.5,,ok", "a,20,0,0.4,,ok"),
        (",ok\n", ",ok\na,20,1,0.1,,ok\n"),
        ("a,20,0,0.5,,ok\n", ""),
        ("# sha256:", "# sha:"),
        ("# seeds: [0, 1]\n", ""),
        ('# dtype: "float64"\n', "# dtype: float64\n"),
        ("# device", "device"),
    ],
)
def test_damaged_rows_are_refused_and_kept(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"no rows\.csv"):
        read_rows(tmp_path)
    with make(tmp_path) as results:
        results.add([row(0, 0.5)])
    path = tmp_path / "rows.csv"
    changed = path.read_text().replace(old, new)
    assert changed != path.read_text()
    path.write_text(changed)
    for use in (read_rows, lambda folder: make(folder).__enter__()):
        with pytest.raises(ValueError, match=r"rows.csv is damaged, .*: restore it, or remove it$"):
            use(tmp_path)
    assert path.read_text() == changed


WRITER = """
import sys
from pathlib import Path
from tests.benchmarks.test_rows import make, row
with make(Path(sys.argv[1])) as results:
    for seed in range(10**6):
        if not results.done(mode="a", d=20, seed=seed):
            results.add([row(seed, float(seed))])
            print(seed, flush=True)
"""


def test_a_killed_run_loses_no_row_it_reported(tmp_path: Path) -> None:
    total = 0
    for stop in (5, 11):
        run = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert run.stdout is not None
        for _ in range(stop):
            total = int(run.stdout.readline())
        run.send_signal(signal.SIGKILL)
        run.communicate()
    with make(tmp_path) as results:
        assert all(results.done(mode="a", d=20, seed=seed) for seed in range(total + 1))
        results.add([row(10**6, 1.0)])
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv"}
    table = read_rows(tmp_path)
    assert (table["value"][:-1] == table["seed"][:-1]).all()
