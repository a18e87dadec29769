"""Ctrl-C at every line of a step: the weights are the transcript's, or the run says that they are not."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _len_torch_dispatch_stack

import dpzero_theory
from dpzero_theory.optim.folder import TRANSCRIPT
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.transcript import TranscriptError, read, replay
from dpzero_theory.privacy.ledger import LedgerError
from tests.optim.small import BUDGET, FULL, STEP, data

LIBRARY = str(Path(dpzero_theory.__file__).parent)
OTHERS = ("contextlib.py", "_python_dispatch.py", "grad_mode.py", "autocast_mode.py")


Line = tuple[str, int]


@contextmanager
def traced(event: Callable[[Line], None]) -> Iterator[None]:
    """`event` is told each line that is reached in the library's code, or in what it leans on to tidy up."""

    def trace(frame: FrameType, kind: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if not (name.startswith(LIBRARY) or name.endswith(OTHERS)):
            return None
        if kind == "line":
            event((name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def lines(work: Callable[[], object]) -> list[Line]:
    found: dict[Line, None] = {}
    with traced(lambda line: found.setdefault(line)):
        work()
    return list(found)


def interrupt(work: Callable[[], object], line: Line, time: int) -> bool:
    """Ctrl-C when a line is reached for the time-th time; whether it came to that."""
    reached = 0

    def event(found: Line) -> None:
        nonlocal reached
        reached += found == line
        if found == line and reached == time:
            sys.settrace(None)
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), traced(event):
        work()
        return False
    return True


def module(dtype: torch.dtype = torch.float32) -> nn.Module:
    """With dropout, so that evaluation mode and back can be seen."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 2), nn.Dropout(0.5), nn.Linear(2, 1)).to(dtype)


def each(module: nn.Module, batch: Any) -> torch.Tensor:
    return module(batch[0].to(module[0].weight.dtype))[:, 0].float() ** 2


def made(model: nn.Module, folder: Path, **changes: Any) -> Run:
    arguments = {**BUDGET, **STEP, **FULL, "micro_batch": 20, "steps": 10**5, **changes}
    return make_private_with_epsilon(model, each, data(torch.float32), **arguments, folder=folder)


def parameters(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def require_tidy(model: nn.Module) -> None:
    assert all(part.training for part in model.modules())
    assert torch.is_grad_enabled()
    assert _len_torch_dispatch_stack() == 0
    for parameter in model.parameters():
        read, there = parameter.detach().clone(), parameter.detach()
        assert (read.view(torch.uint8).numpy() == there.view(torch.uint8).numpy()).all()  # which torch does not see


class Follower:
    """The weights that the transcript stands for, moved on as it grows."""

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self.folder, self.model = folder, model
        self.weights = read(folder / TRANSCRIPT)[0].weights(model)
        self.done = 0

    def follow(self) -> None:
        header, records = read(self.folder / TRANSCRIPT)
        for record in records[self.done :]:
            self.weights.move_(header.plan.moves(record.release, record.sums))
        self.done = len(records)

    def state(self) -> dict[str, Any]:
        header, records = read(self.folder / TRANSCRIPT)
        return {
            "key": header.key,
            "position": records[-1].release + 1 if records else 0,
            "parameters": {name: value.clone() for name, value in self.weights.values().items()},
            "weights": {name: value.clone() for name, value in self.weights.state_dict().items()},
        }


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.mark.parametrize(
    ("dtype", "changes", "time"),
    [
        (torch.float32, {}, 1),
        (torch.float32, {"direction": "gaussian", "directions_per_step": 2, "paid_at_once": 3}, 2),
        (torch.bfloat16, {"precision": "master"}, 3),
    ],
)
def test_an_interrupt_at_any_line_of_a_step(
    tmp_path: Path, dtype: torch.dtype, changes: dict[str, Any], time: int
) -> None:
    """Afterwards either the next step goes on from the transcript's weights, or it refuses and a resumption does."""
    model = module(dtype)
    run = made(model, tmp_path, **changes)
    follower = Follower(tmp_path, module(dtype))
    interrupts, refusals, shown = 0, [], set()
    for line in lines(run.step)[:: 1 if time == 1 else 4]:
        follower.follow()
        before = follower.done
        if not interrupt(run.step, line, time):
            continue
        interrupts += 1
        require_tidy(model)
        try:
            run.step()
        except (TranscriptError, LedgerError) as error:
            refusals.append(str(error))
            require_tidy(model)
            run.close()
            run = made(model, tmp_path, resume=True, **changes)
            follower.follow()
            run.load_state_dict(follower.state())
            run.step()
        follower.follow()
        assert torch.equal(parameters(model), parameters(follower.model)), line
        shown.add(follower.done - before)
    assert interrupts > 20
    assert 0 < len(refusals) < interrupts / 2
    assert all("load a checkpoint" in text or "open it again" in text for text in refusals)
    assert shown == {1, 2}  # records of the interrupted step, if it came to that, and of the one after it
    again = module(dtype)
    replay(tmp_path / TRANSCRIPT, again)
    assert torch.equal(parameters(model), parameters(again))


@pytest.mark.parametrize("work", [Run.catch_up, Run.state_dict])
def test_an_interrupted_catching_up_is_begun_again_from_the_initial_weights(
    tmp_path: Path, work: Callable[[Run], object]
) -> None:
    run = made(module(), tmp_path, steps=8)
    run.run()
    run.close()
    final, refusals = parameters(run.weights.module), []
    run = made(module(), tmp_path, steps=8, resume=True)
    found = lines(lambda: work(run))[:: 2 if work is Run.catch_up else 5]
    for line in found:
        run.close()
        model = module()
        run = made(model, tmp_path, steps=8, resume=True)
        assert interrupt(lambda run=run: work(run), line, 1)
        try:
            run.catch_up()
        except TranscriptError as error:
            refusals.append(str(error))
            model.load_state_dict(module().state_dict())
            run.catch_up()
        require_tidy(model)
        assert torch.equal(parameters(model), final)
    assert len(found) > 15
    assert refusals
    assert all("load a checkpoint (load_state_dict), or those" in text for text in refusals)
