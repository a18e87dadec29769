"""Turns records into prompts, as token ids, by the template of their task.

A template is cut into pieces (fixed text, the mask, the record's texts) that are tokenised one by one; a space before a
text belongs to that text. The model's own start and end tokens go around them. A prompt that is too long is shortened
in the record's texts only, always in the longest and from its end, so that the template and the mask stay whole.
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from benchmarks.llm.records import Record
from benchmarks.llm.tasks import Task

MASK = "<mask>"
CHANGES = {
    "": lambda text: text,
    "bare": lambda text: text[:-1] if text[-1:] in string.punctuation else text,
    "lower": lambda text: text[:1].lower() + text[1:],
    "upper": lambda text: text[:1].upper() + text[1:],
}


@dataclass(frozen=True)
class Example:
    """A record as token ids.

    position: where the next token (causal) or the mask (masked) is predicted; that of the last token for an encoder.
    label: the class.
    """

    ids: tuple[int, ...]
    position: int
    label: int


@dataclass(frozen=True)
class _Piece:
    """A piece of a template: fixed token ids; or, if `ids` is None, the record's text called `name`.

    change: the name of what is done to that text, a key of CHANGES. space: a space to put before it, or "".
    """

    ids: tuple[int, ...] | None
    name: str = ""
    change: str = ""
    space: str = ""


def special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that the tokenizer puts before and after a text."""
    inner = tokenizer("x", add_special_tokens=False)["input_ids"]
    whole = tokenizer("x")["input_ids"]
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return tuple(whole[:start]), tuple(whole[start + len(inner) :])
    raise ValueError(f"tokenizer must keep a text's tokens together; got {whole} for {inner}")


class Prompter:
    """Turns the records of one task into examples for one kind of model. A prompt has at most `max_length` tokens, and
    at most the task's own largest number.

    Raises ValueError where the task has no prompt for this kind of model, or where the template and the longest answer
    leave no room for a record's text; and `words` does where a word or continuation is not one token.
    """

    def __init__(self, task: Task, kind: str, tokenizer: Any, max_length: int | None = None) -> None:
        self.prompt = task.prompt(kind)
        self.kind = kind
        self._tokenizer = tokenizer
        self._start, self._end = special_tokens(tokenizer)
        if kind == "causal":
            self._end = ()
        self._pieces = tuple(self._parse())
        fixed = len(self._start) + len(self._end) + sum(len(piece.ids or ()) for piece in self._pieces)
        fixed += kind == "causal"  # the answer
        self.max_length = self.prompt.max_length if max_length is None else min(max_length, self.prompt.max_length)
        self._room = self.max_length - fixed
        if self._room < 1:
            raise ValueError(f"max_length must leave room beside {fixed} tokens of template; got {self.max_length}")

    def words(self) -> tuple[int, ...]:
        """Return the token id of each class's word (masked) or continuation (causal)."""
        found = tuple(self._tokens(" " * (self.kind == "masked") + text) for text in self.prompt.options)
        for word, ids in zip(self.prompt.options, found, strict=True):
            if len(ids) != 1:
                raise ValueError(f"tokenizer must have each label word as one token; got {len(ids)} for {word!r}")
        return tuple(ids[0] for ids in found)

    def examples(self, records: Sequence[Record]) -> tuple[Example, ...]:
        return tuple(self._example(record) for record in records)

    def _example(self, record: Record) -> Example:
        parts = [piece.ids if piece.ids is not None else self._text(piece, record.texts) for piece in self._pieces]
        texts = [index for index, piece in enumerate(self._pieces) if piece.ids is None]
        excess = sum(len(parts[index]) for index in texts) - self._room
        while excess > 0:
            sizes = sorted(((len(parts[index]), index) for index in texts), reverse=True)
            second = sizes[1][0] if len(sizes) > 1 else 0
            size, longest = sizes[0]
            cut = min(excess, max(size - second, 1))
            parts[longest] = parts[longest][: size - cut]
            excess -= cut
        ids = (*self._start, *(token for part in parts for token in part), *self._end)
        return Example(ids, self._position(parts, len(ids)), record.label)

    def _position(self, parts: Sequence[tuple[int, ...]], length: int) -> int:
        if self.kind != "masked":
            return length - 1
        mask = (self._tokenizer.mask_token_id,)
        before = next(index for index, piece in enumerate(self._pieces) if piece.ids == mask)
        return len(self._start) + sum(len(part) for part in parts[:before])

    def _text(self, piece: _Piece, texts: Mapping[str, str]) -> tuple[int, ...]:
        return self._tokens(piece.space + CHANGES[piece.change](texts[piece.name]))

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _parse(self) -> list[_Piece]:
        pieces: list[_Piece] = []
        for literal, name, change, _ in Formatter().parse(self.prompt.template):
            space = " " if name and literal.endswith(" ") else ""
            fixed = literal.removesuffix(" ") if space else literal
            for text in re.split(f"({MASK})", fixed):
                if text == MASK:
                    pieces.append(_Piece((self._tokenizer.mask_token_id,)))
                elif text:
                    pieces.append(_Piece(self._tokens(text)))
            if name:
                pieces.append(_Piece(None, name, change or "", space))
        return pieces
