"""Tests that a run whose layers are streamed from files equals the run in memory, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dpzero_theory.optim.files.replay import replay
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.weights import streamed as module
from dpzero_theory.optim.weights.layers import Tensors, is_absent
from tests.optim.layered import DATA, SETTINGS, from_seed, in_files, in_memory, losses, saved


@pytest.fixture
def checkpoint(tmp_path: Path, request: pytest.FixtureRequest) -> Tensors:
    return saved(tmp_path / "checkpoint", getattr(request, "param", torch.float32))


@pytest.mark.parametrize("checkpoint", [torch.float32, torch.bfloat16], indirect=True)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"direction": "sphere", "directions_per_step": 2},
        {"precision": "stochastic"},
        {"difference": "forward", "directions_per_step": 2},
    ],
)
def test_a_streamed_run_is_the_run_in_memory(checkpoint: Tensors, changes: dict[str, Any]) -> None:
    dtype = checkpoint.read(["tokens.weight"]).dtype
    runs = [from_seed(model, **changes) for model in (in_memory(dtype), in_files(checkpoint, dtype))]
    assert runs[0].weights.fingerprint() == runs[1].weights.fingerprint()
    for _ in range(5):
        here, there = (run.step() for run in runs)
        assert here == there
    assert runs[0].weights.fingerprint() == runs[1].weights.fingerprint()
    values = [run.weights.values() for run in runs]
    assert all(torch.equal(values[0][name], values[1][name]) for name in values[0])
    assert all(is_absent(p) for block in runs[1].weights.module.blocks for p in block.parameters())


def test_derivatives_are_refused(checkpoint: Tensors) -> None:
    with pytest.raises(ValueError, match=r"difference must be 'forward' or 'central' .*: layers are streamed"):
        from_seed(in_files(checkpoint, torch.float32), difference="exact", smoothing=0.0)


def test_a_layer_is_read_once_a_step(checkpoint: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    run = from_seed(in_files(checkpoint, torch.float32), directions_per_step=3)
    run.step()
    read: list[str] = []
    monkeypatch.setattr(checkpoint, "read", lambda names, own=checkpoint.read: read.append(names[0]) or own(names))
    run.step()
    assert sorted(read) == sorted(f"blocks.{index}.0.{name}" for index in range(3) for name in ("weight", "bias"))


def test_a_private_run_is_replayed_in_memory(checkpoint: Tensors, tmp_path: Path) -> None:
    """A private run with streamed layers can be replayed in memory.

    The start's look at the losses, the ledger and the transcript know nothing of streaming.
    """
    run = make_private_with_epsilon(
        in_files(checkpoint, torch.float32), losses, DATA, **SETTINGS, target_epsilon=8, target_delta=1e-5, clip=1.0,
        relation="add-remove", folder=tmp_path / "run",
    )  # fmt: skip
    run.run()
    again = in_memory(torch.float32)
    replay(tmp_path / "run" / "transcript.bin", again)
    values = run.weights.values()
    own = dict(again.named_parameters())
    assert all(torch.equal(values[name], own[name]) for name in values if name in own)


def test_files_of_any_age_are_brought_up(checkpoint: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On resumption, files of layers of any age are brought up to date.

    Moved layers are written when it is their turn; a resumed run uses files that are a beginning of its own moves.
    """
    monkeypatch.setattr(module, "BEHIND", 2)
    work, folder = tmp_path / "work", tmp_path / "run"
    run = from_seed(in_files(checkpoint, torch.float32, work), folder=folder)
    for _ in range(3):
        run.step()
    run.close()
    assert len(list(work.glob("*.safetensors"))) == 3
    (work / "layer-0.safetensors").unlink()
    torch.manual_seed(1)
    other = from_seed(in_files(checkpoint, torch.float32, work), step_size=2e-3)
    other.step()
    other.step()
    other.step()  # These are steps of another run, whose files replace those of the first run
    (work / "layer-1.safetensors").rename(work / "kept")
    resumed = make_from_seed_not_private(
        in_files(checkpoint, torch.float32, work), losses, DATA,
        Plan.without_privacy(n=6, **SETTINGS, direction="rademacher"), seed=3, folder=folder, resume=True,
    )  # fmt: skip
    resumed.run()
    whole = from_seed(in_memory(torch.float32))
    whole.run()
    assert resumed.weights.fingerprint() == whole.weights.fingerprint()
    read: list[str] = []
    monkeypatch.setattr(checkpoint, "read", lambda names, own=checkpoint.read: read.append(names[0]) or own(names))
    resumed.weights.fingerprint()
    assert read == []


def test_what_cannot_be_streamed_is_refused(checkpoint: Tensors, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="precision must be 'nearest' or 'stochastic'"):
        from_seed(in_files(checkpoint, torch.float32), precision="master")
    for changes in ({"algorithm": "dpgd-0th", "clip": 1.0}, {"update": "momentum:0.9"}):
        with pytest.raises(ValueError, match="plan must release scalars"):
            make_private_with_epsilon(
                in_files(checkpoint, torch.float32), losses, DATA, **{**SETTINGS, "clip": 1.0, **changes},
                target_epsilon=8, target_delta=1e-5, relation="add-remove", folder=tmp_path / "run",
            )  # fmt: skip
    run = from_seed(in_files(checkpoint, torch.float32))
    state = run.state_dict()
    with pytest.raises(ValueError, match="streamed weights must not be loaded"):
        run.load_state_dict(state)
