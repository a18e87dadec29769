"""Public sentences without their labels, byte pairs learned from them, and sentences as token ids.

The models of this package read reviews (SST-2's phrases, SST-5's sentences) and news (RTE). Questions (TREC) are a
domain that they have never seen.
"""

import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from benchmarks.kit.rows import write_atomically
from benchmarks.llm.prompts import Example
from benchmarks.llm.records import load
from benchmarks.llm.scoring import by_length
from benchmarks.llm.tasks import task
from dpzero_theory.optim.losses.task_losses import IGNORED, losses_for

VOCABULARY = 2000
LONGEST = 64
MASKED = 0.15
READ = ("sst2", "sst5", "rte")
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
DEV = 500


def sentences(data: Path | None) -> list[str]:
    """Return the sentences for pretraining, the training splits of the data sets in `READ`, each sentence once, in a
    fixed order. data: a folder of local files, or None for Hugging Face. Raises what `records.load` raises."""
    return list(dict.fromkeys(text for name in READ for text in _texts(name, "train", data)))


def reviews(data: Path | None) -> list[str]:
    """Return the sentences of SST-2's test set, which no model is pretrained on, although they are reviews as most of
    the sentences for pretraining are. data: a folder of local files, or None for Hugging Face."""
    return _texts("sst2", "test", data)


def questions(data: Path | None) -> tuple[list[str], list[str], list[str]]:
    """Return TREC's questions in three parts: to train on, to choose settings by, and to test on. data: a folder of
    local files, or None for Hugging Face."""
    train = _texts("trec", "train", data)
    order = np.random.default_rng(0).permutation(len(train))
    dev = set(order[:DEV].tolist())
    kept = [text for index, text in enumerate(train) if index not in dev]
    return kept, [train[index] for index in sorted(dev)], _texts("trec", "test", data)


def _texts(name: str, split: str, data: Path | None) -> list[str]:
    return [text for record in load(task(name), split, data) for text in record.texts.values()]


def tokenizer(family: str, place: Path, learned_from: Sequence[str]) -> Any:
    """Return the family's tokenizer ("opt" or "roberta") with the byte pairs in the file `place`. If the file does not
    exist, the pairs are first learned from the sentences in `learned_from` and written to it.

    Learning them again may give other byte pairs where pairs are equally frequent, so models that are compared share
    the file.
    """
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, _learned(learned_from).to_str().encode())
    pairs = Tokenizer.from_file(str(place))
    start, end = ("</s>", "") if family == "opt" else ("<s>", "</s>")
    pairs.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}".strip(),
        special_tokens=[(token, pairs.token_to_id(token)) for token in {start, "</s>"}],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pairs, bos_token=start, eos_token="</s>", unk_token="<unk>", pad_token="<pad>",
        mask_token="<mask>",
    )  # fmt: skip


def _learned(texts: Sequence[str]) -> Tokenizer:
    pairs = Tokenizer(models.BPE(unk_token="<unk>"))
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    pairs.train_from_iterator(texts, trainer)
    return pairs


def examples(texts: Sequence[str], words: Any, family: str, longest: int = LONGEST) -> list[Example]:
    """Return sentences of at most `longest` tokens. Their `target` is what is to be predicted at each position, -100
    for nothing.

    words: the tokenizer. family: "opt" or "roberta", the family of the model. For a masked model a share of a
    sentence's positions is masked. They are drawn from the sentence's own text, so that a record's masks are the same
    at every step.
    """
    found = words([text.strip() for text in texts], truncation=True, max_length=longest)["input_ids"]
    return [
        _masked(ids, text, words.mask_token_id) if family == "roberta" else Example(tuple(ids), target=tuple(ids))
        for ids, text in zip(found, texts, strict=True)
    ]


def _masked(ids: Sequence[int], text: str, mask: int) -> Example:
    inner = len(ids) - 2
    drawn = np.random.default_rng(list(text.encode())).permutation(inner)[: max(1, round(MASKED * inner))] + 1
    hidden = {int(place) for place in drawn}
    return Example(
        tuple(mask if place in hidden else token for place, token in enumerate(ids)),
        target=tuple(token if place in hidden else IGNORED for place, token in enumerate(ids)),
    )


class SentenceScorer:
    """Each sentence's mean cross-entropy over the positions that are predicted (`optim.losses.task_losses`).

    pad: the id that pads. rows: sentences in one forward pass.
    """

    def __init__(self, pad: int, rows: int) -> None:
        self.pad, self.rows = pad, rows

    def losses(self, model: nn.Module, batch: Sequence[Example]) -> Tensor:
        return by_length(batch, self.rows, partial(self._losses, model)) if batch else torch.zeros(0)

    def scores(self, model: nn.Module, batch: Sequence[Example]) -> Tensor:
        raise NotImplementedError("sentences have no classes")

    def _losses(self, model: nn.Module, chunk: Sequence[Example]) -> Tensor:
        found: Tensor = losses_for(model)(model, padded(chunk, self.pad))  # type: ignore[assignment]
        return found


def padded(chunk: Sequence[Example], pad: int) -> dict[str, Tensor]:
    """Return the token ids, attention mask and labels of the examples, each of shape (examples, longest), padded on the
    right: ids with `pad`, labels with the label that losses ignore. The names are those of transformers' collators."""
    width = max(len(example.ids) for example in chunk)

    def filled(rows: Sequence[Sequence[int]], value: int) -> Tensor:
        return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])

    ids = [example.ids for example in chunk]
    return {
        "input_ids": filled(ids, pad),
        "attention_mask": filled([[1] * len(row) for row in ids], 0),
        "labels": filled([example.target for example in chunk], IGNORED),
    }


def perplexity(model: nn.Module, scorer: SentenceScorer, given: Sequence[Example]) -> float:
    """Return the exponential of the mean cross-entropy of the model over all positions of the sentences `given` that
    are predicted, which the first of a sentence never is. Every position has the same weight, whatever its sentence's
    length.

    For weights that have diverged, so that the losses are too large or not numbers, it is the largest float64.
    """
    with torch.no_grad():
        losses = scorer.losses(model, given).double()
    places = torch.tensor([sum(token != IGNORED for token in example.target[1:]) for example in given])
    found = float(((losses * places).sum() / places.sum()).exp())
    return found if math.isfinite(found) else sys.float_info.max
