"""The last layers of a pretrained Llama, which weights of them are trained, and records ready to train them on.

Frozen layers run once for each record (`states`), and their hidden states are kept in the
user's cache. A record's loss is the cross-entropy of the right answer over the task's answers, of one token each.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, linear, scaled_dot_product_attention

from benchmarks.llm.models import load
from benchmarks.llm.prompts import Prompter
from benchmarks.llm.records import Record
from benchmarks.llm.states import STATES, States, cached
from benchmarks.llm.tasks import Task
from benchmarks.pretrained import cache
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.engines.texts import IGNORED
from dpzero_theory.optim.losses.evaluation import Evaluation
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights

MODEL = "smollm2"
AT_ONCE = 256
"""The most records in one forward pass without gradients."""


class Trained(NamedTuple):
    """A choice of the weights that are trained. layers: how many layers at the end of the model are run at every step.
    what: "norms", "adapters", "all" (all weights of these layers and of the last normalisation) or "whole" (the
    embedding too, for which all layers have to be run). rank: that of the adapters beside all matrices of these layers;
    0 for none."""

    layers: int
    what: str
    rank: int = 0


NORM, ADAPTERS, LAYER, WHOLE = "last normalisation", "LoRA of rank 8, last layer", "last layer", "all weights"
TRAINED = {
    NORM: Trained(0, "norms"),
    "norms of the last layer": Trained(1, "norms"),
    "LoRA of rank 1, last layer": Trained(1, "adapters", 1),
    ADAPTERS: Trained(1, "adapters", 8),
    "LoRA of rank 64, last layer": Trained(1, "adapters", 64),
    LAYER: Trained(1, "all"),
    "last two layers": Trained(2, "all"),
    "last 16 layers": Trained(16, "all"),
    WHOLE: Trained(30, "whole"),
}


class Adapted(nn.Module):
    """A linear map x -> W x + B A x with frozen W, of which A, shape (rank, inputs), and B, shape (outputs, rank), are
    trained (LoRA). At first B is zero, and A is drawn by a fixed seed with variance 1, or 1/inputs if `usual`, as is
    usual where gradients are known. A zeroth-order step moves all coordinates by the same length, so with the small
    variance steps that move B enough would move A by many times its size."""

    def __init__(self, whole: nn.Linear, rank: int, usual: bool) -> None:
        super().__init__()
        self.whole = whole
        drawn = torch.randn(rank, whole.in_features, generator=torch.Generator().manual_seed(0))
        self.down = nn.Parameter(drawn / (math.sqrt(whole.in_features) if usual else 1.0))
        self.up = nn.Parameter(torch.zeros(whole.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.whole(x) + linear(linear(x, self.down), self.up)
        return out


class Top(nn.Module):
    """The last layers of a Llama, its last normalisation, and the rows of its output matrix that belong to options.

    It takes hidden states, shape (records, tokens, width), padded on the right, and the position of each record's last
    token. It returns the logits of the options after that token, shape (records, options). In the last layer only that
    token is computed, as no other is needed.

    With all layers it has the embedding too, to which the output matrix is tied, and takes token ids, shape (records,
    tokens), in the place of hidden states.
    """

    options: Tensor
    rows: Tensor

    def __init__(self, model: Any, count: int, options: tuple[int, ...]) -> None:
        super().__init__()
        whole = count == len(model.model.layers)
        self.count = count
        self.layers = deepcopy(model.model.layers[len(model.model.layers) - count :])
        self.norm = deepcopy(model.model.norm)
        self.positions = deepcopy(model.model.rotary_emb)
        self.embedding = deepcopy(model.model.embed_tokens) if whole else None
        self.register_buffer("options", torch.tensor(options))
        self.register_buffer("rows", model.lm_head.weight[list(options)].detach().clone())

    def forward(self, states: Tensor, last: Tensor) -> Tensor:
        records, rows = torch.arange(len(states), device=states.device), self.rows[None]
        if self.embedding is not None:
            states, rows = self.embedding(states), embedding(self.options[None], self.embedding.weight)
        if len(self.layers) == 0:
            hidden = states[records, last]
        else:
            turns = self.positions(states, torch.arange(states.shape[1], device=states.device)[None])
            for layer in self.layers[:-1]:
                states = layer(states, position_embeddings=turns)
            hidden = _at_last(self.layers[-1], states, last, turns)
        found: Tensor = (self.norm(hidden)[:, None] @ rows.mT)[:, 0]
        return found


def _at_last(layer: Any, states: Tensor, last: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Return a layer's output at one token of each record, shape (records, width).

    states: the layer's input, shape (records, tokens, width). last: the token's position in each record. turns: the
    cosines and sines of the rotary embedding, shape (1, tokens, width of a head).
    """
    records, attention = torch.arange(len(states), device=states.device), layer.self_attn
    x = layer.input_layernorm(states)
    heads = (len(states), states.shape[1], -1, attention.head_dim)
    cos, sin = (turn[0, :, None] for turn in turns)
    keys = turned(attention.k_proj(x).view(heads), cos, sin).transpose(1, 2)
    values = attention.v_proj(x).view(heads).transpose(1, 2)
    query = attention.q_proj(x[records, last]).view(len(states), -1, attention.head_dim)
    query = turned(query, cos[last], sin[last])[:, :, None]
    seen = torch.arange(states.shape[1], device=states.device) <= last[:, None]
    found = scaled_dot_product_attention(query, keys, values, attn_mask=seen[:, None, None], enable_gqa=True)
    hidden = states[records, last] + attention.o_proj(found.flatten(1))
    out: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return out


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the rotary embedding of x, in whose last axis each pair of coordinates (i, i + half the width) is turned
    by an angle. cos, sin: the cosines and sines of the angles, of shapes that broadcast to that of x."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Records:
    """A pretrained language model and the records of a task, by split.

    Args:
        asked: the task, whose causal prompt has options of one token each.
        longest: the most tokens of a prompt; longer texts are cut.
        dtype: in which the frozen layers run and their states are kept; what follows them is in float32.
        device: where runs are made. Frozen layers run on the CPU.
    """

    def __init__(self, asked: Task, longest: int, *, dtype: str = "float32", device: str = "cpu") -> None:
        self.model, self.device, self.longest = load(MODEL, dtype=dtype), device, longest
        self.prompter = Prompter(asked, self.model.kind, self.model.tokenizer, longest)
        self.words, self.options = self.prompter.prompt.options, self.prompter.words()
        self.layers = len(self.model.module.model.layers)  # type: ignore[union-attr, arg-type]
        self._rows: dict[str, list[dict[str, Tensor]]] = {}
        self._states: dict[int, dict[str, States]] = {}
        self._norms: dict[Any, float] = {}

    def short(self, records: Sequence[Record], length: int, wanted: int) -> list[Record]:
        """Return the first `wanted` of the records whose prompts have fewer than `length` tokens, of equal ones one.
        Raises ValueError where there are fewer."""
        ids = [example.ids for example in self.prompter.examples(records)]
        found = {tokens: record for tokens, record in zip(ids, records, strict=True) if len(tokens) < length}
        if len(found) < wanted:
            raise ValueError(f"data must hold {wanted} records of fewer than {length} tokens; got {len(found)}")
        return list(found.values())[:wanted]

    def add(self, part: str, records: Sequence[Record], length: int = 0, before: Sequence[Record] = ()) -> None:
        """Make `records` the split `part`. length: the tokens that each is padded to; 0 for `longest`. before: records
        that stand, with their answers, before every prompt."""
        between = tuple(self.model.tokenizer("\n\n", add_special_tokens=False)["input_ids"])
        shown = self.prompter.examples(before)
        context = sum(((*one.ids, self.options[one.label], *between) for one in shown), ())
        length = length or self.longest
        self._rows[part] = padded(self.prompter, self.options, records, self.model.pad, length, context)

    def states(self, count: int) -> dict[str, States]:
        """Return the records by split, with the hidden states that enter the last `count` layers of the model; with
        their token ids in the place of hidden states if that is all layers."""
        if count not in self._states and count == self.layers:
            self._states[count] = {part: _as_states(records) for part, records in self._rows.items()}
        if count not in self._states:
            first, folder = self.layers - count, cache() / "states"
            self._states[count] = {
                part: cached(self.model.module, first, records, folder) for part, records in self._rows.items()
            }
        return self._states[count]

    def top(self, trained: Trained, *, usual: bool = False) -> Top:
        """Return a new copy of the model's last layers and output on the device of runs, with the weights at their
        start, in which the weights that `trained` names, and no others, have requires_grad. usual: the variance of
        adapters, as in `Adapted`."""
        top = Top(self.model.module, trained.layers, self.options).float().eval()
        top.requires_grad_(trained.what in ("all", "whole"))
        if trained.what == "norms":
            for name, weight in top.named_parameters():
                weight.requires_grad_("norm" in name)
        if trained.what == "adapters":
            for part in list(top.modules()):
                for name, child in list(part.named_children()):
                    if isinstance(child, nn.Linear):
                        setattr(part, name, Adapted(child, trained.rank, usual))
        return top.to(self.device)

    def gradient_norm(self, trained: Trained, public: str, smoothing: float, *, usual: bool = False) -> float:
        """Return G, the median over the records of the split `public` of the norm of a record's gradient with respect
        to the trained weights, estimated from finite differences of this `smoothing` at the weights from which runs
        start."""
        key = trained, usual
        if key not in self._norms:
            parts, top = self.states(trained.layers), self.top(trained, usual=usual)
            rule, evaluation = DIFFERENCES["central"], Evaluation(self.losses, parts[public])
            weights, points = Weights(top, Directions(bytes(16), "rademacher")), rule.at(range(32), smoothing)
            records = np.unique(np.arange(256) * len(parts[public]) // 256)
            batches = [evaluation.batch(part) for part in np.array_split(records, 4)]
            found = [rule.combine(evaluation.at(weights, points, batch), smoothing) for batch in batches]
            self._norms[key] = float(np.median(np.sqrt(np.mean(np.concatenate(found) ** 2, axis=1))))
        return self._norms[key]

    def asked(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return, on the device of runs, the hidden states (or token ids) of a batch of `states`, and for each record
        the position of the last token of its prompt and the number of its right answer among the options."""
        labels, records = batch["labels"], torch.arange(len(batch["labels"]))
        place = (labels != IGNORED).int().argmax(1)
        wanted = (labels[records, place][:, None] == torch.tensor(self.options)).int().argmax(1)
        states, last, wanted = (tensor.to(self.device) for tensor in (batch[STATES], place - 1, wanted))
        return states, last, wanted

    def scores(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the logits of the options for each record of a batch of `states`, shape (records, options), and the
        number of its right answer. `module` is a `Top`."""
        states, last, wanted = self.asked(batch)
        return module(states, last), wanted

    def losses(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the cross-entropy of each record's right answer over the task's answers, shape (records,)."""
        return cross_entropy(*self.scores(module, batch), reduction="none")

    def answers(self, top: Top, part: str) -> tuple[Tensor, Tensor]:
        """Return `scores` for all records of a split."""
        states = self.states(top.count)[part]
        with torch.no_grad():
            found = [self.scores(top, states[rows]) for rows in torch.split(torch.arange(len(states)), AT_ONCE)]
        scores, wanted = zip(*found, strict=True)
        return torch.cat(scores), torch.cat(wanted)

    def evaluated(self, top: Top, part: str) -> tuple[float, float]:
        """Return the accuracy, in [0, 1], and the mean loss on the records of a split."""
        scores, wanted = self.answers(top, part)
        return float((scores.argmax(1) == wanted).float().mean()), float(cross_entropy(scores, wanted))


def _as_states(records: Sequence[dict[str, Tensor]]) -> States:
    """Return the data set of these records with their token ids in the place of hidden states."""
    values = {name: torch.stack([record[name] for record in records]) for name in records[0]}
    return States(values["input_ids"], values)


def padded(
    prompter: Prompter,
    options: tuple[int, ...],
    records: Sequence[Record],
    pad: int,
    length: int,
    context: tuple[int, ...] = (),
) -> list[dict[str, Tensor]]:
    """Return for each record the token ids of its prompt and answer, padded on the right to the length of `context`
    plus `length`, with the attention mask and the labels. Only the answer has a label.

    prompter: makes prompts that leave room for an answer. options: the token of each class. pad: the token that pads.
    context: tokens that stand before every prompt.
    """
    rows, length = [], len(context) + length
    for example in prompter.examples(records):
        answer, count = options[example.label], len(context) + len(example.ids)
        ids = torch.full((length,), pad)
        ids[: count + 1] = torch.tensor([*context, *example.ids, answer])
        labels = torch.full((length,), IGNORED)
        labels[count] = answer
        rows.append({"input_ids": ids, "attention_mask": (torch.arange(length) <= count).long(), "labels": labels})
    return rows
