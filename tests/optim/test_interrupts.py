"""Tests of Ctrl-C at any instruction of a step: the weights are those of the transcript, or the run says they are not.

A sample of the instructions is tested, another one in each test; `python -m benchmarks.run_faults` tests all of them.
"""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._functorch import eager_transforms
from torch.autograd import forward_ad
from torch.overrides import _len_torch_function_stack
from torch.utils._python_dispatch import _len_torch_dispatch_stack

from benchmarks.kit.interrupts import OTHERS, instructions, interrupt, stop, traced
from dpzero_theory.optim.files.checkpoint import Checkpoint
from dpzero_theory.optim.files.folder import TRANSCRIPT, Budget, Folder
from dpzero_theory.optim.files.replay import replay, weights_of
from dpzero_theory.optim.files.transcript import TranscriptError, read
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.optim.weights.torch_state import TorchState
from dpzero_theory.privacy.ledger import LedgerError
from tests.optim.small import BUDGET, FULL, STEP, data

pytestmark = [
    # With bfloat16 weights rounding is visible, and a warning says so.
    pytest.mark.filterwarnings("ignore:smoothing = .* makes rounding visible"),
    # An interrupt may come when a file is open and no variable refers to it yet.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]


def module(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Returns a module with dropout, so that a change to evaluation mode and back can be seen."""
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
    assert _len_torch_dispatch_stack() == _len_torch_function_stack() == 0
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == eager_transforms.JVP_NESTING == 0
    assert forward_ad._current_level == -1
    for parameter in model.parameters():
        read, there = parameter.detach().clone(), parameter.detach()
        # Read as bytes by numpy, the memory of the weights is what torch reads as well.
        assert (read.view(torch.uint8).numpy() == there.view(torch.uint8).numpy()).all()


class Follower:
    """The weights that a run's transcript stands for, computed further as the transcript grows.

    `folder` is the run's folder, and `model` a module with the initial weights.
    """

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self.folder, self.model = folder, model
        self.weights = weights_of(read(folder / TRANSCRIPT)[0], model)
        self.done = 0

    def follow(self) -> None:
        header, records = read(self.folder / TRANSCRIPT)
        for record in records[self.done :]:
            self.weights.move_(header.plan.moves(record.release, record.sums))
        self.done = len(records)

    def state(self) -> dict[str, torch.Tensor]:
        header, records = read(self.folder / TRANSCRIPT)
        position = records[-1].release + 1 if records else 0
        values = {name: value.clone() for name, value in self.weights.values().items()}
        return Checkpoint(header.key, position, values, self.weights.state_dict()).tensors()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.mark.parametrize(
    ("dtype", "changes", "time"),
    [
        (torch.float32, {}, 1),
        (torch.float32, {"direction": "gaussian", "directions_per_step": 2, "paid_at_once": 3}, 2),
        (torch.float32, {"directions_per_step": 2, "points_at_once": 4}, 1),
        (torch.bfloat16, {"precision": "master"}, 1),
    ],
)
def test_an_interrupt_at_any_instruction_of_a_step(
    tmp_path: Path, dtype: torch.dtype, changes: dict[str, Any], time: int
) -> None:
    """After an interrupt at any instruction of a step, the run goes on from the transcript's weights, or refuses to.

    Where it refuses, a resumption goes on from them.
    """
    model = module(dtype)
    run = made(model, tmp_path, **changes)
    follower = Follower(tmp_path, module(dtype))
    interrupts, refusals, shown = 0, [], set()
    found = instructions(run.step)
    assert len(found) > 3000
    for instruction in found[time :: len(found) // (45 * time)]:  # fewer instructions come a second time
        follower.follow()
        before = follower.done
        if not interrupt(run.step, instruction, time):
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
        assert torch.equal(parameters(model), parameters(follower.model)), instruction
        shown.add(follower.done - before)
    assert interrupts > 20
    assert 0 < len(refusals) < interrupts / 2
    assert all("load a checkpoint" in text or "open it again" in text for text in refusals)
    # After an interrupt the transcript has the records of the interrupted step, if it was released, and of the next
    # one.
    assert shown == {1, 2}
    again = module(dtype)
    replay(tmp_path / TRANSCRIPT, again)
    assert torch.equal(parameters(model), parameters(again))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # said by torch's own context managers
@pytest.mark.parametrize(
    "changes",
    [
        {"directions_per_step": 2, "points_at_once": 4},
        {"difference": "exact", "smoothing": 0.0},
        {"difference": "exact", "smoothing": 0.0, "directions_per_step": 2, "points_at_once": 2},
    ],
)
def test_an_interrupt_of_points_in_one_pass_or_of_a_derivative_leaves_torch_as_it_was(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """After an interrupt inside `torch.vmap` or a derivative, torch's stacks and Python's filters for warnings are as
    before, and the run goes on from the transcript's weights.

    A block that only one line ends is left open by few instructions, so about every fifth one is tested.
    """
    model = module()
    run = made(model, tmp_path, **changes)
    filters = list(warnings.filters)
    found = [
        place
        for place in instructions(run.step)
        if place[0].endswith(("stacked.py", "derivatives.py", "torch_state.py", *OTHERS))
    ]
    assert len(found) > 300
    interrupts = 0
    for instruction in found[:: max(5, len(found) // 200)]:
        raised = interrupt(run.step, instruction)
        interrupts += raised is not None
        require_tidy(model)
        assert list(warnings.filters) == filters
        del raised  # with its traceback
        require_tidy(model)
        run.step()
    assert interrupts > 60
    again = module()
    replay(tmp_path / TRANSCRIPT, again)
    assert torch.equal(parameters(model), parameters(again))


def test_what_another_thread_has_ended_is_not_brought_back() -> None:
    """Filters for warnings, and levels of derivatives, belong to all threads.

    A step that begins while another thread has them changed leaves them as that thread leaves them.
    """
    filters = warnings.filters
    with warnings.catch_warnings(), forward_ad.dual_level():
        state = TorchState()
    state.restore()
    assert warnings.filters is filters
    assert forward_ad._current_level == -1


@pytest.mark.parametrize("work", [Run.catch_up, Run.state_dict])
def test_an_interrupted_catching_up_is_begun_again_from_the_initial_weights(
    tmp_path: Path, work: Callable[[Run], object]
) -> None:
    run = made(module(), tmp_path, steps=8)
    run.run()
    run.close()
    final, refusals = parameters(run.weights.module), []
    run = made(module(), tmp_path, steps=8, resume=True)
    found = instructions(lambda: work(run))
    # Only a fortieth of the instructions are in the part where the run refuses to go on.
    found = found[:: len(found) // 50]
    for instruction in found:
        run.close()
        model = module()
        run = made(model, tmp_path, steps=8, resume=True)
        assert interrupt(lambda run=run: work(run), instruction)
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


class Leader:
    """A run of Algorithm 1 that is interrupted, and a second one that repeats its steps from the same weights."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder, module()
        self.run = made(self.model, folder, algorithm="dpgd-0th")

    def again(self, state: dict[str, Any]) -> None:
        self.run.close()
        self.run = made(self.model, self.folder, algorithm="dpgd-0th", resume=True)
        self.run.load_state_dict(state)


def test_an_interrupt_at_any_instruction_of_a_step_of_algorithm_1(tmp_path: Path) -> None:
    """After an interrupt of a step of Algorithm 1 the run refuses to go on, or the weights are right.

    Right weights have moved exactly by what was released. What was released since the last checkpoint stands in the
    transcript.
    """
    leader = Leader(tmp_path)
    moves: list[int] = []
    add = Weights.add_

    def counted(self: Weights, values: Any, number: int) -> None:
        add(self, values, number)
        moves.append(number)

    refusals, whole = [], 0
    found = instructions(leader.run.step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Weights, "add_", counted)
        for instruction in found[:: len(found) // 45]:
            state = {name: value.clone() for name, value in leader.run.state_dict().items()}
            before, made_before = parameters(leader.model), len(read(tmp_path / TRANSCRIPT)[1])
            moves.clear()
            if not interrupt(leader.run.step, instruction):
                continue
            require_tidy(leader.model)
            records = [record.release for record in read(tmp_path / TRANSCRIPT)[1][made_before:]]
            try:
                leader.run.catch_up()
            except TranscriptError as error:
                refusals.append(str(error))
                leader.again(state)
                leader.run.step()
                continue
            whole += 1
            assert moves == records
            assert torch.equal(parameters(leader.model), before) is (moves == [])
            try:
                leader.run.step()
            except (TranscriptError, LedgerError) as error:
                refusals.append(str(error))
                leader.again(state)
    assert whole > 15
    assert len(refusals) > 5
    assert all("load a" in text or "open it again" in text for text in refusals)


def test_a_run_of_vectors_without_a_checkpoint_begins_again_when_that_is_said(tmp_path: Path) -> None:
    run = made(module(), tmp_path, algorithm="dpgd-0th", steps=6)
    for _ in range(2):
        run.step()
    run.close()
    model = module()
    run = made(model, tmp_path, algorithm="dpgd-0th", steps=6, resume=True)
    with pytest.raises(TranscriptError, match=r"not kept: load a checkpoint, or go on from .*begin_again"):
        run.step()
    run.begin_again()
    assert run.step().release == 2
    with pytest.raises(TranscriptError, match="not this run's initial ones"):
        run.begin_again()
    assert run.step().release == 3


def test_an_interrupted_start_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    """A start that is interrupted leaves the module as it was.

    The interrupt comes at a sample of the instructions of the evaluation that a start makes, inside and at the ends of
    the shift of the weights.
    """
    made(module(), tmp_path, steps=8).close()
    model = module()
    found = instructions(lambda: made(model, tmp_path, steps=8, resume=True).close())
    shifting = [
        place for place in found if place[1] in ("shifted", "restore", "begin", "retire", "__enter__", "__exit__")
    ]
    assert len(shifting) > 100
    for instruction in shifting[:: len(shifting) // 40]:
        assert interrupt(lambda: made(model, tmp_path, steps=8, resume=True).close(), instruction)
        require_tidy(model)
    made(model, tmp_path, steps=8, resume=True).step()


def test_an_interrupt_at_any_instruction_of_opening_the_folder_leaves_no_lock(tmp_path: Path) -> None:
    """An interrupt at any instruction of opening the folder leaves no lock on it.

    A sample of the instructions is tested; `python -m benchmarks.run_faults --walk opening` tests all of them.
    """
    run = made(module(), tmp_path)
    run.step()
    run.close()
    held: list[Folder] = []

    def work() -> None:
        budget = Budget(BUDGET["target_epsilon"], BUDGET["target_delta"], None)
        held.append(Folder.open(tmp_path, run._header, data(torch.float32), budget))

    found = instructions(work)
    held.pop().close()
    files = [place for place in found if place[0].endswith(("journal.py", "ledger.py", "folder.py", "transcript.py"))]
    for instruction in files[:: len(files) // 60]:
        assert interrupt(work, instruction)
        work()
        held.pop().close()


@pytest.mark.parametrize("changes", [{}, {"algorithm": "dpgd-0th"}])
def test_a_signals_handler_that_asks_for_a_checkpoint_in_the_middle_of_a_step_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A signal's handler that asks for a checkpoint in the middle of a step is refused.

    The step then goes on as if nobody had asked. It is tested at a sample of the step's instructions.
    """
    model, asked = module(), 0
    run = made(model, tmp_path, **changes)
    found = instructions(run.step)
    inside = found.index(next(place for place in found if place[1] == "_begin"))
    for handler in (run.state_dict, run.step, run.begin_again):
        for instruction in found[inside :: len(found) // 25]:
            told: list[int] = []

            def event(place: Any, chosen: Any = instruction, told: Any = told, handler: Any = handler) -> None:
                if place == chosen and not told and run._turn.taken:
                    stop()
                    with pytest.raises(TranscriptError, match="a step is being made: do this when it is over"):
                        handler()
                    told.append(1)

            with traced(event):
                run.step()
            asked += len(told)
    assert asked > 40
    if not changes:
        again = module()
        replay(tmp_path / TRANSCRIPT, again)
        assert torch.equal(parameters(model), parameters(again))
