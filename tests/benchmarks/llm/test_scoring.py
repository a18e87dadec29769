"""Per-record losses equal a one-by-one loop with whole logits, whatever the batch and its padding."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from benchmarks.llm import scoring
from benchmarks.llm.evaluation import generate, token_f1
from benchmarks.llm.prompts import Example, Prompter
from benchmarks.llm.tasks import names, task
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
    made = [
        type(given)(dict.fromkeys(given.texts, text), i % max(len(task(name).values), 1), given.answers)
        for i, text in enumerate(texts)
    ]
    return prompter, prompter.examples(made)


def ready(prompter: Prompter, seed: int = 0) -> Any:
    """The tiny model that the prompter's scorer takes."""
    model = tiny(prompter.kind, seed)
    return scoring.classifier(model.module, prompter, model.pad) if prompter.kind == "encoder" else model.module


def by_hand(model: Any, prompter: Prompter, example: Example) -> float:
    """One record, no padding, whole logits, each option by its own forward."""

    def logits(ids: Sequence[int]) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=torch.tensor([list(ids)])).logits[0]
        return found

    def mean_log_probability(continuation: Sequence[int]) -> torch.Tensor:
        ids = [*example.ids, *continuation]
        rows = logits(ids).log_softmax(-1)
        return torch.stack([rows[len(example.ids) + k - 1, token] for k, token in enumerate(continuation)]).mean()

    def embedding(ids: Sequence[int]) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=torch.tensor([list(ids)])).last_hidden_state[0].mean(0)
        return found

    classes = prompter.classes()
    if prompter.kind == "encoder":
        own = embedding(example.ids)
        scores = 20 * torch.stack([cosine_similarity(own, embedding(ids), dim=0) for ids in classes])
    elif prompter.kind == "masked":
        scores = logits(example.ids)[example.position][[ids[0] for ids in classes]]
    elif not classes:
        return -mean_log_probability(example.target).item()
    else:
        scores = torch.stack([mean_log_probability(ids) for ids in classes])
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


def test_options_of_several_tokens_share_the_scorer_of_their_mean() -> None:
    prompter, examples = batch("sst2", "causal")
    model = tiny("causal").module
    options = [
        tuple(tokenizer("causal")(text)["input_ids"][1:]) for text in (" not so great", " terrible film , it was")
    ]
    assert len(options[0]) != len(options[1])
    prompter.classes = lambda: tuple(options)  # type: ignore[method-assign]
    scorer = scoring.scorer(prompter, 0, rows=5)
    assert isinstance(scorer, scoring.OptionScorer)
    with torch.no_grad():
        assert scorer.losses(model, examples).tolist() == pytest.approx(
            [by_hand(model, prompter, example) for example in examples], abs=2e-6
        )


def test_single_token_options_take_one_forward_and_one_position() -> None:
    prompter, examples = batch("boolq", "causal")
    language_model = tiny("causal")
    seen: list[torch.Size] = []
    head: nn.Module = language_model.module.get_output_embeddings()  # type: ignore[operator]
    head.register_forward_hook(lambda _, args, output: seen.append(output.shape))
    with torch.no_grad():
        scoring.scorer(prompter, 0, rows=16).scores(language_model.module, examples)
    assert seen == [torch.Size([len(examples), 1, len(tokenizer("causal"))])]


@pytest.mark.parametrize(("name", "kind"), [("sst2", "masked"), ("squad", "causal"), ("sst2", "encoder")])
def test_an_empty_batch_has_no_losses(name: str, kind: str) -> None:
    prompter, _ = batch(name, kind)
    model = tiny(kind).module
    assert scoring.scorer(prompter, 0).losses(model, []).shape == (0,)


def test_free_text_has_no_classes() -> None:
    prompter, examples = batch("drop", "causal")
    model = tiny("causal").module
    with pytest.raises(NotImplementedError, match="free text"):
        scoring.scorer(prompter, 0).scores(model, examples)


def test_token_f1() -> None:
    assert token_f1("The cat sat.", ["a cat sat"]) == 1
    assert token_f1("cat", ["the cat sat", "dog"]) == pytest.approx(2 / 3)
    assert token_f1("cat cat", ["cat"]) == pytest.approx(2 / 3)
    assert token_f1("bird", ["cat"]) == 0
    assert token_f1("the", ["a", "cat"]) == 1
    with pytest.raises(ValueError, match="gold must hold"):
        token_f1("x", [])


def test_generation_is_the_greedy_loop_and_stops_at_a_newline() -> None:
    _, examples = batch("squad", "causal")
    language_model = tiny("causal", seed=3)
    model, words = language_model.module, tokenizer("causal")
    newline = words("\n", add_special_tokens=False)["input_ids"][0]
    prompts = examples[:3]
    answers = generate(model, words, prompts, rows=2)
    expected = []
    with torch.no_grad():
        for example in prompts:
            ids = list(example.ids)
            for _ in range(50):
                token = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
                ids.append(token)
                if token in (newline, words.eos_token_id) or "\n" in words.decode([token]):
                    break
            text = words.decode(ids[len(example.ids) :], skip_special_tokens=True)
            expected.append(text.partition("\n")[0].strip())
    assert answers == expected
    bias = torch.zeros(len(words))
    bias[newline] = 100.0
    head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
    head.register_forward_hook(lambda _, args, output: output + bias)
    assert generate(model, words, prompts) == ["", "", ""]


def test_a_tokenizer_without_newlines_generates_to_its_limit() -> None:
    answers = generate(tiny("causal").module, tokenizer("encoder"), [Example((2, 5, 6)), Example((2, 7))])
    assert len(answers) == 2


def test_chance_level_of_a_random_model_is_log_of_the_classes() -> None:
    for name in names("masked"):
        prompter, examples = batch(name, "masked")
        model = tiny("masked").module
        losses = scoring.scorer(prompter, 1).losses(model, examples)
        assert losses.mean().item() == pytest.approx(math.log(len(task(name).values)), abs=0.3)
