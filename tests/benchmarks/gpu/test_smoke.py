"""Tests every GPU job, made small, on the CPU: all that differs on a GPU is the device.

Each job's command is run as the smoke run runs it, but in this process: the processes around it have tests of their
own, and so has what the first job runs.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from benchmarks.gpu import sentences
from benchmarks.gpu.jobs import JOBS, Job
from benchmarks.kit.rows import OK, Results, read_rows
from figures import gpu as figure


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.parametrize("job", JOBS[1:], ids=lambda job: job.name)
def test_a_job_writes_its_rows_and_none_again(
    job: Job, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module: Any = import_module(job.module)

    def here(function: Callable[..., object], *arguments: object) -> object:
        return function(*arguments)

    monkeypatch.setattr(module, "in_new_process", here, raising=False)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    data = sentences.write(out / "data")
    words = job.in_smoke().words("smoke", device="cpu", data=data, model=None)[1:]
    assert module.EXPERIMENT.main([*words, "--out", str(out / job.out)]) == 0
    rows = read_rows(out / job.out, failed=True)
    assert len(rows) > 0
    assert set(rows["status"]) <= {OK, "diverged"}
    assert module.EXPERIMENT.main([*words, "--out", str(out / job.out)]) == 0
    assert read_rows(out / job.out, failed=True).equals(rows)


def test_the_figure_is_drawn_from_what_there_is(out: Path) -> None:
    with Results(
        out / "jobs", key=("job", "card"), fields=("estimate_s", "wall_s"), seeds=[], device="", dtype=""
    ) as jobs:
        jobs.add({"job": job.name, "card": "cpu", "estimate_s": 15.0, "wall_s": 5.0} for job in JOBS)
    assert figure.main(["--rows", str(out), "--out", str(out / "figures")]) == 0
    plt.close("all")
    assert (out / "figures" / "gpu.png").stat().st_size > 0
