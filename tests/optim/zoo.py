"""A collection of modules and losses that mix records (`COUPLED`), and of some that do not (`SOUND`)."""

import math
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, default_collate

N, D, WORDS, LONGEST = 48, 8, 30, 12
Losses = Callable[[nn.Module, Any], Tensor]


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


X, Y = numbers(N, D), torch.arange(N) % 3
TABLE = TensorDataset(X, Y)
IMAGES = TensorDataset(numbers(N, 2, 6, 6), Y)
SEQUENCES = TensorDataset(numbers(N, 5, D), Y)


class Texts(Dataset[Any]):
    """A data set of texts of `shortest` (3 by default) to 12 words, of which the first word says the class."""

    def __init__(self, shortest: int = 3) -> None:
        draw = torch.Generator().manual_seed(2)
        lengths = torch.randint(shortest, LONGEST + 1, (N,), generator=draw).tolist()
        self.words = [torch.randint(1, WORDS, (length,), generator=draw) for length in lengths]

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return self.words[index], self.words[index][0] % 3


class Jittered(Dataset[Any]):
    """A data set whose records have other noise, of size `by`, each time they are read."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return X[index] + self.by * torch.randn(D), Y[index]


class FromTheSystem(Dataset[Any]):
    """A data set whose records are different each time they are read, whatever the seeds of the random generators."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return X[index] + int.from_bytes(os.urandom(2), "big") / 2**16, Y[index]


class Together(Dataset[Any]):
    """A data set that reads many records of another data set at a time and changes them together.

    `datasets.Dataset.set_transform` does that. `rows` is the other data set, and `change` changes a list of records.
    """

    def __init__(self, rows: Any, change: Callable[[list[Any]], list[Any]]) -> None:
        self.rows, self.change = rows, change

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.change([self.rows[index]])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return self.change([self.rows[i] for i in indices])


class CenteredTable(TensorDataset):
    """A data set of tensors that is indexed by a whole batch at once, and centres the records by it."""

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return (x - x.mean(0) if x.ndim > 1 else x), y


class Stateful(Dataset[Any]):
    """A data set whose records depend on what was read before.

    A record is change(record, how often it was read before, the record read before it).
    """

    def __init__(self, change: Callable[[Tensor, int, Tensor], Tensor]) -> None:
        self.change, self.read, self.last = change, [0] * N, torch.zeros(D)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        found = self.change(X[index], self.read[index], self.last)
        self.last = X[index]
        self.read[index] += 1
        return found, Y[index]


def centred(records: list[Any]) -> list[Any]:
    mean = torch.stack([x for x, _ in records]).mean(0)
    return [(x - mean, y) for x, y in records]


def sorted_by_length(records: list[Any]) -> list[Any]:
    return sorted(records, key=lambda record: len(record[0]))


def padded(records: Any) -> tuple[Tensor, Tensor, Tensor]:
    words, labels = zip(*records, strict=True)
    ids = nn.utils.rnn.pad_sequence(words, batch_first=True)
    return ids, ids > 0, torch.stack(labels)


def cross_entropy(module: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(module(batch[0]), batch[1], reduction="none")


def net(*layers: nn.Module, width: int = D) -> nn.Sequential:
    return nn.Sequential(*layers, nn.Linear(width, 3))


def after(change: Callable[[Tensor], Tensor]) -> Losses:
    """Returns losses that are `change` of the cross-entropies of a batch."""
    return lambda module, batch: change(cross_entropy(module, batch))


def between(change: Callable[[Tensor], Tensor]) -> Losses:
    """Returns losses that are cross-entropies of logits changed by `change`."""
    return lambda module, batch: F.cross_entropy(change(module(batch[0])), batch[1], reduction="none")


def contrast(module: nn.Module, batch: Any) -> Tensor:
    """Contrastive losses of a batch, in which the other records are each record's negatives."""
    z = F.normalize(module(batch[0]), dim=1)
    return F.cross_entropy(z @ F.normalize(batch[0][:, :3], dim=1).T, torch.arange(len(z)), reduction="none")


def in_training(module: nn.Module, batch: Any) -> Tensor:
    module.train()
    try:
        return cross_entropy(module, batch)
    finally:
        module.eval()


def counting(rate: float) -> Losses:
    calls = count()
    return lambda module, batch: cross_entropy(module, batch) * (1 + rate * next(calls))


def running_average() -> Losses:
    state = [torch.zeros(3)]

    def losses(module: nn.Module, batch: Any) -> Tensor:
        logits = module(batch[0])
        state[0] = 0.99 * state[0] + 0.01 * logits.mean(0)
        return F.cross_entropy(logits - state[0], batch[1], reduction="none")

    return losses


def only_shifted(module: nn.Module, batch: Any) -> Tensor:
    """Losses that mix the records of a batch only where the weights are not the initial, zero ones."""
    found, weight = cross_entropy(module, batch), module[-1].weight  # type: ignore[index]
    return found + 0.01 * batch[0].mean() * (weight.sum() != 0)


def only_on_side(side: int) -> Losses:
    """Returns losses that mix records only at one of the two points of a step.

    It is the point at which a bias, which is 0 at first, has the sign `side`.
    """

    def losses(module: nn.Module, batch: Any) -> Tensor:
        found, bias = cross_entropy(module, batch), module[-1].bias  # type: ignore[index]
        # Since the weights are nearly 0, all losses are nearly equal, and their mean could be the same for other
        # records; the mean of the inputs is not.
        return found + 0.01 * batch[0].mean() * (side * bias[0] > 0)

    return losses


def autocast(module: nn.Module, batch: Any) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = module(batch[0])
    return F.cross_entropy(logits.float(), batch[1], reduction="none")


def in_place(module: nn.Module, batch: Any) -> Tensor:
    found = cross_entropy(module, batch)
    batch[0].mul_(1.5)
    return found


def text_losses(module: nn.Module, batch: Any) -> Tensor:
    ids, mask, labels = batch
    return F.cross_entropy(module(ids, mask), labels, reduction="none")


class Pooled(nn.Module):
    """A classifier of texts by the mean of their words' embeddings.

    If `masked`, padding is left out of the mean.
    """

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        self.words, self.head, self.masked = nn.Embedding(WORDS, 8), nn.Linear(8, 3), masked

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        found = self.words(ids)
        if self.masked:
            return self.head((found * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        return self.head(found.mean(1))


class Attention(nn.Module):
    """A classifier of texts with one attention layer; the mask is left out where a batch has no padding.

    transformers does that. If not `masked`, there is never a mask.
    """

    def __init__(self, *, masked: bool = True) -> None:
        super().__init__()
        self.words, self.inside, self.head, self.masked = (
            nn.Embedding(WORDS, 8),
            nn.Linear(8, 24),
            nn.Linear(8, 3),
            masked,
        )

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.inside(self.words(ids)).chunk(3, dim=-1)
        allowed = None if not self.masked or mask.all() else mask[:, None, :].expand(-1, ids.shape[1], -1)
        return self.head(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)[:, 0])


class Encoder(nn.Module):
    """A classifier of texts with PyTorch's own transformer layers.

    If `nested`, they take their fused path over nested tensors.
    """

    def __init__(self, *, nested: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, 3)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.layers(self.words(ids), src_key_padding_mask=~mask)[:, 0])


class Recurrent(nn.Module):
    def __init__(self, *, kept: bool) -> None:
        super().__init__()
        self.body, self.head, self.kept = nn.GRU(D, 8, batch_first=True), nn.Linear(8, 3), kept
        self.state = torch.zeros(1, 1, 8)

    def forward(self, x: Tensor) -> Tensor:
        state = self.state.expand(1, len(x), 8).contiguous() if self.kept else None
        found = self.body(x, state)[1]
        self.state = found.mean(1, keepdim=True)
        return self.head(found[0])


class Experts(nn.Module):
    """A module that sends each record to one of two experts.

    Each expert takes at most `capacity` records; those that come later go to none.
    """

    def __init__(self, capacity: int = N) -> None:
        super().__init__()
        self.route, self.capacity = nn.Linear(D, 2), capacity
        self.experts = nn.ModuleList([nn.Linear(D, 3), nn.Linear(D, 3)])

    def forward(self, x: Tensor) -> Tensor:
        weights = self.route(x).softmax(1)
        out = x.new_zeros(len(x), 3)
        for index, expert in enumerate(self.experts):
            mine = torch.where(weights.argmax(1) == index)[0][: self.capacity]
            out[mine] = expert(x[mine]) * weights[mine, index, None]
        return out


class Cached(nn.Module):
    """A module with a table that is made at the first evaluation and stays."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(D))
        self.layer = nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not self.table.any():
            self.table.copy_(torch.linspace(0.5, 1.5, D))
        return self.layer(x * self.table)


def still(module: nn.Module) -> nn.Module:
    """Sets all weights and biases of the module to 0 and returns it."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


def per_tensor(x: Tensor) -> Tensor:
    """Rounds numbers to 8 bits in a unit that follows from the largest entry of the whole batch."""
    unit = x.abs().max() / 127
    return (x / unit).round() * unit


Case = tuple[Callable[[], nn.Module], Losses, Any, Any]


def table(layers: Callable[[], nn.Module] = lambda: net(), losses: Losses = cross_entropy, data: Any = TABLE) -> Case:
    return layers, losses, data, None


def text(module: Callable[[], nn.Module], collate: Any = padded, shortest: int = 3) -> Case:
    return module, text_losses, Texts(shortest), collate


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.forward = function  # type: ignore[method-assign]


COUPLED: dict[str, Case] = {
    "in-batch negatives": table(losses=contrast),
    "losses centred by the batch": table(losses=after(lambda v: v - v.mean())),
    "a batch norm that is always training": table(
        lambda: net(Apply(lambda x: F.batch_norm(x, None, None, training=True)))
    ),
    "batch norm put into training": table(lambda: net(nn.BatchNorm1d(D)), in_training),
    "layer norm over the batch": table(losses=between(lambda z: F.layer_norm(z, z.shape))),
    "dropout that stays on": table(lambda: net(Apply(lambda x: F.dropout(x, 0.2, training=True)))),
    "noise from the global generator": table(losses=after(lambda v: v + 1e-3 * torch.rand_like(v))),
    "noise from a fixed seed, by place": table(
        losses=after(lambda v: v + 1e-2 * torch.rand(len(v), generator=torch.Generator().manual_seed(0)))
    ),
    "8 bits by the largest of the batch": table(lambda: net(Apply(per_tensor))),
    "sums over the batch so far": table(losses=after(lambda v: v.cumsum(0))),
    "top k": table(losses=after(lambda v: torch.zeros_like(v).scatter(0, *reversed(v.topk(min(len(v), 4)))))),
    "by the batch's size": table(losses=after(lambda v: v / len(v))),
    "by the place in the batch": table(losses=after(lambda v: v * (1 + 0.01 * torch.arange(len(v))))),
    "by whether it is alone": table(losses=after(lambda v: v * (1.0 if len(v) > 1 else 1.1))),
    "a millionth of the mean": table(losses=after(lambda v: v + 1e-6 * v.mean())),
    "calls are counted": table(losses=counting(1e-3)),
    "a running average": table(losses=running_average()),
    "a recurrent state that is kept": table(lambda: Recurrent(kept=True), data=SEQUENCES),
    "only at shifted weights": table(lambda: net(Apply(lambda x: x)), only_shifted),
    "only at one of the points": table(lambda: still(net()), only_on_side(1)),
    "a batch changed in place": table(losses=in_place),
    "compiled": table(lambda: torch.compile(net(Apply(lambda x: x - x.mean(0))), backend="eager")),
    "experts of limited capacity": table(lambda: Experts(capacity=4)),
    "padding in the mean": text(lambda: Pooled(masked=False)),
    "not a number where one is large": table(losses=after(lambda v: v * (math.nan if (v > 2.2).any() else 1))),
    "sorted by collate": text(lambda: Pooled(masked=True), lambda records: padded(sorted_by_length(records))),
    "centred by collate": (net, cross_entropy, TABLE, lambda records: default_collate(centred(records))),
    "records that are others every second time": table(data=Stateful(lambda x, times, last: x + times % 2)),
    "records that have something of the one before": table(data=Stateful(lambda x, times, last: x - 0.1 * last)),
    "a data set that draws from the system": table(data=FromTheSystem()),
    "a collate function that draws": (
        net,
        cross_entropy,
        Jittered(0),
        lambda records: default_collate([(x + 0.1 * torch.randn(D), y) for x, y in records]),
    ),
}

SOUND: dict[str, Case] = {
    "linear": table(),
    "float64": table(lambda: net(nn.Linear(D, D)).double(), lambda m, b: cross_entropy(m, (b[0].double(), b[1]))),
    "bfloat16": table(
        lambda: net(nn.Linear(D, D), nn.GELU()).bfloat16(),
        lambda m, b: F.cross_entropy(m(b[0].bfloat16()).float(), b[1], reduction="none"),
    ),
    "autocast": table(lambda: net(nn.Linear(D, D), nn.GELU()), autocast),
    "batch norm": table(lambda: net(nn.BatchNorm1d(D))),
    "layer norm": table(lambda: net(nn.Linear(D, D), nn.LayerNorm(D), nn.GELU())),
    "group norm": table(lambda: net(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), width=64), data=IMAGES),
    "instance norm with running statistics": table(
        lambda: net(nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten(), width=72), data=IMAGES
    ),
    "dropout": table(lambda: net(nn.Linear(D, D), nn.Dropout(0.5))),
    "spectral norm": table(lambda: net(nn.utils.parametrizations.spectral_norm(nn.Linear(D, D)))),
    "small losses": table(losses=after(lambda v: 1e-6 * v)),
    "losses near 0": table(
        losses=lambda m, b: F.cross_entropy(m(b[0]) + 10 * F.one_hot(b[1], 3), b[1], reduction="none")
    ),
    "not a number here and there": table(
        losses=after(lambda v: torch.where(v > 1.8, math.nan, torch.where(v < 0.6, math.inf, v)))
    ),
    "sorted inside a record": table(lambda: net(Apply(lambda x: x.sort(1).values))),
    "a table made once": table(Cached),
    "a recurrent network": table(lambda: Recurrent(kept=False), data=SEQUENCES),
    "experts": table(Experts),
    "compiled": table(lambda: torch.compile(net(nn.Linear(D, D), nn.Tanh()), backend="eager")),
    "masked mean": text(lambda: Pooled(masked=True)),
    "masked attention": text(Attention),
    "masked attention, hardly any padding": text(Attention, shortest=LONGEST - 1),
    "an encoder": text(lambda: Encoder(nested=False)),
    "an encoder over nested tensors": text(lambda: Encoder(nested=True)),
    "a data set that draws": table(data=Jittered(0.1)),
    "a data set that would centre a batch as it is read": table(data=Together(TABLE, centred)),
    "tensors that would be centred as they are read": table(data=CenteredTable(X, Y)),
}
