import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.llm.models import random_model
from benchmarks.pretrain import __main__ as command
from benchmarks.pretrain import text
from benchmarks.pretrain.models import FAMILIES, config, folder_of

SENTENCES = ["a fine film that moves", "what is a film ?", "nothing is fine in this long and dull film", "who ?"] * 40


class Interrupted(Exception):
    pass


def stop(step: int) -> None:
    raise Interrupted


@pytest.mark.parametrize("family", FAMILIES)
def test_pretraining_learns_and_goes_on_as_if_it_had_not_been_interrupted(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "ROWS", 2)
    words = text.tokenizer(family, tmp_path / "pairs.json", SENTENCES)
    mask = words.mask_token_id if family == "roberta" else -1
    work = command.Reading(command.stream(SENTENCES, words), mask, steps=20)

    def trained(place: Path, say: Any) -> torch.nn.Module:
        module = random_model(config(family, 16), FAMILIES[family], seed=0)
        command.train(module, work, 16, place, say)
        return module

    whole = trained(tmp_path / "whole.pt", lambda step: None)
    monkeypatch.setattr(command, "SAVED_EVERY", 0.0)
    for _ in range(3):  # Each call continues where the one before was interrupted, and makes one step
        with pytest.raises(Interrupted):
            trained(tmp_path / "cut.pt", stop)
    cut = trained(tmp_path / "cut.pt", lambda step: None)
    for one, other in zip(whole.parameters(), cut.parameters(), strict=True):
        assert torch.equal(one, other)
    given = text.examples(SENTENCES[:4], words, family)
    scorer = text.SentenceScorer(words.pad_token_id, 4)
    assert text.perplexity(whole, scorer, given) < text.VOCABULARY / 4


def test_a_block_is_predicted_where_it_is_masked(tmp_path: Path) -> None:
    words = text.tokenizer("roberta", tmp_path / "pairs.json", SENTENCES)
    work = command.Reading(command.stream(SENTENCES, words), words.mask_token_id, steps=1)
    batch, again, other = (command._batch(work, step) for step in (3, 3, 4))
    assert torch.equal(batch["input_ids"], again["input_ids"])
    assert not torch.equal(batch["input_ids"], other["input_ids"])
    hidden = batch["labels"] != -100
    assert torch.equal(hidden, batch["input_ids"] == words.mask_token_id)
    assert 0.1 < hidden.double().mean() < 0.2


def test_step_sizes_rise_and_fall_to_zero() -> None:
    shares = [command._share(step, 100) for step in range(101)]
    assert shares[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert shares[100] == 0.0
    assert all(later < earlier for earlier, later in itertools.pairwise(shares[5:]))


def test_a_model_that_was_not_made_is_named(tmp_path: Path) -> None:
    from benchmarks.pretrain.models import pretrained

    assert folder_of(tmp_path, "opt", 64).name == "opt-64"
    with pytest.raises(ValueError, match=r"python -m benchmarks\.pretrain --family opt --width 64"):
        pretrained(tmp_path, "opt", 64)
    with pytest.raises(ValueError, match="width must be a multiple of 16; got 40"):
        config("opt", 40)
