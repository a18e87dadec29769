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
        ("sst2", "masked", "biases"),
        ("boolq", "causal", "body"),
        ("squad", "causal", "body"),
        ("sst2", "encoder", "all"),
    ],
)
def test_a_private_step_is_the_mean_of_clipped_gradients(name: str, kind: str, weights: str) -> None:
    """Without noise worth the name AdamW sees the sum of clipped gradients over the expected batch, here in one step of
    all records, and in a step of none it sees zeros."""
    prompter, examples = batch(name, kind)
    scores, n = scorer(prompter, tiny(kind).pad), len(examples)
    ends = []
    for by_hand in (False, True):
        module = ready(prompter)
        train(module, weights)
        parameters = [p for p in module.parameters() if p.requires_grad]
        c = Configuration(method="dp-adamw", sampling="full", batch=n, steps=1, clip=0.01, step_size=1e-2)
        if not by_hand:
            first_order.train_private_first_order(module, scores, examples, c, 1e-12, lambda step: None)
        else:
            optimizer = torch.optim.AdamW(parameters, lr=1e-2)
            rows = [torch.autograd.grad(scores.losses(module, [example])[0], parameters) for example in examples]
            flat = torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows])
            flat *= (0.01 / flat.norm(dim=1, keepdim=True)).clamp(max=1.0)
            for p, g in zip(parameters, flat.mean(0).split([p.numel() for p in parameters]), strict=True):
                p.grad = g.view_as(p)
            optimizer.step()
        ends.append([p.grad for p in parameters])
    for found, expected in zip(*ends, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-4)


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
