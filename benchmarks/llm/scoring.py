"""Scores and losses of each record, for masked and causal models.

Logits are computed only where something is predicted: a hook keeps those positions of the hidden states that enter the
output layer. Records are put through the model in the order of their lengths, `rows` at a time, so that there is little
padding. A record's loss does not depend on the other records in its batch, up to rounding.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.llm.prompts import Example

Tensor = torch.Tensor
Batch = Sequence[Example]


class Scorer:
    """Scores and losses of one task for one kind of model. The loss is the cross-entropy over the scores of the
    classes.

    Args:
        words: the token of each class, which is scored at a mask or after a prompt.
        pad: the id that pads, whose value has no effect.
        rows: as in the module's docstring.
    """

    def __init__(self, words: Sequence[int], pad: int, rows: int) -> None:
        self.words, self.pad, self.rows = words, pad, rows

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the scores of the classes, shape (batch, classes); the largest is the prediction."""
        order = sorted(range(len(batch)), key=lambda index: len(batch[index].ids))
        parts = [
            self._scores(model, [batch[i] for i in order[k : k + self.rows]]) for k in range(0, len(order), self.rows)
        ]
        return torch.cat(parts)[torch.tensor(order).argsort().to(parts[0].device)]

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of each record, float32, shape (batch,)."""
        if not batch:
            return torch.zeros(0)
        scores = self.scores(model, batch)
        labels = torch.tensor([example.label for example in batch], device=scores.device)
        return cross_entropy(scores, labels, reduction="none")

    def evaluated(self, model: nn.Module, batch: Batch) -> tuple[float, float]:
        """Return the accuracy, in [0, 1], and the mean loss of a model on examples, of which there is at least one."""
        with torch.no_grad():
            scores = self.scores(model, batch)
            labels = torch.tensor([example.label for example in batch], device=scores.device)
            right = (scores.argmax(dim=1) == labels).double().mean().item()
            return right, cross_entropy(scores, labels).item()

    def _scores(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs = _inputs(model, [example.ids for example in batch], self.pad)
        index, kept = torch.tensor([(row, example.position) for row, example in enumerate(batch)]).T
        head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
        hook = head.register_forward_pre_hook(lambda _, args: (args[0][index, kept],))
        try:
            logits: Tensor = model(**inputs).logits
            return logits.float()[:, list(self.words)]
        finally:
            hook.remove()


def _inputs(model: nn.Module, rows: Sequence[tuple[int, ...]], pad: int) -> dict[str, Tensor]:
    """Return a model's keyword arguments for rows of token ids: input_ids and attention_mask, each of
    shape (rows, longest row). Ids are padded on the right with the id `pad`, so that padding comes after
    everything that a causal model attends to."""
    ids, mask = _padded(tuple(rows), pad, next(model.parameters()).device)
    return {"input_ids": ids, "attention_mask": mask}


@lru_cache(maxsize=64)
def _padded(rows: tuple[tuple[int, ...], ...], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two tensors of shape (rows, longest) on the device: the token ids of the rows, padded on the right with
    `pad`, and their attention mask. The last 64 results are kept, because a step asks for the same rows at every
    evaluation."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
    return ids, mask
