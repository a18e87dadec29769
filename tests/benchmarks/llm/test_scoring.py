"""Prompts against golden encodings, and losses against loops over records."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.llm.prompts import Example, Prompter
from benchmarks.llm.records import Record
from benchmarks.llm.scoring import Scorer
from benchmarks.llm.tasks import KINDS, names, task
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
    **dict.fromkeys((("sst2", "encoder"), ("sst5", "encoder")), "[CLS] a fine film . [SEP]"),
    ("trec", "encoder"): "[CLS] W ##h ##o i ##s i ##t ? [SEP]",
    ("sst2", "causal"): "</s>a fine film . It was",
    ("boolq", "causal"): "</s>It is so. Is it so?\n",
}
EVERY = [(name, kind) for kind in KINDS for name in names(kind)]
PAIRS = [pair for pair in EVERY if pair[1] != "encoder"]


def decoded(kind: str, ids: tuple[int, ...]) -> str:
    return str(tokenizer(kind).decode(list(ids), clean_up_tokenization_spaces=False))


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_golden_encoding(name: str, kind: str) -> None:
    prompter = Prompter(task(name), kind, tokenizer(kind))
    (example,) = prompter.examples([RECORDS[name]])
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
    prompter = Prompter(task("rte"), "masked", tokenizer("masked"), max_length=20)
    (example,) = prompter.examples([Record({"premise": "fine " * 100, "hypothesis": "great film"}, 0)])
    assert len(example.ids) == 20
    assert decoded("masked", example.ids).endswith("?<mask>, great film</s>")


def test_label_words_must_be_one_token() -> None:
    prompter = Prompter(task("sst2"), "masked", tokenizer("masked"))
    assert [decoded("masked", (word,)) for word in prompter.words()] == [" terrible", " great"]
    unknown = Prompter(task("sst2"), "masked", tokenizer("masked"))
    object.__setattr__(unknown, "prompt", type(unknown.prompt)("{text}<mask>", 128, ("quizzaciously",)))
    with pytest.raises(ValueError, match="one token"):
        unknown.words()


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


def by_hand(model: Any, prompter: Prompter, example: Example) -> float:
    """One record, no padding, whole logits."""
    logits = model(input_ids=torch.tensor([list(example.ids)])).logits[0]
    scores = logits[example.position][list(prompter.words())]
    return cross_entropy(scores[None], torch.tensor([example.label])).item()


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_losses_equal_a_one_by_one_loop(name: str, kind: str) -> None:
    prompter, examples = batch(name, kind)
    model = tiny(kind).module
    with torch.no_grad():
        expected = [by_hand(model, prompter, example) for example in examples]
        for rows in (1, 3, 16):
            losses = Scorer(prompter.words(), tokenizer(kind).pad_token_id, rows).losses(model, examples)
            assert losses.dtype == torch.float32
            assert losses.tolist() == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 1e-4, "the records must be told apart"


def test_the_padding_token_has_no_effect() -> None:
    prompter, examples = batch("boolq", "causal")
    model = tiny("causal").module
    one, other = (Scorer(prompter.words(), pad, 16).losses(model, examples) for pad in (1, 77))
    assert torch.equal(one, other)


def test_logits_are_computed_at_one_position() -> None:
    prompter, examples = batch("boolq", "causal")
    language_model = tiny("causal")
    seen: list[torch.Size] = []
    head: nn.Module = language_model.module.get_output_embeddings()  # type: ignore[operator]
    head.register_forward_hook(lambda _, args, output: seen.append(output.shape))
    with torch.no_grad():
        Scorer(prompter.words(), 0, 16).scores(language_model.module, examples)
    assert seen == [torch.Size([len(examples), len(tokenizer("causal"))])]
    assert Scorer(prompter.words(), 0, 16).losses(language_model.module, []).shape == (0,)
