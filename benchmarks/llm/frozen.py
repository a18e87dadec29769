"""The frozen layers below the trained ones, run once for each record instead of at every step.

Where only the last layer is trained, the layers below it give a record the same hidden states at every step and at both
ends of a difference. `memoise` puts a memory in their place: the first time that a row of token ids comes, the layers
run; afterwards their output is looked up. Losses, trained weights and the mechanism stay what they are.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput

from benchmarks.problems.encoder import Scale, SentenceClassifier

Tensor = torch.Tensor
_ROWS = 16
_BATCHES = 16
"""How many padded batches are kept; a step evaluates each of its own many times."""


def memoise(module: nn.Module, pad: int, memory: dict[Any, Any]) -> bool:
    """Replace the frozen layers at the bottom of `module` by a memory of their outputs; returns whether anything was
    replaced.

    Where only the last normalisation of the first trained layer is trained, the rest of that layer is replaced too. For
    a sentence classifier with nothing else left the memory keeps the means over the tokens, because the normalisation's
    gain and bias can be applied after the mean as well as before it. This works for encoders laid out as BERT and
    RoBERTa are (embeddings, then encoder.layer); other models are left as they are. pad: the id that pads, which no
    record contains. memory: where the outputs are kept; modules with equal frozen weights may share it. The module must
    not be used in any other way afterwards: its own code runs only from the trained layers on.
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
    pooled = alone and len(above) == 1 and isinstance(module, SentenceClassifier)
    if alone:
        layer = _sharing(above[0])
        layer.output = _sharing(layer.output)
        plain = nn.LayerNorm(norm.normalized_shape, norm.eps, elementwise_affine=False)
        layer.output.LayerNorm = plain if pooled else nn.Identity()
        below, above = [*below, layer], [_Norm(norm), *above[1:]]
    bottom = _sharing(base)
    bottom.encoder = _sharing(base.encoder)
    bottom.encoder.layer = nn.ModuleList(below)
    bottom.pooler = None
    outputs = _Memory(bottom, pad, pooled, memory.setdefault((frozen, alone, pooled), {}))
    if pooled:
        module.pool = _Pooled(outputs, Scale(norm))
        return True
    parent, name = next((p, name) for p in module.modules() for name, part in p.named_children() if part is base)
    setattr(parent, name, _Top(base.config, outputs, above))
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
    """Return a copy of the module that shares its weights and parts, and in which a part can be replaced without
    changing the original."""
    other = copy(module)
    other._modules = dict(module._modules)
    return other


class _Memory:
    """The hidden states that the frozen layers give each row of token ids, or their mean over the tokens; they are
    computed when the row first comes, and kept."""

    def __init__(self, bottom: nn.Module, pad: int, pooled: bool, known: dict[tuple[int, ...], Tensor]) -> None:
        self._bottom = bottom
        self._pad = pad
        self._pooled = pooled
        self._known = known
        self._batches: dict[tuple[tuple[int, ...], ...], Tensor] = {}

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Return the frozen layers' outputs for rows of token ids, shape (rows, tokens), which are padded on the right.

        Their shape is (rows, tokens, width), or (rows, 1, width) where the means over tokens are kept; `tokens` is then
        the length of the longest row without its padding.
        """
        rows = tuple(map(tuple, input_ids.tolist()))
        if rows not in self._batches:
            while len(self._batches) >= _BATCHES:
                del self._batches[next(iter(self._batches))]
            self._batches[rows] = self._found([self._unpadded(row) for row in rows], input_ids.device)
        return self._batches[rows]

    def _unpadded(self, row: tuple[int, ...]) -> tuple[int, ...]:
        length = len(row)
        while row[length - 1] == self._pad:
            length -= 1
        return row[:length]

    def _found(self, rows: Sequence[tuple[int, ...]], device: torch.device) -> Tensor:
        new = sorted({row for row in rows if row not in self._known}, key=len)
        for start in range(0, len(new), _ROWS):
            self._learn(new[start : start + _ROWS], device)
        return pad_sequence([self._known[row] for row in rows], batch_first=True)

    def _learn(self, rows: Sequence[tuple[int, ...]], device: torch.device) -> None:
        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[self._pad] * (width - len(row))] for row in rows], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
        with torch.no_grad():
            hidden = self._bottom(input_ids=ids, attention_mask=mask).last_hidden_state
        for row, states in zip(rows, hidden, strict=True):
            kept = states[: len(row)]
            self._known[row] = kept.float().mean(dim=0, keepdim=True) if self._pooled else kept.clone()


class _Top(nn.Module):
    """Takes the place of the whole model: the memory, then the layers that are left."""

    def __init__(self, config: Any, memory: _Memory, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(layers)
        self._memory = memory
        self._masked = not all(isinstance(layer, _Norm) for layer in layers)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> BaseModelOutput:
        hidden = self._memory(input_ids)
        mask = create_bidirectional_mask(self.config, hidden, attention_mask) if self._masked else None
        for layer in self.layer:
            hidden = layer(hidden, mask)
        return BaseModelOutput(last_hidden_state=hidden)


class _Pooled(nn.Module):
    """Takes the place of a sentence classifier's pooling: the means of the normalised states, then gain and bias."""

    def __init__(self, memory: _Memory, scale: Scale) -> None:
        super().__init__()
        self.scale = scale
        self._memory = memory

    def forward(self, input_ids: Tensor, **_: Any) -> Tensor:
        found: Tensor = self.scale(self._memory(input_ids)[:, 0])
        return found
