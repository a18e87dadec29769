"""Tests of update rules in a whole run: replayed from the transcript, interrupted, in checkpoints and in `verify`."""

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

from dpzero_theory.optim.files.transcript import RUN, TranscriptError
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.run import replay
from dpzero_theory.optim.verify import main as verify
from tests.optim.small import POISSON, Logistic, data, losses, plan, private, weights

ALL: list[dict[str, Any]] = [
    {"update": "momentum:0.9"},
    {"update": "adam:0.9,0.99"},
    {"update": "plain", "weight_decay": 0.3},
    {"schedule": "cosine:2"},
    {"update": "momentum:0.9", "weight_decay": 0.1},
    {**POISSON, "noise": "laplace"},
    {"directions_per_step": 3, "direction": "sphere"},
    {"update": "adam:0.9,0.99", "weight_decay": 0.3, "directions_per_step": 3, "schedule": "linear:2"},
]


def wide(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return losses(module, batch).float()


@pytest.mark.parametrize(("changes", "precision"), list(zip(ALL, ["nearest", "master"] * 4, strict=True)))
def test_the_transcript_replays_an_update_to_the_bit(tmp_path: Path, changes: dict[str, Any], precision: str) -> None:
    dtype = torch.float64 if precision == "nearest" else torch.bfloat16
    module = Logistic(dtype)
    initial = {name: value.clone() for name, value in module.state_dict().items()}
    run = make_from_seed_not_private(
        module, wide, data(dtype), plan(**changes), seed=1, folder=tmp_path / "run", precision=precision
    )
    run.run()
    run.close()
    other = Logistic(dtype)
    other.load_state_dict(initial)
    replay(tmp_path / "run" / RUN, other)
    assert torch.equal(module.weight, other.weight)
    assert not torch.equal(module.weight, initial["weight"])


@pytest.mark.parametrize("changes", [ALL[4], ALL[-1]])
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
    replay(tmp_path / "run" / RUN, replayed)
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], replayed.weight.detach())


def test_a_checkpoint_without_what_the_update_keeps_is_refused(tmp_path: Path) -> None:
    run = private(tmp_path / "run", update="momentum:0.9")
    run.step()
    state = run.state_dict()
    assert "update.momentum.weight" in state
    del state["update.momentum.weight"]
    with pytest.raises(ValueError, match=r"state must hold \['momentum\.weight'\]"):
        run.load_state_dict(state)
    with pytest.raises(TranscriptError, match="not this run's initial ones"):
        run.step()
    run.weights.parameters[0].detach().zero_()
    run.run()  # The run starts from the initial weights, with nothing kept from before
    run.close()
    replayed = Logistic()
    replay(tmp_path / "run" / RUN, replayed)
    assert torch.equal(weights(run), replayed.weight.detach())


def test_verify_replays_the_update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = Logistic()
    torch.save(module.state_dict(), tmp_path / "initial.pt")
    run = private(tmp_path / "run", module, update="adam:0.9,0.999", weight_decay=0.1)
    run.run()
    run.close()
    torch.save(module.state_dict(), tmp_path / "final.pt")
    arguments = [str(tmp_path / "run"), "--initial", str(tmp_path / "initial.pt"), "--final"]
    assert verify([*arguments, str(tmp_path / "final.pt")]) == 0
    assert "adam:0.9,0.999, weight decay 0.1" in capsys.readouterr().out
    module.weight.data[0] += 1e-9
    torch.save(module.state_dict(), tmp_path / "final.pt")
    assert verify([*arguments, str(tmp_path / "final.pt")]) == 1


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
    """With those kernels the C library's pow gives another last bit for 0.99901^118, a number of the last step: Adam
    must not use it."""
    settings = {"update": "adam:0.9,0.99901", "step_size": 1.0, "weight_decay": 0.9, "directions_per_step": 2}
    run = private(tmp_path / "run", Logistic(), direction="sphere", steps=118, **settings)
    run.run()
    run.close()
    asked = (
        "import sys; from tests.optim.small import Logistic; from dpzero_theory.optim.run import replay; "
        "module = Logistic(); replay(sys.argv[1], module); print(module.weight.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", asked, str(tmp_path / "run" / RUN)],
        env=os.environ | OLDEST,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == weights(run).tolist()
