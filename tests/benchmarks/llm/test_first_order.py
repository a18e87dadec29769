"""Per-record gradients, clipping and LoRA against plain autograd."""

import pytest
import torch

from benchmarks.llm import first_order
from benchmarks.llm.configuration import Configuration
from benchmarks.llm.frozen import memoise
from benchmarks.llm.scoring import scorer
from benchmarks.problems.encoder import SUBSETS, SentenceClassifier, train
from tests.benchmarks.llm.test_scoring import batch, ready
from tests.benchmarks.llm.tiny import tiny


@pytest.mark.parametrize(
    ("name", "kind", "weights"),
    [
        ("sst2", "masked", "all"),
        ("sst2", "masked", "biases"),
        ("sst2", "encoder", "all"),
        ("sst2", "encoder", "top-biases"),
        ("sst2", "encoder", "top-norm"),
        ("boolq", "causal", "body"),
        ("squad", "causal", "body"),
        ("sst2", "causal", "all"),
    ],
)
def test_per_record_gradients_are_those_of_one_record_at_a_time(name: str, kind: str, weights: str) -> None:
    prompter, given = batch(name, kind)
    examples = sorted(given, key=lambda example: len(example.ids))
    module = ready(prompter)
    train(module, weights)
    scores = scorer(prompter, tiny(kind).pad, rows=16)
    parameters = [p for p in module.parameters() if p.requires_grad]
    expected = [torch.autograd.grad(scores.losses(module, [example])[0], parameters) for example in examples]
    assert memoise(module, tiny(kind).pad, {}) == weights.startswith("top")
    gradients = first_order.PerRecordGradients(module)
    gradients.set(scores, examples)
    for index, parameter in enumerate(parameters):
        by_record = torch.stack([row[index] for row in expected])
        scale = max(1.0, float(by_record.abs().max()))  # float32 sums err by their largest terms
        assert torch.allclose(parameter.grad_sample, by_record, atol=2e-6 * scale), index  # type: ignore[attr-defined]
    assert ("one backward" in gradients.how) == (kind == "causal"), "OPT folds records into positions"
    gradients.close()
    assert not any(hasattr(parameter, "grad_sample") for parameter in parameters)


def test_an_empty_batch_is_a_step_of_noise() -> None:
    prompter, _ = batch("sst2", "encoder")
    module = ready(prompter)
    train(module, "biases")
    gradients = first_order.PerRecordGradients(module)
    gradients.set(scorer(prompter, 0), [])
    assert all(len(p.grad_sample) == 0 for p in module.parameters() if p.requires_grad)  # type: ignore[attr-defined]


def test_a_private_step_is_the_clipped_mean_and_does_not_depend_on_micro_batches() -> None:
    """Without noise worth the name, AdamW sees sum of clipped gradients over the expected batch."""
    prompter, examples = batch("sst2", "encoder")
    ends = []
    for rows in (2, 16):
        module = ready(prompter)
        train(module, "biases")
        scores = scorer(prompter, 0, rows)
        c = Configuration(
            method="dp-adamw", sampling="full", batch=len(examples), steps=2, clip=0.01, step_size=1e-2, per_class=None
        )
        steps: list[int] = []
        how = first_order.train_private_first_order(module, scores, examples, c, 1e-9, steps.append)
        assert "Opacus' hooks" in how
        assert steps == [1, 2]
        ends.append(torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]))
    module = ready(prompter)
    train(module, "biases")
    scores = scorer(prompter, 0)
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    for _ in range(2):
        rows_ = [torch.autograd.grad(scores.losses(module, [example])[0], parameters) for example in examples]
        flat = torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows_])
        flat *= (0.01 / (flat.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)
        mean = flat.sum(dim=0) / len(examples)
        for p, g in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
            p.grad = g.view_as(p)
        optimizer.step()
    by_hand = torch.cat([p.detach().reshape(-1) for p in parameters])
    moved = by_hand.abs() > 0
    assert torch.allclose(ends[0], ends[1], atol=1e-4)
    assert (ends[1] - by_hand)[moved].abs().median() < 1e-4


@pytest.mark.parametrize(
    ("kind", "weights", "layers"), [("masked", "all", 2), ("causal", "all", 2), ("encoder", "top-biases", 1)]
)
def test_lora_trains_adapters_beside_query_and_value(kind: str, weights: str, layers: int) -> None:
    model = tiny(kind)
    c = Configuration(method="lora", weights=weights, lora_rank=3)
    assert first_order.add_lora(model.module, c) == layers * 2 * 3 * (16 + 16)
    names = {name for name, p in model.module.named_parameters() if p.requires_grad}
    assert names
    assert all("lora_" in name for name in names)


@pytest.mark.parametrize("subset", SUBSETS[:-1])
def test_subsets(subset: str) -> None:
    model = tiny("masked")
    count = train(model.module, subset)
    trained = {name for name, p in model.module.named_parameters() if p.requires_grad}
    assert count == sum(p.numel() for p in model.module.parameters() if p.requires_grad)
    assert ("roberta.embeddings.word_embeddings.weight" in trained) == (subset == "all")
    assert ("roberta.encoder.layer.0.output.dense.weight" in trained) == (subset in ("all", "body"))
    assert ("roberta.encoder.layer.0.output.dense.bias" in trained) == (not subset.startswith("top"))
    assert ("roberta.encoder.layer.1.output.LayerNorm.weight" in trained) == (subset != "head")


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("masked", "top-biases"),
        ("masked", "top-norm"),
        ("encoder", "top-biases"),
        ("encoder", "top-norm"),
        ("encoder", "head"),
    ],
)
def test_remembered_layers_give_the_same_losses_and_gradients(kind: str, weights: str) -> None:
    prompter, examples = batch("sst2", kind)
    module = ready(prompter)
    train(module, weights)
    scores = scorer(prompter, tiny(kind).pad)
    parameters = [p for p in module.parameters() if p.requires_grad]
    expected = scores.losses(module, examples)
    gradients = torch.autograd.grad(expected.sum(), parameters)
    assert memoise(module, tiny(kind).pad, {})
    for _ in range(2):
        losses = scores.losses(module, examples)
        assert torch.allclose(losses, expected, atol=1e-6)
        for one, other in zip(torch.autograd.grad(losses.sum(), parameters), gradients, strict=True):
            assert torch.allclose(one, other, atol=1e-5)


def test_only_what_is_frozen_is_remembered() -> None:
    model = tiny("encoder")
    train(model.module, "biases")
    assert not memoise(model.module, model.pad, {})
    assert not memoise(tiny("causal").module, 0, {})


def test_a_sentence_classifier_always_trains_its_label_vectors() -> None:
    module = ready(batch("sst5", "encoder")[0])
    assert isinstance(module, SentenceClassifier)
    assert train(module, "head") == 5 * 16
    assert train(module, "top-norm") == 5 * 16 + 2 * 16
    assert module.head.weight.requires_grad
    with pytest.raises(ValueError, match="weights must leave something"):
        train(tiny("masked").module, "head")
