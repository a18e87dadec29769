"""The metric and the mean loss of a model on other records: accuracy, or token F1 of greedy answers."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.llm.prompts import Example
from benchmarks.llm.records import Record
from benchmarks.llm.scoring import Scorer

MAX_NEW_TOKENS = 50
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


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


def generate(model: Any, tokenizer: Any, batch: Sequence[Example], rows: int = 16) -> list[str]:
    """Return the greedy continuation of each prompt as text, of at most MAX_NEW_TOKENS tokens. It ends before the first
    newline or the model's end token, and has no white space at its ends. rows: how many prompts go through the model at
    a time."""
    answers: list[str] = []
    pad = tokenizer.pad_token_id or 0
    # WordPiece does not tell a newline from a space
    newlines = "\n" in tokenizer.decode(tokenizer.encode("\n", add_special_tokens=False))
    stops = {"stop_strings": ["\n"], "tokenizer": tokenizer} if newlines else {}
    for start in range(0, len(batch), rows):
        chunk = batch[start : start + rows]
        width = max(len(example.ids) for example in chunk)
        padding = [width - len(example.ids) for example in chunk]
        ids = [[*[pad] * gap, *example.ids] for gap, example in zip(padding, chunk, strict=True)]
        mask = [[0] * gap + [1] * (width - gap) for gap in padding]
        with torch.no_grad():
            output = model.generate(
                input_ids=torch.tensor(ids, device=model.device),
                attention_mask=torch.tensor(mask, device=model.device),
                do_sample=False,
                max_new_tokens=MAX_NEW_TOKENS,
                use_cache=True,
                eos_token_id=model.generation_config.eos_token_id,
                pad_token_id=pad,
                **stops,
            )
        texts = tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)
        answers += [text.partition("\n")[0].strip() for text in texts]
    return answers


def token_f1(answer: str, gold: Sequence[str]) -> float:
    """Return the harmonic mean of the precision and recall of an answer's tokens, compared with the gold answer for
    which it is largest, in [0, 1].

    Tokens are words in lower case, without punctuation and articles (Rajpurkar et al. 2016). Two answers without any
    token agree. Raises ValueError if `gold` is empty.
    """
    if not gold:
        raise ValueError("gold must hold an answer; got none")
    return max(_f1(_tokens(answer), _tokens(text)) for text in gold)


def _f1(ours: list[str], theirs: list[str]) -> float:
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def _tokens(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()
