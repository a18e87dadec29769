"""Turn sentences into vectors with the sentence encoder that the extra `dev` installs, so that nothing is
downloaded."""

import hashlib
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from benchmarks.kit.rows import write_atomically
from benchmarks.problems.encoder import minilm_folder, token_means

ROWS = 64
CACHE = Path("out") / "embeddings"


def sentence_embeddings(texts: Sequence[str]) -> Tensor:
    """Return the embeddings of the texts, vectors of length 1, shape (texts, width)."""
    return normalize(_means(_encoder(), texts), dim=-1)


def normalised_means(texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each text the mean z over its tokens of what the encoder's last normalisation layer multiplies by its
    gain, shape (texts, width); then that gain, and the layer's bias.

    A text's embedding is gain * z + bias, divided by its length.
    """
    encoder = _encoder()
    norm = encoder.encoder.layer[-1].output.LayerNorm
    gain, bias = norm.weight.detach().clone(), norm.bias.detach().clone()
    nn.init.ones_(norm.weight)
    nn.init.zeros_(norm.bias)
    return _means(encoder, texts), gain, bias


def kept(make: Callable[[Sequence[str]], Any], texts: Sequence[str]) -> Any:
    """Return `make(texts)`. It is kept in a file below out/, under a name made of that of the function and the texts,
    so that the next command that asks for the same reads it. A function whose code has changed still gets the old
    file."""
    name = hashlib.sha256(chr(0).join([make.__name__, *texts]).encode()).hexdigest()[:16]
    place = CACHE / f"{name}.pt"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(make(texts), buffer)
        write_atomically(place, buffer.getvalue())
    return torch.load(place, weights_only=True)


def _encoder() -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(minilm_folder(), local_files_only=True)


def _means(encoder: Any, texts: Sequence[str]) -> Tensor:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(minilm_folder(), local_files_only=True)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    rows = []
    with torch.no_grad():
        for first in range(0, len(order), ROWS):
            tokens = tokenizer([texts[i] for i in order[first : first + ROWS]], return_tensors="pt", padding=True)
            inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
            rows.append(token_means(encoder(**inputs).last_hidden_state, inputs["attention_mask"]))
            print(f"embedded {min(first + ROWS, len(order))} of {len(order)}", end="\r", file=sys.stderr)
    return torch.cat(rows)[np.argsort(order)]
