"""A small sentence encoder, taught by the large one on public sentences: reviews and news, and no questions.

It has one BERT layer of width 64 and the large encoder's vocabulary. Its word vectors begin as the first 64 principal
components of the large encoder's. Then AdamW trains all weights until the inner products of 256 sentences' embeddings
agree, in mean square, with those of the large encoder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig

from benchmarks.llm.models import MINILM, LanguageModel, load, random_model
from benchmarks.pretrain import text
from benchmarks.problems.encoder import embed
from benchmarks.training.embeddings import kept, sentence_embeddings

WIDTH, HEADS, LONGEST = 64, 4, 32
SENTENCES, STEPS, ROWS, STEP_SIZE = 8000, 400, 256, 3e-3


def distilled(folder: Path | None) -> LanguageModel:
    """Return the small encoder. It is trained at the first call (in two minutes) and kept in a file. folder has the
    sentences, in the files that `records.load` reads, whose errors are raised here, too."""
    found = text.sentences(folder)
    read = [found[index] for index in np.random.default_rng(0).permutation(len(found))[:SENTENCES].tolist()]
    model = begun()
    model.module.load_state_dict(kept(taught, read))
    return model


def taught(texts: Sequence[str]) -> dict[str, Tensor]:
    """Return the weights, by name, of the small encoder after `STEPS` steps of training it on the sentences `texts` to
    agree with the large encoder, which is what `distance` measures."""
    model, target = begun(), sentence_embeddings(texts)
    ids = [torch.tensor(row) for row in _ids(model, texts)]
    optimizer = torch.optim.AdamW(model.module.parameters())
    source = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = STEP_SIZE * min(8 * (step + 1), STEPS - step) / STEPS
        rows = torch.randint(len(texts), (ROWS,), generator=source)
        optimizer.zero_grad()
        torch.autograd.backward(distance(model, [ids[row] for row in rows], target[rows]))
        optimizer.step()
    return model.module.state_dict()


def distance(model: LanguageModel, ids: Sequence[Tensor], target: Tensor) -> Tensor:
    """Return the mean squared difference between the inner products of all pairs of the sentences' embeddings by
    `model` and by the large encoder. ids: the token ids of each sentence. target: the embeddings of the same sentences
    by the large encoder, shape (sentences, its width)."""
    padded = pad_sequence(list(ids), batch_first=True, padding_value=model.pad)
    found = embed(model.module, input_ids=padded, attention_mask=(padded != model.pad).long())
    return (found @ found.T - target @ target.T).square().mean()


def begun() -> LanguageModel:
    """Return the small encoder before training."""
    large = load(MINILM)
    vectors: Tensor = large.module.get_input_embeddings().weight.detach()  # type: ignore[operator]
    module: Any = random_model(
        BertConfig(
            vocab_size=len(vectors), hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS,
            intermediate_size=4 * WIDTH, max_position_embeddings=2 * LONGEST, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        "encoder",
        seed=0,
    )  # fmt: skip
    centred = vectors - vectors.mean(dim=0)
    _, axes = torch.linalg.eigh(centred.T @ centred)
    begin = centred @ axes[:, -WIDTH:]
    nn.Module.get_parameter(module, "embeddings.word_embeddings.weight").data.copy_(begin / (2 * begin.std()))
    return LanguageModel(module, large.tokenizer, "encoder")


def _ids(model: LanguageModel, texts: Sequence[str]) -> list[list[int]]:
    found: list[list[int]] = model.tokenizer(
        [sentence.strip() for sentence in texts], truncation=True, max_length=LONGEST
    )["input_ids"]
    return found
