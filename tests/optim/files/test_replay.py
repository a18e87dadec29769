"""Tests that a transcript gives the weights of its run again, to the bit, also of a run that was interrupted."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpzero_theory.optim.files.transcript import RUN, read
from dpzero_theory.optim.private import make_from_seed_not_private
from tests.optim.small import POISSON, Logistic, data, losses, plan, private, weights

ALL: list[dict[str, Any]] = [
    {},
    {"step_size": lambda release: 0.1 / (release + 1)},
    {**POISSON, "noise": "laplace"},
    {"directions_per_step": 3, "direction": "sphere"},
]


def wide(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return losses(module, batch).float()


@pytest.mark.parametrize(("changes", "dtype"), list(zip(ALL, [torch.float64, torch.bfloat16] * 2, strict=True)))
def test_the_transcript_replays_a_run_to_the_bit(tmp_path: Path, changes: dict[str, Any], dtype: torch.dtype) -> None:
    module = Logistic(dtype)
    initial = {name: value.clone() for name, value in module.state_dict().items()}
    run = make_from_seed_not_private(module, wide, data(dtype), plan(**changes), seed=1, folder=tmp_path / "run")
    run.run()
    run.close()
    other = Logistic(dtype)
    other.load_state_dict(initial)
    read(tmp_path / "run" / RUN).replayed(other)
    assert torch.equal(module.weight, other.weight)
    assert not torch.equal(module.weight, initial["weight"])


@pytest.mark.parametrize("changes", [ALL[1], ALL[-1]])
def test_a_run_goes_on_as_if_it_had_not_been_interrupted(tmp_path: Path, changes: dict[str, Any]) -> None:
    """It is resumed from the transcript alone, and from a checkpoint in the middle."""
    run = private(tmp_path / "run", **changes)
    for _ in range(3):
        run.step()
    state = {name: value.clone() for name, value in run.state_dict().items()}
    run.step()
    run.close()
    ends = []
    for checkpoint in (None, state):
        other = private(tmp_path / "run", **changes, resume=True)
        if checkpoint is not None:
            other.load_state_dict(checkpoint)
        other.run()
        ends.append(weights(other))
        other.close()
    replayed = Logistic()
    read(tmp_path / "run" / RUN).replayed(replayed)
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], replayed.weight.detach())


OLDEST = {
    "OPENBLAS_CORETYPE": "Prescott",
    "ATEN_CPU_CAPABILITY": "default",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4",
    "MKL_CBWR": "COMPATIBLE",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F",
}
"""Settings that choose kernels of BLAS, torch, numpy, MKL and the C library that every x86 processor has."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels are chosen by the names of x86 processors")
def test_another_processor_replays_the_same_bits(tmp_path: Path) -> None:
    run = private(tmp_path / "run", Logistic(), direction="sphere", steps=118, step_size=1.0, directions_per_step=2)
    run.run()
    run.close()
    asked = (
        "import sys; from tests.optim.small import Logistic; from dpzero_theory.optim.files.transcript import read; "
        "module = Logistic(); read(sys.argv[1]).replayed(module); print(module.weight.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", asked, str(tmp_path / "run" / RUN)],
        env=os.environ | OLDEST,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == weights(run).tolist()
