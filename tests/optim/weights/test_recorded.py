"""Evaluations and moves by recordings: on a CPU, where a recording is a list of torch's operations, as on a GPU."""

import copy
import warnings
from collections import UserDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental import proxy_tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset, default_collate

from dpzero_theory.optim.losses.evaluation import step_now
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.shape import text_of
from dpzero_theory.optim.weights import module as weights_module
from dpzero_theory.optim.weights.recorded import Recorded, _shape_of

LABELS = torch.arange(40) % 3
TOKENS = (torch.arange(40 * 6).view(40, 6) * 7 + LABELS[:, None]) % 11
DATA = TensorDataset(TOKENS, LABELS)


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 16)
        self.norm = nn.LayerNorm(16)
        self.hidden = nn.Linear(16, 160)  # of more entries than are shifted as a whole in half precision
        self.out = nn.Linear(160, 3, bias=False)
        self.to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(self.norm(self.embedding(tokens)))).mean(1))


ZEROS = {
    name: (np.zeros(len(p), int), np.zeros(p[0].numel() if p.ndim > 1 else 0, int))
    for name, p in sorted(Net().named_parameters())
}
SHAPE = text_of(1.5, ZEROS, [])  # directions that are 1.5 times as long


def losses(module: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(module(batch[0]).float(), batch[1], reduction="none")


class Tape:
    """Records functions on a CPU, and counts the recordings and their replays."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, function: Any) -> Any:
        self.recorded += 1
        state = [p.clone() for p in self.held]
        graph = proxy_tensor.make_fx(function)()
        for p, before in zip(self.held, state, strict=True):  # a GPU records without computing
            p.copy_(before)

        return lambda: self.replay(graph)

    def replay(self, graph: Any) -> Any:
        self.replayed += 1
        with torch.no_grad():
            return graph()

    held: tuple[Tensor, ...] = ()


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    found = Tape()
    monkeypatch.setattr(weights_module, "recorder", lambda device: found)
    monkeypatch.setattr(proxy_tensor, "CONSTANT_NUMEL_LIMIT", 0)  # single numbers are read again, too
    return found


def run(folder: Path | None = None, ask: Any = losses, *, net: nn.Module | None = None, tape: Any = None, **how: Any):
    settings = {"direction": "low-rank", "directions_per_step": 1, "difference": "central", **how.pop("plan", {})}
    plan = Plan.without_privacy(
        n=len(DATA), steps=6, expected_batch=20, step_size=0.05, smoothing=1e-2, sampling="poisson", **settings
    )
    module = net or Net()
    made = make_from_seed_not_private(module, ask, DATA, plan, seed=3, micro_batch=16, **how)
    if tape is not None:
        tape.held = tuple(p.detach() for p in module.parameters())
    sums = [made.step().sums for _ in range(6)]
    return sums, made.weights.fingerprint()


@pytest.mark.parametrize(
    ("rank", "how"),
    [
        ("low-rank:2", {}),
        ("low-rank", {"plan": {"directions_per_step": 3}}),
        ("low-rank:2", {"plan": {"directions_per_step": 3, "difference": "forward"}, "points_at_once": 4}),
        ("low-rank", {"dtype": torch.bfloat16}),
        ("low-rank", {"plan": {"shape": SHAPE}}),
    ],
)
def test_recorded_steps_have_the_same_bits(
    rank: str, how: dict[str, Any], tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Poisson batches of 10 to 30 records: several numbers of rows, the last of them filled up
    how = {**how, "plan": {"direction": rank, **how.get("plan", {})}}
    dtype = how.pop("dtype", torch.float32)
    found = run(net=Net(dtype), tape=tape, **copy.deepcopy(how))
    assert 2 <= tape.recorded <= 6
    assert tape.replayed >= 10
    # the same batches, filled up as the recorded ones were, but evaluated and moved as they are
    monkeypatch.setattr(
        Recorded, "evaluated", lambda self, points, ask, *args: eager(self._weights, points, ask, *args)
    )
    monkeypatch.setattr(weights_module.Weights, "_move_all", weights_module.Weights._move)
    assert run(net=Net(dtype), tape=tape, **how) == found


def eager(weights: Any, points: Any, ask: Any, at_once: int, content: Any, records: int) -> Any:
    return weights.evaluated(points, ask(content), at_once, records)


def test_a_recording_sees_new_weights_and_batches(tape: Tape) -> None:
    recorded, plain = run(tape=tape), None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights_module, "recorder", lambda device: None)
        plain = run()
    # other numbers of rows round differently
    assert sum(recorded[0], ()) == pytest.approx(sum(plain[0], ()), rel=1e-3)
    assert tape.recorded <= 4


def refused(ask: Any, tape: Tape, **how: Any) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(ask=ask, tape=tape, **how)
    said = [str(warning.message) for warning in caught]
    assert len(said) == 1, said
    return said[0]


def test_what_cannot_be_recorded_is_said_once_and_evaluated_as_it_is(tape: Tape) -> None:
    def draws(module: nn.Module, batch: Any) -> Tensor:
        return losses(module, batch) * (1 + step_now() % 2)

    def waits(module: nn.Module, batch: Any) -> Tensor:
        return losses(module, batch) * (1.0 if float(batch[1].sum()) >= 0 else 2.0)

    def counts(module: nn.Module, batch: Any) -> Tensor:
        module.norm.calls += 1
        return losses(module, batch)

    assert "draw anew" in refused(draws, tape)
    assert "raised" in refused(waits, tape)
    net = Net()
    net.norm.register_buffer("calls", torch.zeros(1))
    assert "write buffers" in refused(counts, tape, net=net)


def test_a_replay_with_other_bits_is_not_used(tape: Tape) -> None:
    seen = [0]

    def changes(module: nn.Module, batch: Any) -> Tensor:
        seen[0] += 1  # a Python number that a recording does not read again
        return losses(module, batch) * (1 + seen[0])

    assert "other bits" in refused(changes, tape)


def test_new_memory_of_the_weights_is_recorded_anew(tape: Tape) -> None:
    plan = Plan.without_privacy(
        n=len(DATA), steps=6, expected_batch=len(DATA), step_size=0.05, smoothing=1e-2, sampling="full",
        direction="low-rank",
    )  # fmt: skip

    def sums(tape: Tape | None) -> list[float]:
        net, found = Net(), []
        made = make_from_seed_not_private(net, losses, DATA, plan, seed=3, micro_batch=len(DATA))
        for _ in range(3):
            if tape:
                tape.held = tuple(p.detach() for p in net.parameters())
            found.append(made.step().sums[0])
            net.out.weight.data = net.out.weight.data / 2
        return found

    recorded = sums(tape)
    assert tape.recorded == 3  # of evaluations; the first move with each memory is made as it is
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights_module, "recorder", lambda device: None)
        assert recorded == pytest.approx(sums(None), rel=1e-3)


def test_shapes_tell_batches_apart_by_all_but_the_numbers() -> None:
    one = {"ids": torch.zeros(3, 2), "tag": "a"}
    assert _shape_of(one) == _shape_of({"ids": torch.ones(3, 2), "tag": "a"})
    others = ({**one, "tag": "b"}, {**one, "ids": torch.zeros(3, 4)}, {**one, "ids": torch.zeros(3, 2).int()}, [one])
    assert len({_shape_of(other) for other in (one, *others)}) == 5
    assert _shape_of(UserDict(one)) == _shape_of(UserDict({**one, "ids": torch.ones(3, 2)}))
    assert default_collate([1, 2]) is not None


class Started(TorchDispatchMode):
    """Counts the operations that Python starts, a replay as one."""

    count, replaying = 0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (self.replaying or func.is_view)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("depth", [1, 6])
def test_a_recorded_step_starts_as_many_operations_at_any_depth(depth: int, tape: Tape) -> None:
    net = nn.Sequential(nn.Linear(4, 20), *(nn.Linear(20, 20) for _ in range(depth)), nn.Linear(20, 3))
    data = TensorDataset(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), LABELS[:16])
    plan = Plan.without_privacy(
        n=16, steps=4, expected_batch=16, step_size=0.05, smoothing=1e-2, sampling="full", direction="low-rank"
    )
    made = make_from_seed_not_private(net, losses, data, plan, seed=3, micro_batch=16)
    tape.held, started = tuple(p.detach() for p in net.parameters()), Started()
    for _ in range(3):
        made.step()
    replay = tape.replay

    def unseen(graph: Any) -> Any:
        started.replaying = True
        found = replay(graph)
        started.replaying = False
        return found

    tape.replay = unseen  # type: ignore[method-assign]
    with started:
        made.step()
    assert tape.recorded == 2
    assert started.count <= 20, "17: batch, shifts, signs, two replays and their results, amounts, one replay"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_recorded_on_cuda_have_the_same_bits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def here(module: nn.Module, batch: Any) -> Tensor:
        return losses(module, [part.cuda() for part in batch])

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a step that is not recorded says so
        found = run(ask=here, net=Net(dtype).cuda())
    monkeypatch.setattr(
        Recorded, "evaluated", lambda self, points, ask, *args: eager(self._weights, points, ask, *args)
    )
    monkeypatch.setattr(weights_module.Weights, "_move_all", weights_module.Weights._move)
    assert run(ask=here, net=Net(dtype).cuda()) == found


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_cannot_be_recorded_on_cuda_leaves_the_device_as_it_was() -> None:
    def here(module: nn.Module, batch: Any) -> Tensor:
        return losses(module, [part.cuda() for part in batch])

    def waits(module: nn.Module, batch: Any) -> Tensor:
        return here(module, batch) * (1.0 if float(batch[1].cuda().sum()) >= 0 else 2.0)

    with pytest.warns(UserWarning, match="not by a recording: recording them raised"):
        run(ask=waits, net=Net().cuda())
    assert torch.rand(3, device="cuda").isfinite().all()  # torch's generator is not left in a recording
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(ask=here, net=Net().cuda()) == run(ask=here, net=Net().cuda())
