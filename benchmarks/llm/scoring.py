"""Scores and losses of each record, for the three kinds of model.

Logits are computed only where something is predicted: a hook keeps those positions of the hidden states that enter the
output layer. Records are put through the model in the order of their lengths, `rows` at a time, so that there is little
padding. A record's loss does not depend on the other records in its batch, up to rounding.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import torch
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax

from benchmarks.llm.prompts import Example, Prompter
from benchmarks.problems.encoder import SentenceClassifier, embed
from dpzero_theory import check

Tensor = torch.Tensor
Batch = Sequence[Example]


class Scorer(Protocol):
    """Scores and losses of one task for one kind of model; `rows` as in the module's docstring."""

    rows: int

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of each record, float32, shape (batch,)."""

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the scores of the classes, shape (batch, classes); the largest is the prediction. Raises
        NotImplementedError for free text."""


def scorer(prompter: Prompter, pad: int, rows: int = 16) -> Scorer:
    """Return the scorer for the prompter's task and kind of model. pad: the id that pads, whose value has no effect.
    rows: how many records go through the model at a time, an integer >= 1, else ValueError is raised."""
    rows = check.integer("rows", rows)
    classes = prompter.classes()
    if prompter.kind == "encoder":
        return EncoderScorer(pad, rows)
    if not classes:
        return AnswerScorer(pad, rows)
    if all(len(ids) == 1 for ids in classes):
        return WordScorer([ids[0] for ids in classes], pad, rows)
    return OptionScorer(classes, pad, rows)


class _Classifier:
    """A scorer of records that have classes: the loss is the cross-entropy over the scores of the classes."""

    def __init__(self, pad: int, rows: int) -> None:
        self.pad = pad
        self.rows = rows

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        return by_length(batch, self.rows, lambda chunk: self._scores(model, chunk))

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        if not batch:
            return torch.zeros(0)
        scores = self.scores(model, batch)
        labels = torch.tensor([example.label for example in batch], device=scores.device)
        return cross_entropy(scores, labels, reduction="none")

    def _scores(self, model: nn.Module, batch: Batch) -> Tensor:
        raise NotImplementedError


class WordScorer(_Classifier):
    """A scorer of classes that are one token each, at a mask or after a prompt: one forward pass serves all classes."""

    def __init__(self, words: Sequence[int], pad: int, rows: int) -> None:
        super().__init__(pad, rows)
        self.words = list(words)

    def _scores(self, model: nn.Module, batch: Batch) -> Tensor:
        positions = [[example.position] for example in batch]
        return _logits(model, [example.ids for example in batch], positions, self.pad)[:, 0, self.words]


class OptionScorer(_Classifier):
    """A scorer of classes of any length: a class's score is the mean log-probability of its tokens after the prompt."""

    def __init__(self, classes: Sequence[tuple[int, ...]], pad: int, rows: int) -> None:
        super().__init__(pad, max(1, rows // len(classes)))
        self.classes = tuple(classes)

    def _scores(self, model: nn.Module, batch: Batch) -> Tensor:
        pairs = [(example.ids, option) for example in batch for option in self.classes]
        return _mean_log_probabilities(model, pairs, self.pad).reshape(len(batch), len(self.classes))


class AnswerScorer:
    """A scorer of free text: the loss is minus the mean log-probability of the tokens of the first gold answer."""

    def __init__(self, pad: int, rows: int) -> None:
        self.pad = pad
        self.rows = rows

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        raise NotImplementedError("free text has no classes")

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        def chunk_losses(chunk: Batch) -> Tensor:
            return -_mean_log_probabilities(model, [(example.ids, example.target) for example in chunk], self.pad)

        return by_length(batch, self.rows, chunk_losses) if batch else torch.zeros(0)


class EncoderScorer(_Classifier):
    """A scorer for sentence encoders: the scores of the classes are what a `SentenceClassifier` puts out, which the
    function `classifier` makes."""

    def _scores(self, model: nn.Module, batch: Batch) -> Tensor:
        scores: Tensor = model(**_inputs(model, [example.ids for example in batch], self.pad))
        return scores


def classifier(encoder: nn.Module, prompter: Prompter, pad: int) -> SentenceClassifier:
    """Return the encoder as a classifier whose label vectors are the embeddings of the label sentences, so that its
    first scores are the zero-shot ones. prompter: has the label sentences. pad: the id that pads."""
    with torch.no_grad():
        return SentenceClassifier(encoder, embed(encoder, **_inputs(encoder, prompter.classes(), pad)))


def by_length(batch: Batch, rows: int, function: Callable[[Batch], Tensor]) -> Tensor:
    if len(batch) <= rows:
        return function(batch)
    order = sorted(range(len(batch)), key=lambda index: len(batch[index].ids) + len(batch[index].target))
    parts = [function([batch[i] for i in order[k : k + rows]]) for k in range(0, len(order), rows)]
    back = torch.tensor(order, device=parts[0].device).argsort()
    return torch.cat(parts)[back]


def _inputs(model: nn.Module, rows: Sequence[tuple[int, ...]], pad: int) -> dict[str, Tensor]:
    """Return a model's keyword arguments for rows of token ids: input_ids and attention_mask, each of
    shape (rows, longest row). Ids are padded on the right with the id `pad`, so that padding comes after
    everything that a causal model attends to."""
    ids, mask = _padded(tuple(rows), pad, next(model.parameters()).device)
    return {"input_ids": ids, "attention_mask": mask}


@lru_cache(maxsize=64)
def _padded(rows: tuple[tuple[int, ...], ...], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two tensors of shape (rows, longest) on the device: the token ids of the rows, padded on the right with
    `pad`, and their attention mask. The last 64 results are kept, because a step asks for the same rows at every
    evaluation."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
    return ids, mask


def _logits(model: nn.Module, rows: Sequence[tuple[int, ...]], positions: Sequence[Sequence[int]], pad: int) -> Tensor:
    """Return the logits that a model gives for rows of token ids, at some of their tokens, in float32, shape (rows,
    positions, vocabulary). positions: for each row, the places of these tokens, as many in each row. pad: the id that
    pads."""
    inputs = _inputs(model, rows, pad)
    kept = torch.tensor(positions, device=inputs["input_ids"].device)
    index = torch.arange(len(rows), device=kept.device)[:, None]
    head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
    hook = head.register_forward_pre_hook(lambda _, args: (args[0][index, kept],))
    try:
        logits: Tensor = model(**inputs).logits
        return logits.float()
    finally:
        hook.remove()


def _mean_log_probabilities(
    model: nn.Module, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], pad: int
) -> Tensor:
    """Return, for each pair (prompt, continuation) of token ids, the mean over the continuation's tokens of the
    log-probability that the model gives the token after all before it, shape (pairs,). pad: the id that pads."""
    width = max(len(continuation) for _, continuation in pairs)
    positions = [
        [len(prompt) - 1 + min(k, len(continuation) - 1) for k in range(width)] for prompt, continuation in pairs
    ]
    logits = _logits(model, [(*prompt, *continuation) for prompt, continuation in pairs], positions, pad)
    padded = [[*continuation, *[0] * (width - len(continuation))] for _, continuation in pairs]
    targets = torch.tensor(padded, device=logits.device)
    lengths = torch.tensor([len(continuation) for _, continuation in pairs], device=logits.device)
    chosen = log_softmax(logits, dim=-1).gather(-1, targets[..., None])[..., 0]
    real = torch.arange(width, device=logits.device) < lengths[:, None]
    return torch.where(real, chosen, 0.0).sum(dim=1) / lengths
