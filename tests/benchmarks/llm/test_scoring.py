"""Losses, steps of DP-AdamW and the choice of weights, each against a loop over records by plain autograd."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from benchmarks.llm import first_order, scoring
from benchmarks.llm.configuration import Configuration
from benchmarks.llm.prompts import Example, Prompter
from benchmarks.llm.tasks import task
from benchmarks.problems.encoder import SUBSETS, SentenceClassifier, train
from tests.benchmarks.llm.test_prompts import PAIRS, RECORDS
from tests.benchmarks.llm.tiny import tiny, tokenizer

LENGTHS = (3, 40, 1, 17, 8, 25, 2)


def batch(name: str, kind: str) -> tuple[Prompter, tuple[Example, ...]]:
    """Records of different lengths and classes; tokens that tell positions apart."""
    prompter = Prompter(task(name), kind, tokenizer(kind), max_length=100)
    texts = [
        "".join(f" {['fine', 'moving', 'film', 'man'][(i * k) % 4]}" for k in range(n)) for i, n in enumerate(LENGTHS)
    ]
    given = RECORDS[name]
    made = [type(given)(dict.fromkeys(given.texts, text), i % len(task(name).values)) for i, text in enumerate(texts)]
    return prompter, prompter.examples(made)


def ready(prompter: Prompter, seed: int = 0) -> Any:
    """The tiny model that the prompter's scorer takes."""
    model = tiny(prompter.kind, seed)
    return scoring.classifier(model.module, prompter, model.pad) if prompter.kind == "encoder" else model.module


def by_hand(model: Any, prompter: Prompter, example: Example) -> float:
    """One record, no padding, whole logits."""

    def logits(ids: Sequence[int]) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=torch.tensor([list(ids)])).logits[0]
        return found

    def embedding(ids: Sequence[int]) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=torch.tensor([list(ids)])).last_hidden_state[0].mean(0)
        return found

    classes = prompter.classes()
    if prompter.kind == "encoder":
        own = embedding(example.ids)
        scores = 20 * torch.stack([cosine_similarity(own, embedding(ids), dim=0) for ids in classes])
    else:
        scores = logits(example.ids)[example.position][[ids[0] for ids in classes]]
    return cross_entropy(scores[None], torch.tensor([example.label])).item()


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_losses_equal_a_one_by_one_loop(name: str, kind: str) -> None:
    prompter, examples = batch(name, kind)
    model, plain = ready(prompter), tiny(kind).module
    with torch.no_grad():
        for rows in (1, 3, 16):
            scorer = scoring.scorer(prompter, tokenizer(kind).pad_token_id, rows)
            losses = scorer.losses(model, examples)
            expected = [by_hand(plain, prompter, example) for example in examples]
            assert losses.dtype == torch.float32
            assert losses.tolist() == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 1e-4, "the records must be told apart"


def test_the_padding_token_has_no_effect() -> None:
    prompter, examples = batch("boolq", "causal")
    model = tiny("causal").module
    one, other = (scoring.scorer(prompter, pad).losses(model, examples) for pad in (1, 77))
    assert torch.equal(one, other)


def test_logits_are_computed_at_one_position() -> None:
    prompter, examples = batch("boolq", "causal")
    language_model = tiny("causal")
    seen: list[torch.Size] = []
    head: nn.Module = language_model.module.get_output_embeddings()  # type: ignore[operator]
    head.register_forward_hook(lambda _, args, output: seen.append(output.shape))
    with torch.no_grad():
        scoring.scorer(prompter, 0, rows=16).scores(language_model.module, examples)
    assert seen == [torch.Size([len(examples), len(tokenizer("causal"))])]
    assert scoring.scorer(prompter, 0).losses(language_model.module, []).shape == (0,)


@pytest.mark.parametrize(
    ("name", "kind", "weights"),
    [
        ("sst2", "masked", "biases"),
        ("boolq", "causal", "body"),
        ("sst2", "encoder", "all"),
    ],
)
def test_a_private_step_is_the_mean_of_clipped_gradients(name: str, kind: str, weights: str) -> None:
    """Without noise worth the name AdamW sees the sum of clipped gradients over the expected batch, here in one step of
    all records, and in a step of none it sees zeros."""
    prompter, examples = batch(name, kind)
    scores, n = scoring.scorer(prompter, tiny(kind).pad), len(examples)
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


def test_a_sentence_classifier_always_trains_its_label_vectors() -> None:
    module = ready(batch("sst5", "encoder")[0])
    assert isinstance(module, SentenceClassifier)
    assert train(module, "head") == 5 * 16
    assert train(module, "top-norm") == 5 * 16 + 2 * 16
    assert module.head.weight.requires_grad
    with pytest.raises(ValueError, match="weights must leave something"):
        train(tiny("masked").module, "head")
