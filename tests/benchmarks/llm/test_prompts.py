"""Golden encodings of every template, and truncation that keeps template and mask whole."""

import pytest

from benchmarks.llm.prompts import Prompter
from benchmarks.llm.records import Record
from benchmarks.llm.tasks import KINDS, names, task
from tests.benchmarks.llm.tiny import tokenizer

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
