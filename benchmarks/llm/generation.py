"""Greedy answers, and the exact match and token F1 of SQuAD."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.llm.prompts import Example

MAX_NEW_TOKENS = 50

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def generate(
    model: Any, tokenizer: Any, batch: Sequence[Example], rows: int = 16, tokens: int | None = None
) -> list[str]:
    """Return the greedy continuation of each prompt as text. It ends before the first newline or the model's end token,
    and has no white space at its ends. rows: how many prompts go through the model at a time. tokens: the most tokens
    of a continuation, all of which are then made before it is cut at its end; MAX_NEW_TOKENS if None."""
    answers: list[str] = []
    end = model.generation_config.eos_token_id
    stops = {"stop_strings": ["\n"], "tokenizer": tokenizer} if tokens is None and _has_newlines(tokenizer) else {}
    for start in range(0, len(batch), rows):
        chunk = batch[start : start + rows]
        width = max(len(example.ids) for example in chunk)
        padding = [width - len(example.ids) for example in chunk]
        pad = tokenizer.pad_token_id or 0
        ids = [[*[pad] * gap, *example.ids] for gap, example in zip(padding, chunk, strict=True)]
        mask = [[0] * gap + [1] * (width - gap) for gap in padding]
        with torch.no_grad():
            output = model.generate(
                input_ids=torch.tensor(ids, device=model.device),
                attention_mask=torch.tensor(mask, device=model.device),
                do_sample=False,
                max_new_tokens=tokens or MAX_NEW_TOKENS,
                use_cache=True,
                eos_token_id=end,
                pad_token_id=pad,
                **stops,
            )
        texts = tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)
        answers += [text.partition("\n")[0].strip() for text in texts]
    return answers


def _has_newlines(tokenizer: Any) -> bool:
    """Return whether the tokenizer tells a newline from a space; WordPiece does not."""
    return "\n" in tokenizer.decode(tokenizer.encode("\n", add_special_tokens=False))


def exact(answer: str, gold: Sequence[str]) -> float:
    """Return 1 if an answer has the same words in the same order as one of the gold answers, else 0. Words are those of
    `token_f1`."""
    return float(any(_tokens(answer) == _tokens(text) for text in gold))


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
