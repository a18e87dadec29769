"""Tests that checkpoints written to files and read again give the same run, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.run import Run
from tests.optim.small import BUDGET, FULL, STEP, Logistic, data, losses, private


def half(folder: Path, **changes: Any) -> Run:
    """Returns a run on half-precision weights, with `changes` of its settings."""
    settings = {**BUDGET, **STEP, **FULL, **changes}

    def wide(module: Any, batch: Any) -> torch.Tensor:
        return losses(module, batch).float()

    return make_private_with_epsilon(Logistic(torch.bfloat16), wide, data(torch.bfloat16), folder=folder, **settings)


@pytest.mark.filterwarnings("ignore:module has trainable weights in half precision")
@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_a_run_goes_on_from_a_file(kind: str, tmp_path: Path) -> None:
    run = half(tmp_path / "run")
    for _ in range(3):
        run.step()
    state, file = run.state_dict(), tmp_path / "state"
    if kind == "torch":
        torch.save(state, file)
        run.close()
        read = torch.load(file, weights_only=True)
    else:
        safetensors = pytest.importorskip("safetensors.torch", reason="the hf extra is not installed")
        safetensors.save_file(state, file)
        run.close()
        read = safetensors.load_file(file)
    again = half(tmp_path / "run", resume=True)
    again.load_state_dict(read)
    again.catch_up()
    assert again.weights.fingerprint() == run.weights.fingerprint()
    assert all(torch.equal(value, read[name]) for name, value in again.state_dict().items())


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    run = private(tmp_path)
    for other in ({}, Logistic().state_dict(), {**run.state_dict(), "run.key": "word"}):
        with pytest.raises(ValueError, match=r"^state must be of a run's state_dict"):
            run.load_state_dict(other)
