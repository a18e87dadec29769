"""Tests that the GPU kernels compile for cards that are not here: Triton's compiler and the assembler need none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(sys.platform != "linux", reason="Triton brings its assembler on Linux alone")
def test_kernels_compile_once_for_all_places_and_keys_and_round_as_written(tmp_path: Path) -> None:
    """They are compiled for an A100 (capability 8.0), and for an H100 and H200 (9.0)."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.optim.compiled", "80", "90"],
        cwd=ROOT,
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    cards = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cards) == 2
    for found in cards:
        # The number of compiled kernels is the same for another key and for a far position.
        assert found["counts"][0] == found["counts"][1] == 10
        for kernel in found["kernels"]:
            assert kernel["odd"] == []
            assert kernel["stack"] == 0
            # With so few registers, four programs of 128 threads and more fit on a multiprocessor.
            assert kernel["registers"] <= 128
