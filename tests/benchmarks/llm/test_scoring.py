"""Prompts against golden encodings; losses, steps of DP-AdamW and the choice of weights against loops over records."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from benchmarks.llm import first_order, scoring
from benchmarks.llm.configuration import Configuration
from benchmarks.llm.prompts import Example, Prompter
from benchmarks.llm.records import Record
from benchmarks.llm.tasks import KINDS, names, task
from benchmarks.problems.encoder import SUBSETS, SentenceClassifier, train
from tests.benchmarks.llm.tiny import tiny, tokenizer

RECORDS = {
    "sst2": Record({"text": "a fine film ."}, 1),
    "sst5": Record({"text": "a fine film ."}, 3),
    "snli": Record({"premise": "A man plays .", "hypothesis": "The film moves."}, 0),
    "mnli": Record({"premise": "A man plays.", "hypothesis": "The film moves."}, 1),
    "rte": Record({"premise": "A man plays!", "hypothesis": "The film moves."}, 1),
    "trec": Record({"text": "Who is it ?"}, 3),
    "boolq": Record({"passage": "It is so.", "question": "is it so"}, 0),
}
GOLDEN = {
    ("sst2", "masked"): "<s>a fine film . It was<mask>.</s>",
    ("sst5", "masked"): "<s>a fine film . It was<mask>.</s>",
    ("snli", "masked"): "<s>A man plays ?<mask>, the film moves.</s>",
    ("mnli", "masked"): "<s>A man plays?<mask>, the film moves.</s>",
    ("rte", "masked"): "<s>A man plays?<mask>, the film moves.</s>",
    ("trec", "masked"): "<s><mask>: Who is it ?</s>",
    ("sst2", "causal"): "</s>a fine film . It was",
    ("boolq", "causal"): "</s>It is so. Is it so?\n",
    ("sst2", "encoder"): "[CLS] a fine film . [SEP]",
    ("sst5", "encoder"): "[CLS] a fine film . [SEP]",
    ("snli", "encoder"): "[CLS] A man plays ? The film moves . [SEP]",
    ("mnli", "encoder"): "[CLS] A man plays ? The film moves . [SEP]",
    ("rte", "encoder"): "[CLS] A man plays ? The film moves . [SEP]",
    ("trec", "encoder"): "[CLS] Who is it ? [SEP]",
}
PAIRS = [(name, kind) for kind in KINDS for name in names(kind)]


def decoded(kind: str, ids: tuple[int, ...]) -> str:
    return str(tokenizer(kind).decode(list(ids), clean_up_tokenization_spaces=False))


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_golden_encoding(name: str, kind: str) -> None:
    prompter = Prompter(task(name), kind, tokenizer(kind))
    (example,) = prompter.examples([RECORDS[name]])
    if kind == "encoder":
        expected = tokenizer(kind)(GOLDEN[name, kind][6:-6], add_special_tokens=True)["input_ids"]
        assert list(example.ids) == expected
    else:
        assert decoded(kind, example.ids) == GOLDEN[name, kind]
    assert example.label == RECORDS[name].label
    if kind == "masked":
        assert example.ids[example.position] == tokenizer(kind).mask_token_id
        assert example.ids.count(tokenizer(kind).mask_token_id) == 1
    if kind == "causal":
        assert example.position == len(example.ids) - 1
    # truncation never touches the template
    long, short = (Record({key: " ".join([key] * count) for key in RECORDS[name].texts}, 0) for count in (400, 1))
    example, bare = Prompter(task(name), kind, tokenizer(kind), max_length=60).examples([long, short])
    assert len(example.ids) + (kind == "causal") == 60
    fixed = iter(example.ids)
    assert all(token in fixed for token in bare.ids), "the template is a subsequence of the shortened prompt"
    if kind == "masked":
        assert example.ids[example.position] == tokenizer(kind).mask_token_id


def test_the_longest_text_is_shortened_first() -> None:
    prompter = Prompter(task("rte"), "encoder", tokenizer("encoder"), max_length=20)
    record = Record({"premise": "fine " * 100, "hypothesis": "great film"}, 0)
    whole = Record({"premise": "", "hypothesis": "great film"}, 0)
    example, kept = prompter.examples([record, whole])
    assert len(example.ids) == 20
    assert example.ids[-len(kept.ids) + 1 :] == kept.ids[1:]


def test_label_words_must_be_one_token() -> None:
    prompter = Prompter(task("sst2"), "masked", tokenizer("masked"))
    assert [decoded("masked", ids) for ids in prompter.classes()] == [" terrible", " great"]
    unknown = Prompter(task("sst2"), "masked", tokenizer("masked"))
    object.__setattr__(unknown, "prompt", type(unknown.prompt)("{text}<mask>", 128, ("quizzaciously",)))
    with pytest.raises(ValueError, match="one token"):
        unknown.classes()


def test_a_template_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="max_length must leave room beside"):
        Prompter(task("sst2"), "masked", tokenizer("masked"), max_length=5)
    with pytest.raises(ValueError, match="task must be one of sst2, boolq"):
        Prompter(task("trec"), "causal", tokenizer("causal"))
    with pytest.raises(ValueError, match="task must be one of"):
        task("imdb")


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
