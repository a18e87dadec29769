"""Tests of what frozen layers compute: once for each record, with the losses that whole evaluations give."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from dpzero_theory.optim.losses.states import with_states
from dpzero_theory.optim.losses.users import by_user
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon

N, FEATURES, CLASSES = 24, 6, 3


class Block(nn.Module):
    """A frozen layer that counts its calls."""

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.linear, self.change, self.calls = nn.Linear(FEATURES, FEATURES), change, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.change(torch.tanh(self.linear(x)))


class Deep(nn.Module):
    """Two frozen layers and a trained one; `top` is what happens to the states before it. If it `skips`, the states are
    added to what the trained one returns."""

    def __init__(
        self,
        change: Callable[[Tensor], Tensor] = lambda x: x,
        top: Callable[["Deep", Tensor], Tensor] | None = None,
        *,
        skips: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below = nn.ModuleList([Block(), Block(change)]).requires_grad_(False)
        self.above, self.top, self.skips = nn.Linear(FEATURES, CLASSES), top, skips

    def forward(self, x: Tensor) -> Tensor:
        for block in self.below:
            x = block(x)
        x = x if self.top is None else self.top(self, x)
        out: Tensor = self.above(x)
        return out + x[:, :CLASSES] if self.skips else out


def losses(module: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return functional.cross_entropy(module(x), y, reduction="none")


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(N, FEATURES, generator=generator), torch.arange(N) % CLASSES)


PLAN: dict[str, Any] = {
    "target_epsilon": 3.0, "target_delta": 1e-5, "steps": 6, "clip": 1.0, "step_size": 0.5, "smoothing": 1e-3,
    "expected_batch": N / 2, "relation": "add-remove", "sampling": "poisson", "directions_per_step": 4,
}  # fmt: skip


def released(model: nn.Module, memory: float, records: Any = None, **how: Any) -> tuple[list[Any], dict[str, Tensor]]:
    """Returns what a run from a seed releases and the weights at its end."""
    records = data() if records is None else records
    changes = {name: how.pop(name) for name in list(how) if name in ("difference", "direction", "smoothing")}
    plan = Plan.for_target(n=len(records), **{**PLAN, "expected_batch": len(records) / 2, **changes})
    given = {"seed": 3, "states_memory": memory, **how}
    run = make_from_seed_not_private(model, given.pop("losses", losses), records, plan, **given)
    found = [run.step().sums for _ in range(plan.steps)]
    return found, run.weights.values()


def test_a_record_alone_has_the_same_bits_and_its_frozen_layers_run_once() -> None:
    kept, whole = Deep(), Deep()
    assert released(kept, 2.0, isolation="exact")[0] == released(whole, 0.0, isolation="exact")[0]
    assert kept.below[1].calls < 60 < 500 < whole.below[1].calls  # type: ignore[operator]


@pytest.mark.parametrize(
    "how",
    [
        {}, {"micro_batch": 3}, {"difference": "forward", "direction": "low-rank", "points_at_once": 5},
        {"difference": "exact", "smoothing": 0.0},
    ],
)  # fmt: skip
def test_batches_have_the_same_losses_up_to_rounding(how: dict[str, Any]) -> None:
    (kept, found), (whole, wanted) = (released(Deep(), memory, **how) for memory in (2.0, 0.0))
    torch.testing.assert_close(torch.tensor(kept), torch.tensor(whole), rtol=1e-3, atol=2**30 * 1e-2)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4)


def test_without_memory_layers_run_once_in_a_step() -> None:
    kept, little = Deep(), Deep()
    assert released(kept, 2.0)[0] == released(little, 1e-9)[0]
    assert kept.below[1].calls < little.below[1].calls < 150  # type: ignore[operator]


def test_users_have_the_same_losses() -> None:
    each = by_user(data(), [number // 3 for number in range(N)])
    (kept, _), (whole, _) = (released(Deep(), memory, each, isolation="exact", micro_batch=1) for memory in (2.0, 0.0))
    torch.testing.assert_close(torch.tensor(kept), torch.tensor(whole), rtol=1e-3, atol=2**30 * 1e-2)


class _Drawn:
    """Records with noise that is drawn as a record is read, as by random augmentation."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = data()[index]
        return x + torch.randn(FEATURES), y


class _Parts(_Drawn):
    """Records that are a part of a larger tensor, of which the rest differs each time."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = data()[index]
        return torch.cat([x, torch.randn(FEATURES)])[:FEATURES], y


def test_a_record_is_known_by_its_own_numbers() -> None:
    kept = Deep()
    released(kept, 2.0, _Parts(), isolation="exact")
    assert kept.below[1].calls < 60  # type: ignore[operator]


def test_an_augmented_record_is_never_taken_for_another() -> None:
    found, join = with_states(Deep(), losses, _Drawn(), None, 2.0)
    assert join is not None
    for seed in range(3):
        torch.manual_seed(seed)
        records = [_Drawn()[number] for number in range(4)]
        model = Deep()
        wanted = losses(model, (torch.stack([x for x, _ in records]), torch.stack([y for _, y in records])))
        torch.testing.assert_close(found(model, join(records)), wanted)


def _twice(model: Deep, x: Tensor) -> Tensor:
    out: Tensor = model.below[1](x)
    return out


@pytest.mark.parametrize(
    "model",
    [
        Deep(change=lambda x: x - x.mean(0)),  # records of a batch are mixed
        Deep(change=lambda x: x + torch.rand(FEATURES)),  # another number each time
        Deep().requires_grad_(True),  # nothing is frozen
    ],
)
def test_where_outputs_cannot_be_kept_the_whole_module_is_evaluated(model: Deep) -> None:
    assert with_states(model, losses, data(), None, 2.0) == (losses, None)


def test_only_what_nothing_changes_and_one_call_has_made_is_kept() -> None:
    twice, read, written = Deep(top=_twice, skips=True), Deep(), Deep(top=lambda model, x: x.mul_(2), skips=True)
    read.below[0].change = lambda x: functional.linear(x, read.above.weight.T @ read.above.weight)
    for model, kept in ((twice, twice.below[0]), (read, read.below[0].linear), (written, written.below[1].linear)):
        found, join = with_states(model, losses, data(), None, 2.0)
        cut = join.__self__._cut  # type: ignore[union-attr]
        assert (cut.module, cut.argument) == (kept, False)
        model.above.weight.data += 1
        batch = data()[:5]
        torch.testing.assert_close(found(model, join(list(zip(*batch, strict=True)))), losses(model, batch))  # type: ignore[misc]


class _Around(nn.Module):
    """Hands what it takes to its layers, of which the last is trained, and, if it `skips`, adds it to their result."""

    def __init__(self, *, skips: bool) -> None:
        super().__init__()
        self.layers, self.skips = nn.ModuleList([Block(), nn.Linear(FEATURES, CLASSES)]), skips
        self.layers[0].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers[1](self.layers[0](x))
        return out + x[:, :CLASSES] if self.skips else out


@pytest.mark.parametrize("skips", [False, True])
def test_layers_below_a_module_that_is_trained_in_part(skips: bool) -> None:
    """The tensor that the trained layer takes is kept. If the losses also depend on the frozen layers in another way,
    here through a skip connection around them, it is what the module with both takes."""
    torch.manual_seed(0)
    model = nn.Sequential(Block().requires_grad_(False), _Around(skips=skips))
    found, join = with_states(model, losses, data(), None, 2.0)
    cut = join.__self__._cut  # type: ignore[union-attr]
    assert (cut.module, cut.argument) == (model[1] if skips else model[1].layers[1], True)
    batch = data()[:5]
    torch.testing.assert_close(found(model, join(list(zip(*batch, strict=True)))), losses(model, batch))  # type: ignore[misc]


def test_what_mixes_records_below_is_refused_as_ever(tmp_path: Path) -> None:
    model = Deep(change=lambda x: x - x.mean(0))
    with pytest.raises(ValueError, match="must give each record a number of its own"):
        make_private_with_epsilon(model, losses, data(), folder=tmp_path / "run", **PLAN)
    with pytest.raises(ValueError, match=r"^states_memory must be a finite number with 0 <= states_memory.*; got -1$"):
        make_private_with_epsilon(Deep(), losses, data(), folder=tmp_path / "run", states_memory=-1, **PLAN)


def test_buffers_that_frozen_layers_write_are_put_back(tmp_path: Path) -> None:
    model = Deep()
    model.below[0].register_buffer("most", torch.zeros(()))

    def noted(x: Tensor) -> Tensor:
        model.below[0].most.copy_(torch.maximum(model.below[0].most, x.max()))  # type: ignore[operator, arg-type]
        return x

    model.below[0].change = noted
    run = make_private_with_epsilon(model, losses, data(), folder=tmp_path / "run", **PLAN)
    run.run()
    run.close()
    assert model.below[0].most == 0
    assert model.below[0].calls < 100  # type: ignore[operator]


def padded(records: Sequence[list[int]]) -> dict[str, Tensor]:
    longest = max(map(len, records))
    ids = torch.tensor([[*record, *[0] * (longest - len(record))] for record in records])
    mask = torch.tensor([[1] * len(record) + [0] * (longest - len(record)) for record in records])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def test_texts_of_several_lengths() -> None:
    """The layers of models of transformers are found, up to the last one with a trained weight."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    from dpzero_theory.optim.losses.task_losses import losses_for, preference_losses

    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=3, **sizes))
    bert = transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=3, **sizes))
    records = [torch.randint(1, 50, (size,)).tolist() for size in (3, 7, 5, 4, 6)]
    two, last = llama.model.layers[2], bert.bert.encoder.layer[2]
    for model, trained, taker in (
        (llama, llama.model.norm, llama.model.norm), (llama, two.mlp, two), (llama, two.self_attn.v_proj, two),
        (bert, last, last.attention), (bert, last.output.LayerNorm, last.output.LayerNorm),
    ):  # fmt: skip
        model.eval().requires_grad_(False)
        trained.requires_grad_(True)
        found, join = with_states(model, losses_for(model), records, padded, 2.0)
        assert join is not None
        assert join.__self__._cut.module is taker  # type: ignore[attr-defined]
        torch.testing.assert_close(found(model, join(records)), losses_for(model)(model, padded(records)))

    def pairs(numbers: Sequence[int]) -> dict[str, Tensor]:
        both = padded([*(records[number] for number in numbers), *(records[number - 1] for number in numbers)])
        one = torch.arange(len(numbers)) * 0.1
        answered = both["attention_mask"] * (torch.arange(both["input_ids"].shape[1]) > 1)
        return {**both, "completion_mask": answered, "ref_chosen_logps": one * 0, "ref_rejected_logps": one * 0}

    llama.requires_grad_(False)
    llama.model.norm.requires_grad_(True)
    found, join = with_states(llama, preference_losses(), list(range(5)), pairs, 2.0)
    assert join is not None
    assert join is not pairs
    torch.testing.assert_close(found(llama, join([4, 0, 2])), preference_losses()(llama, pairs([4, 0, 2])))
