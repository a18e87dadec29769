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


def memoise(module: nn.Module, pad: int, memory: dict[Any, Any]) -> bool:
    """Replace the frozen layers at the bottom of `module` by a memory of their outputs; whether anything was.

    For encoders laid out as BERT and RoBERTa (embeddings, then encoder.layer); others are left as they are. pad: the
    id that pads, which no record holds. memory: where the outputs are kept; modules with equal frozen weights may share
    it. The frozen weights stay in the module.
    """
    base: Any = module.base_model
    layers: Any = getattr(getattr(base, "encoder", None), "layer", None)
    if layers is None or any(p.requires_grad for p in base.embeddings.parameters()):
        return False
    frozen = 0
    while frozen < len(layers) and not any(p.requires_grad for p in layers[frozen].parameters()):
        frozen += 1
    if frozen == 0:
        return False
    bottom = _sharing(base)
    bottom.encoder = _sharing(base.encoder)
    bottom.encoder.layer = layers[:frozen]
    bottom.pooler = None
    base.embeddings = _Memory(bottom, pad, memory.setdefault(frozen, {}))
    base.encoder.layer = layers[frozen:]
    return True


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

    def forward(self, input_ids: Tensor, **_: Any) -> Tensor:
        rows = [self._key(row) for row in input_ids.tolist()]
        self._learn(sorted({row for row in rows if row not in self._known}, key=len))
        first = self._known[rows[0]]
        hidden = first.new_zeros(*input_ids.shape, first.shape[-1])
        for index, row in enumerate(rows):
            hidden[index, : len(row)] = self._known[row]
        return hidden

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
