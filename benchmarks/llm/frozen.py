"""The layers below the trained ones, run once for each record instead of at every step.

Where only the last layer is trained, all below it give the same hidden states for a record at every step and at both
ends of a difference. `memoise` puts a memory in their place: the first time a row of token ids comes, the layers run;
afterwards their output is looked up. Losses, trained weights and the mechanism stay what they are.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import nn
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput

__all__ = ["memoise"]

Tensor = torch.Tensor
_ROWS = 16
_BATCHES = 16
"""Padded batches that are kept: a step evaluates each of its own many times."""


def memoise(module: nn.Module, pad: int, memory: dict[Any, Any]) -> bool:
    """Replace the frozen layers at the bottom of `module` by a memory of their outputs; whether anything was.

    Of the first trained layer, all but its last normalisation where that alone is trained.
    For encoders laid out as BERT and RoBERTa (embeddings, then encoder.layer); others are left as they are. pad: the
    id that pads, which no record holds. memory: where the outputs are kept; modules with equal frozen weights may share
    it. What is left of the model is its trained layers alone, which no code of the model's walks through any more.
    """
    base: Any = module.base_model
    layers: Any = getattr(getattr(base, "encoder", None), "layer", None)
    if layers is None or base.config.is_decoder or _trained(base.embeddings):
        return False
    frozen = 0
    while frozen < len(layers) and not _trained(layers[frozen]):
        frozen += 1
    if frozen == 0:
        return False
    below, above = list(layers[:frozen]), list(layers[frozen:])
    norm: Any = above[0].output.LayerNorm if above else None
    alone = norm is not None and _trained(above[0]) == _trained(norm)
    if alone:
        layer = _sharing(above[0])
        layer.output = _sharing(layer.output)
        layer.output.LayerNorm = nn.Identity()
        below, above = [*below, layer], [_Norm(norm), *above[1:]]
    bottom = _sharing(base)
    bottom.encoder = _sharing(base.encoder)
    bottom.encoder.layer = nn.ModuleList(below)
    bottom.pooler = None
    (name,) = [name for name, part in module.named_children() if part is base]
    setattr(module, name, _Top(base.config, _Memory(bottom, pad, memory.setdefault((frozen, alone), {})), above))
    return True


def _trained(module: nn.Module) -> set[int]:
    return {id(p) for p in module.parameters() if p.requires_grad}


class _Norm(nn.Module):
    """A layer of which only the last normalisation is left."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        found: Tensor = self.norm(hidden)
        return found


def _sharing(module: Any) -> Any:
    """A module with the same parts, whose list of parts can be changed without changing the other's."""
    other = copy(module)
    other._modules = dict(module._modules)
    return other


class _Memory:
    """Hidden states of each row of token ids below the trained layers, computed once, and the mask of its batch."""

    def __init__(self, bottom: nn.Module, pad: int, known: dict[tuple[int, ...], Tensor]) -> None:
        self._bottom: Any = bottom
        self._pad = pad
        self._known = known
        self._batches: dict[tuple[tuple[int, ...], ...], tuple[Tensor, Tensor | None]] = {}

    def __call__(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor | None]:
        rows = tuple(map(tuple, input_ids.tolist()))
        if rows not in self._batches:
            while len(self._batches) >= _BATCHES:
                del self._batches[next(iter(self._batches))]
            hidden = self._hidden([self._unpadded(row) for row in rows], input_ids)
            mask = create_bidirectional_mask(self._bottom.config, hidden, attention_mask)
            self._batches[rows] = hidden, mask
        return self._batches[rows]

    def _unpadded(self, row: tuple[int, ...]) -> tuple[int, ...]:
        length = len(row)
        while row[length - 1] == self._pad:
            length -= 1
        return row[:length]

    def _hidden(self, rows: Sequence[tuple[int, ...]], input_ids: Tensor) -> Tensor:
        new = sorted({row for row in rows if row not in self._known}, key=len)
        for start in range(0, len(new), _ROWS):
            self._learn(new[start : start + _ROWS], input_ids.device)
        first = self._known[rows[0]]
        hidden = first.new_zeros(*input_ids.shape, first.shape[-1])
        for index, row in enumerate(rows):
            hidden[index, : len(row)] = self._known[row]
        return hidden

    def _learn(self, rows: Sequence[tuple[int, ...]], device: torch.device) -> None:
        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[self._pad] * (width - len(row))] for row in rows], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
        with torch.no_grad():
            hidden = self._bottom(input_ids=ids, attention_mask=mask).last_hidden_state
        for row, states in zip(rows, hidden, strict=True):
            self._known[row] = states[: len(row)].clone()


class _Top(nn.Module):
    """In the place of the whole model: the memory, then the layers that are left."""

    def __init__(self, config: Any, memory: _Memory, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(layers)
        self._memory = memory

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> BaseModelOutput:
        hidden, mask = self._memory(input_ids, attention_mask)
        for layer in self.layer:
            hidden = layer(hidden, mask)
        return BaseModelOutput(last_hidden_state=hidden)
