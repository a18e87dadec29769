"""Updates in a whole run: replayed, interrupted, in checkpoints and in `verify`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpzero_theory.optim.folder import TRANSCRIPT
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.transcript import TranscriptError, replay
from dpzero_theory.optim.verify import main as verify
from tests.optim.small import Logistic, data, losses, plan, private, weights

ALL: list[dict[str, Any]] = [
    {"update": "momentum:0.9"},
    {"update": "adam:0.9,0.99"},
    {"update": "plain", "weight_decay": 0.3},
    {"update": "plain", "groups": {"w*": 0.5}},
    {"update": "adam:0.9,0.99", "weight_decay": 0.3, "directions_per_step": 3, "schedule": "linear:2"},
]


def wide(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return losses(module, batch).float()


@pytest.mark.parametrize("changes", ALL)
@pytest.mark.parametrize("precision", ["nearest", "master"])
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
    replay(tmp_path / "run" / TRANSCRIPT, other)
    assert torch.equal(module.weight, other.weight)
    assert not torch.equal(module.weight, initial["weight"])


@pytest.mark.parametrize("changes", ALL[1:])
def test_a_run_goes_on_as_if_it_had_not_been_interrupted(tmp_path: Path, changes: dict[str, Any]) -> None:
    """From the transcript alone, and from a checkpoint of the middle, the end is that of the replay to the bit."""
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
    replay(tmp_path / "run" / TRANSCRIPT, replayed)
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
    run.run()  # from the initial weights, with nothing kept
    run.close()
    replayed = Logistic()
    replay(tmp_path / "run" / TRANSCRIPT, replayed)
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


def test_an_update_is_held_to_on_resumption(tmp_path: Path) -> None:
    private(tmp_path / "run", update="momentum:0.9").close()
    with pytest.raises(ValueError, match=r"update must be that of the run that is resumed, 'momentum:0\.9'"):
        private(tmp_path / "run", update="momentum:0.5", resume=True)


class Two(nn.Module):
    """The logistic's weight in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.last = nn.Parameter(torch.zeros(4, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        return features @ torch.cat([self.first, self.last])


def test_a_group_has_a_step_size_of_its_own() -> None:
    """After one release each part has moved by its factor times what it moves without; 0 leaves it where it is."""
    ends = []
    for groups in ({}, {"first": 0.25, "*": 3.0}, {"first": 0.0}):
        module = Two()
        chosen = plan(groups=groups, steps=1)
        make_from_seed_not_private(module, losses, data(), chosen, seed=3).run()
        ends.append((module.first.detach(), module.last.detach()))
    (first, last), (quarter, three), (none, same) = ends
    assert torch.allclose(quarter, first / 4, rtol=1e-6)
    assert torch.allclose(three, 3 * last, rtol=1e-6)
    assert not none.any()
    assert torch.allclose(same, last, rtol=1e-6)


@pytest.mark.parametrize(
    ("groups", "said"),
    [({"frist": 2.0}, "groups must match trainable parameters' names; got 'frist'"), ({"*": -1.0}, r"groups\['\*'\]")],
)
def test_a_group_that_is_none_is_refused(tmp_path: Path, groups: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        private(tmp_path / "run", Two(), groups=groups)
    assert not (tmp_path / "run").exists()
