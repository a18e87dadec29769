"""Tests that the synthetic grid on a cluster of dask workers has the rows of one process, to the last digit."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import synthetic
from benchmarks.kit.rows import read_rows

distributed = pytest.importorskip("distributed", reason="needs the extra cluster")
pytestmark = pytest.mark.filterwarnings("ignore::Warning")
"""The warnings come from libraries of dask."""

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["--preset", "smoke", "--device", "cpu", "--modes", "a", "c"]


def rows(folder: Path) -> list[list[Any]]:
    return read_rows(folder).sort_values(list(synthetic.KEY)).to_numpy().tolist()


@pytest.fixture(scope="module")
def of_one_process(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    folder = tmp_path_factory.mktemp("one")
    synthetic.EXPERIMENT.main([*WORDS, "--workers", "1", "--out", str(folder)])
    return rows(folder)


@contextmanager
def dask(*words: str) -> Iterator["subprocess.Popen[bytes]"]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *words], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_scheduler_of_its_own_one_of_whose_workers_is_killed(
    tmp_path: Path, of_one_process: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers begin; one is killed as soon as the first rows are there, and the other does its work."""
    at, words = tmp_path / "scheduler.json", ["--scheduler-file", str(tmp_path / "scheduler.json"), "--no-dashboard"]
    with dask("scheduler", "--port", "0", *words):
        while not at.exists():
            time.sleep(0.05)
        worker = ["worker", "--nthreads", "1", "--no-nanny", *words]
        with dask(*worker) as killed, dask(*worker), distributed.Client(scheduler_file=str(at)) as client:
            client.wait_for_workers(2, timeout=60)
            told: list[str] = []

            def tell(group: synthetic.Group, made: list[dict[str, Any]]) -> str:
                if not told:
                    killed.kill()
                told.append(group.mode)
                return ""

            def refused(*unused: Any) -> None:
                raise AssertionError("a cell was measured in this process")

            monkeypatch.setattr(synthetic, "EXPERIMENT", replace(synthetic.EXPERIMENT, told=tell))
            monkeypatch.setattr(synthetic, "run_group", refused)
            address = client.scheduler.address
            synthetic.EXPERIMENT.main([*WORDS, "--cluster", address, "--out", str(tmp_path / "rows")])
            assert killed.poll() is not None
            assert len(client.scheduler_info()["workers"]) == 1
    assert len(told) == 2 * 2 * 2
    assert rows(tmp_path / "rows") == of_one_process


def test_an_address_without_a_scheduler_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        synthetic.EXPERIMENT.main([*WORDS, "--cluster", "nowhere", "--out", str(tmp_path / "rows")])
    assert stop.value.code == 2
    assert "--cluster must be the address of a dask scheduler; got 'nowhere'" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()
