import math
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.llm.models import random_model
from benchmarks.pretrain import text
from benchmarks.pretrain.models import FAMILIES, config
from dpzero_theory.optim.losses.task_losses import IGNORED

SENTENCES = ["a fine film that moves", "what is a film ?", "nothing is fine in this long and dull film", "who ?"] * 5


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pairs") / "pairs.json"


@pytest.mark.parametrize("family", FAMILIES)
def test_perplexity_is_that_of_each_sentence_alone(place: Path, family: str) -> None:
    """The perplexity of a batch is that of its sentences, each evaluated alone.

    Each sentence has one forward pass without padding, and the mean is over the tokens that are predicted, in float64.
    """
    words = text.tokenizer(family, place, SENTENCES)
    module = random_model(config(family, 16), FAMILIES[family], seed=0)
    given = text.examples(SENTENCES[:4], words, family)
    found = text.perplexity(module, text.SentenceScorer(words.pad_token_id, 3), given)
    lost: list[float] = []
    for example in given:
        with torch.no_grad():
            logits = module(input_ids=torch.tensor([example.ids])).logits[0].double()
        pairs = (
            [(logits[i - 1], token) for i, token in enumerate(example.target) if i]
            if family == "opt"
            else [(logits[i], token) for i, token in enumerate(example.target) if token != IGNORED]
        )
        lost += [float(cross_entropy(row, torch.tensor(token))) for row, token in pairs]
    assert found == pytest.approx(math.exp(sum(lost) / len(lost)), rel=1e-4)
    # A model with random weights gives every token about the same probability.
    assert found == pytest.approx(text.VOCABULARY, rel=0.1)


@pytest.mark.parametrize("factor", [1e5, math.nan])
def test_perplexity_of_weights_that_diverged_is_the_largest_number(place: Path, factor: float) -> None:
    words = text.tokenizer("opt", place, SENTENCES)
    module = random_model(config("opt", 16), FAMILIES["opt"], seed=0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(factor)
    given = text.examples(SENTENCES[:4], words, "opt")
    assert text.perplexity(module, text.SentenceScorer(words.pad_token_id, 3), given) == sys.float_info.max


def test_a_masked_sentence_is_one_function_of_itself(place: Path) -> None:
    words = text.tokenizer("roberta", place, SENTENCES)
    alone, *_ = text.examples(SENTENCES[2:3], words, "roberta")
    among = text.examples(SENTENCES[:4], words, "roberta")[2]
    assert alone == among
    plain = words(SENTENCES[2])["input_ids"]
    hidden = [i for i, token in enumerate(alone.target) if token != IGNORED]
    assert len(hidden) == round(text.MASKED * (len(plain) - 2))
    assert all(alone.ids[i] == words.mask_token_id and alone.target[i] == plain[i] for i in hidden)
    assert all(alone.ids[i] == plain[i] for i in range(len(plain)) if i not in hidden)
    assert all(0 < i < len(plain) - 1 for i in hidden)


def test_the_families_share_their_byte_pairs(place: Path) -> None:
    causal, masked = (text.tokenizer(family, place, ["never read"]) for family in ("opt", "roberta"))
    inner = causal("a fine film", add_special_tokens=False)["input_ids"]
    assert masked("a fine film")["input_ids"] == [0, *inner, 2]
    assert causal("a fine film")["input_ids"] == [2, *inner]
    assert causal.decode(inner) == "a fine film"
