"""Tests that the command line of every GPU job is one that its command accepts, on either preset."""

import argparse
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.gpu.jobs import JOBS, PRESETS, Job
from benchmarks.gpu.tests import FILES

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_commands_parse(job: Job, preset: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for device in ("cpu", "cuda"):
        module, *words = job.words(preset, device=device, data=tmp_path, model=tmp_path)
        parser: argparse.ArgumentParser = import_module(module).EXPERIMENT.parser()
        options = parser.parse_args([*words, "--out", str(tmp_path / "out")])
        assert getattr(options, "device", device) == device


def test_jobs_are_told_apart_and_name_only_each_other() -> None:
    names = [job.name for job in JOBS]
    assert len(set(names)) == len(names)
    assert {job.unless for job in JOBS} - {""} <= set(names)
    assert all(job.in_smoke().memory_gib == 1 and not job.in_smoke().unless for job in JOBS)


def test_the_files_with_tests_for_a_gpu_are_all_run() -> None:
    marked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark." + "gpu" in path.read_text()
    }
    assert marked == set(FILES)
