"""Splits all that a run shows into tokens (numbers and words), so that two runs can be compared token by token."""

import gzip
import io
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from dpzero_theory.audit.loop import LoopOutput

Position = tuple[str, int]
"""The position of a token, given by the name of an output of the run and the index of the token in that output.

At index -1 stands the number of the output's tokens.
"""
Token = float | bytes
"""A token of an output, which is a number, or a word as bytes."""


class Chunk(bytes):
    """A token that is a hexadecimal digest, or four bytes of a binary file.

    A rounding error may change every bit of it.
    """


Shown = dict[Position, Token]
"""All tokens that a run shows, by position."""

_NUMBER = rb"[-+]?(?:\d+\.\d+|\.\d+|\d+)(?:[eE][-+]?\d+)?"
_HEX = rb"[0-9A-Fa-f-]"
DIGEST = rb"(?<![0-9A-Za-z.])(?=" + _HEX + rb"*\d)(?=" + _HEX + rb"*[A-Fa-f])" + _HEX + rb"{16,}(?![0-9A-Za-z])"
"""A digest in a text: 16 or more hexadecimal digits or hyphens, of which at least one is decimal and one a letter."""
_TOKEN = re.compile(rb"(" + DIGEST + rb")|(" + _NUMBER + rb")|(?:(?!" + DIGEST + rb")[^\s\d])+")
_PACKED: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"\x78\x9c": zlib.decompress,
    b"\x78\xda": zlib.decompress,
}
"""The function that unpacks a compressed file, by the bytes with which such a file begins."""
_NPY = b"\x93NUMPY"


def tokens(outcome: LoopOutput) -> Shown:
    """Return every number and word that a run shows, by position."""
    placed: Shown = {}
    for name, value in outcome.shown.items():
        for inner, content in contents(name, value):
            placed |= {(inner, k): token for k, token in enumerate(content)} | {(inner, -1): float(len(content))}
    return placed


def where(place: Position) -> str:
    """Return the position of a token as words for a report, such as "printed, number 3"."""
    return f"{place[0]}, {'how much there is' if place[1] < 0 else f'number {place[1]}'}"


def contents(name: str, value: Any) -> Iterator[tuple[str, list[Token]]]:
    """Yield the name and the tokens of an output: a value, a text or a file's bytes; of an archive, of each member."""
    if isinstance(value, bytes):
        for inner, raw in unpacked(name, value):
            yield inner, _of_bytes(raw)
    elif isinstance(value, str):
        yield name, _of_text(value.encode())
    else:
        yield name, _of_value(value)


def _of_value(value: Any) -> list[Token]:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    try:
        numbers = np.asarray(value).astype(np.float64).ravel().tolist()
    except (TypeError, ValueError):
        return _of_text(repr(value).encode())
    return [b"nan" if math.isnan(x) else x for x in numbers]


def unpacked(name: str, raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and bytes of each member of a zip archive, of the decompressed file, or of the file itself.

    `name` is the file's name and `raw` its bytes. Files of `numpy.savez` and `torch.save` are zip archives.
    """
    if raw[:2] == b"PK":
        with suppress(zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error):
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                members = [(member, archive.read(member)) for member in archive.namelist()]
            yield from ((f"{name}/{member.partition('/')[2] or member}", content) for member, content in members)
            return
    for start, unpack in _PACKED.items():
        if raw.startswith(start):
            try:
                raw = unpack(raw)
            except (OSError, EOFError, ValueError, zlib.error):
                break
    yield name, raw


def _of_bytes(raw: bytes) -> list[Token]:
    """Return the tokens of a file's text or of its array (`numpy.save`), else one `Chunk` for every four bytes."""
    if raw.startswith(_NPY):
        try:
            return _of_value(np.load(io.BytesIO(raw), allow_pickle=False))
        except (OSError, ValueError):
            pass
    if b"\0" not in raw[:4096] and all(byte < 128 for byte in raw[:4096]):
        return _of_text(raw)
    return [Chunk(raw[k : k + 4]) for k in range(0, len(raw) - 3, 4)]


def _of_text(text: bytes) -> list[Token]:
    return [
        Chunk(match[1]) if match[1] else float(match[2]) if match[2] else match[0] for match in _TOKEN.finditer(text)
    ]
