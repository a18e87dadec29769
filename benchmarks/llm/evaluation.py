"""The metric and the mean loss of a model on records that are not trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.llm.generation import generate, token_f1
from benchmarks.llm.prompts import Example
from benchmarks.llm.records import Record
from benchmarks.llm.scoring import Scorer


@dataclass(frozen=True)
class Evaluation:
    """How well a model does on some records.

    metric: accuracy or mean token F1, in [0, 1]. loss: the mean over records. Both are None where there are no
    records.
    """

    metric: float | None
    loss: float | None


def evaluate(
    module: nn.Module, tokenizer: Any, scorer: Scorer, records: Sequence[Record], examples: Sequence[Example]
) -> Evaluation:
    """Return the metric and the mean loss of the module on the records: the accuracy, or, where answers are free text,
    the mean token F1 of greedy answers, which the tokenizer turns into text.

    scorer: gives scores and losses of `examples`, which are the prompts of `records` in the same order.
    """
    if not records:
        return Evaluation(None, None)
    with torch.no_grad():
        if records[0].answers:
            loss = scorer.losses(module, examples).mean().item()
            answers = generate(module, tokenizer, examples, scorer.rows)
            found = [token_f1(answer, record.answers) for answer, record in zip(answers, records, strict=True)]
            return Evaluation(sum(found) / len(found), loss)
        scores = scorer.scores(module, examples)
        labels = torch.tensor([record.label for record in records], device=scores.device)
        right = (scores.argmax(dim=1) == labels).double().mean().item()
        return Evaluation(right, cross_entropy(scores, labels).item())
