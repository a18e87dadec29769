"""Sums of clipped gradients of a language model's last layers, without a gradient for each record.

The gradient of a linear map's matrix is, for one record, a sum over its tokens of products g x^T, of the gradient g at
the map's output and the input x. So a record's squared gradient norm is a sum over pairs of its tokens of (g . g')
(x . x'), and the sum of clipped gradients is one product of matrices over all records (Li, Tramer, Liang and
Hashimoto 2022, "Large language models can be strong differentially private learners", section 4: ghost clipping).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.llm.top import Adapted, Top


class _Products(NamedTuple):
    """The records' gradients of a matrix: sums over a record's tokens of the products of a row of `left`, shape
    (records, tokens, outputs), and one of `right`, shape (records, tokens, inputs)."""

    left: Tensor
    right: Tensor

    def squares(self) -> Tensor:
        return ((self.left @ self.left.mT) * (self.right @ self.right.mT)).sum((1, 2))

    def total(self, factors: Tensor) -> Tensor:
        return (self.left * factors[:, None, None]).flatten(0, 1).T @ self.right.flatten(0, 1)


class _Rows(NamedTuple):
    """The records' gradients of the rows of an embedding: `vectors`, shape (records, places, width), are added to the
    rows that `ids`, shape (records, places), name, of `size`."""

    ids: Tensor
    vectors: Tensor
    size: int

    def squares(self) -> Tensor:
        same = self.ids[:, :, None] == self.ids[:, None]
        return ((self.vectors @ self.vectors.mT) * same).sum((1, 2))

    def total(self, factors: Tensor) -> Tensor:
        scaled = (self.vectors * factors[:, None, None]).flatten(0, 1)
        return scaled.new_zeros(self.size, scaled.shape[1]).index_add_(0, self.ids.flatten(), scaled)


class _Gains(NamedTuple):
    """The records' gradients of a vector, shape (records, width)."""

    each: Tensor

    def squares(self) -> Tensor:
        return self.each.square().sum(1)

    def total(self, factors: Tensor) -> Tensor:
        return factors @ self.each


def clipped_sum(
    top: Top, losses: Callable[[nn.Module, Any], Any], batch: Mapping[str, Tensor], clip: float
) -> list[Tensor]:
    """Return the sum over a batch of the records' gradients, each scaled to norm at most `clip`.

    top: the last layers of a language model. losses: returns the loss of each record with `top`, shape (records,).
    Returns a tensor for each weight of `top` that is trained, in the order of its parameters. Raises ValueError where a
    weight is trained whose gradient is not one of a linear map, an adapter, a normalisation or the embedding.
    """
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[module] = inputs[0], output

    tied = {top, top.norm} if top.embedding is not None else set()
    trained = [part for part in top.modules() if any(p.requires_grad for p in part.parameters(recurse=False))]
    hooks = [part.register_forward_hook(keep) for part in {*trained, *tied}]
    try:
        found = losses(top, batch)
    finally:
        for hook in hooks:
            hook.remove()
    outputs = torch.autograd.grad(found.sum(), [output for _, output in seen.values()])
    parts: dict[Tensor, _Products | _Rows | _Gains] = {}
    with torch.no_grad():
        for (module, (given, _)), gradient in zip(seen.items(), outputs, strict=True):
            x, g = (t if t.ndim == 3 else t[:, None] for t in (given, gradient))
            if isinstance(module, nn.Linear):
                parts[module.weight] = _Products(g, x)
            elif isinstance(module, Adapted):
                parts[module.down], parts[module.up] = _Products(g @ module.up, x), _Products(g, x @ module.down.T)
            elif module is top.embedding:
                last = outputs[list(seen).index(top)][:, :, None] * seen[top.norm][1][:, None]
                options: Any = top.options
                ids = torch.cat([given, options.expand(len(given), -1)], 1)
                parts[module.weight] = _Rows(ids, torch.cat([gradient, last], 1), module.num_embeddings)
            elif isinstance(module, type(top.norm)):
                start = {name: torch.full_like(p, name == "weight") for name, p in module.named_parameters()}
                own: Any = dict(module.named_parameters())
                parts[own["weight"]] = _Gains((g * functional_call(module, start, (x,))).sum(1))
                if "bias" in own:
                    parts[own["bias"]] = _Gains(g.sum(1))
        weights = {name: weight for name, weight in top.named_parameters() if weight.requires_grad}
        if missing := [name for name, weight in weights.items() if weight not in parts]:
            raise ValueError(f"top must train weights whose gradients are known; got {', '.join(missing)}")
        norms = torch.stack([parts[weight].squares() for weight in weights.values()]).sum(0).sqrt()
        factors = (clip / norms).clamp(max=1.0)
        return [parts[weight].total(factors) for weight in weights.values()]
