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
    it. The frozen weights stay in the module.
    """
    base: Any = module.base_model
    layers: Any = getattr(getattr(base, "encoder", None), "layer", None)
    if layers is None or _trained(base.embeddings):
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
    base.embeddings = _Memory(bottom, pad, memory.setdefault((frozen, alone), {}))
    base.encoder.layer = nn.ModuleList(above)
    return True


def _trained(module: nn.Module) -> set[int]:
    return {id(p) for p in module.parameters() if p.requires_grad}


class _Norm(nn.Module):
    """A layer of which only the last normalisation is left."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        found: Tensor = self.norm(hidden)
        return found


def _sharing(module: Any) -> Any:
    """A module with the same parts, whose list of parts can be changed without changing the other's."""
    other = copy(module)
    other._modules = dict(module._modules)
    return other


class _Memory(nn.Module):
    """In the place of the embeddings: hidden states of each row, computed once."""

    def __init__(self, bottom: nn.Module, pad: int, known: dict[tuple[int, ...], Tensor]) -> None:
        super().__init__()
        self.bottom = bottom
        self.pad = pad
        self._known = known
        self._batches: dict[tuple[tuple[int, ...], ...], Tensor] = {}

    def forward(self, input_ids: Tensor, **_: Any) -> Tensor:
        rows = tuple(self._key(row) for row in input_ids.tolist())
        if rows not in self._batches:
            self._learn(sorted({row for row in rows if row not in self._known}, key=len))
            first = self._known[rows[0]]
            hidden = first.new_zeros(*input_ids.shape, first.shape[-1])
            for index, row in enumerate(rows):
                hidden[index, : len(row)] = self._known[row]
            while len(self._batches) >= _BATCHES:
                del self._batches[next(iter(self._batches))]
            self._batches[rows] = hidden
        return self._batches[rows]

    def _key(self, row: list[int]) -> tuple[int, ...]:
        while row[-1] == self.pad:
            row.pop()
        return tuple(row)

    def _learn(self, rows: Sequence[tuple[int, ...]]) -> None:
        device = next(self.bottom.parameters()).device
        for start in range(0, len(rows), _ROWS):
            chunk = rows[start : start + _ROWS]
            width = max(map(len, chunk))
            ids = torch.tensor([[*row, *[self.pad] * (width - len(row))] for row in chunk], device=device)
            mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in chunk], device=device)
            with torch.no_grad():
                hidden = self.bottom(input_ids=ids, attention_mask=mask).last_hidden_state
            for row, states in zip(chunk, hidden, strict=True):
                self._known[row] = states[: len(row)].clone()
