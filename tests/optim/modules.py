"""Small modules and inputs for tests, which read their weights in many different ways."""

import torch
from torch import nn

__all__ = ["KEY", "NUMBER", "SHIFT", "Reads", "Tied", "X", "data", "dense_net", "tokens"]


KEY, NUMBER, SHIFT = 77, 9, 0.01


def data(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def tokens(high, *shape):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(1))


X = data(4, 6, 16)


class Reads(nn.Module):
    """A module whose forward is `function` of its first parameters, which have the given shapes, and x."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.w = nn.ParameterList([nn.Parameter(data(*shape)) for shape in shapes])
        self.function = function

    def forward(self, x):
        return self.function(x, *self.w)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.hidden(self.embed(ids)))


def dense_net():
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
