"""A sentence encoder as a classifier of texts, ready to train its last normalisation and a vector for each class.

A text's embedding is the mean over its tokens of the last hidden states. The score of a class is the inner product of
the embedding, scaled to length `SCALE`, and the class's vector. At first that is the embedding of a label sentence
(tasks.toml), scaled to length 1, so that scores are `SCALE` times cosines.

The last normalisation gives gain * z + bias at each token, and the mean of that is gain * (mean of z) + bias. So the
mean of z is all that is kept of a text.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize

from benchmarks.llm.models import load
from benchmarks.llm.prompts import Prompter
from benchmarks.llm.records import Record
from benchmarks.llm.states import States, entering, kept
from benchmarks.llm.tasks import Task
from benchmarks.llm.top import Records, Trained
from benchmarks.pretrained import cache

SCALE = 20.0
"""As in the contrastive training of such encoders."""
_AT_ONCE = 32
"""How many texts of similar length are run at a time."""


class Affine(nn.Module):
    """The gain and the bias of a normalisation, for inputs that are normalised already."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(value.detach().clone()) for value in (norm.weight, norm.bias))

    def forward(self, z: Tensor) -> Tensor:
        return z * self.weight + self.bias


class Head(nn.Module):
    """The last normalisation and the vectors of the classes. It takes mean normalised states, shape (records, 1,
    width), and the place of each record's last token, which says nothing here; it returns the scores of the classes,
    shape (records, classes). labels: the vectors at the start, shape (classes, width)."""

    count, embedding = 0, None

    def __init__(self, norm: nn.LayerNorm, labels: Tensor) -> None:
        super().__init__()
        self.norm, self.classes = Affine(norm), nn.Linear(labels.shape[1], len(labels), bias=False)
        self.classes.weight = nn.Parameter(labels.clone())

    def forward(self, states: Tensor, last: Tensor) -> Tensor:
        embedding = self.norm(states[:, 0])
        scores: Tensor = self.classes(embedding) * (SCALE / embedding.norm(dim=-1, keepdim=True))
        return scores


class Sentences(Records):
    """The records of a task by split, in the place of `Records`, for a sentence encoder with this name (`load`). Texts
    are cut to `longest` tokens. The weights that are trained are always those of `Head`."""

    def __init__(self, asked: Task, longest: int, name: str) -> None:
        self.model, self.device, self.longest = load(name), "cpu", longest
        self.prompter = Prompter(asked, self.model.kind, self.model.tokenizer, longest)
        self.words = self.prompter.prompt.options
        self.options = tuple(range(len(self.words)))
        self._states, self._norms = {0: {}}, {}
        encoder: Any = self.model.module
        self._norm: nn.LayerNorm = encoder.encoder.layer[-1].output.LayerNorm
        with torch.no_grad():
            means = Affine(self._norm)(self._means(self.model.tokenizer(list(self.words))["input_ids"]))
        self._labels = normalize(means, dim=-1)

    def add(self, part: str, records: Sequence[Record], length: int = 0, before: Sequence[Record] = ()) -> None:
        examples = self.prompter.examples(records)
        labels = torch.tensor([[example.label] for example in examples])
        self._states[0][part] = States(self._means([list(one.ids) for one in examples])[:, None], {"labels": labels})

    def top(self, trained: Trained, *, usual: bool = False) -> Any:
        return Head(self._norm, self._labels).eval()

    def _means(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return the mean normalised state of each text, given as token ids, shape (texts, width)."""
        encoder = self.model.module

        def made() -> Tensor:
            found = torch.empty(len(texts), len(self._norm.weight))
            for rows in torch.split(torch.tensor([len(ids) for ids in texts]).argsort(), _AT_ONCE):
                ids = [torch.tensor(texts[row]) for row in rows]
                mask = nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in ids], True)
                inputs = {"input_ids": nn.utils.rnn.pad_sequence(ids, True, self.model.pad), "attention_mask": mask}
                z = layer_norm(entering(encoder, self._norm, inputs), self._norm.normalized_shape, eps=self._norm.eps)
                found[rows] = (z * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
            return found

        return kept(cache() / "states", [str(encoder.config), *encoder.state_dict().values(), str(texts)], made)
