"""DPZero on a classifier over frozen features, for many combinations of clip, step size and update at once. It does
what `dpzero_theory.optim` does, but shares the forward passes.

The logits of a linear classifier are linear in its weights x. So one product with the batch gives the logits at x +-
lambda u_k for every direction u_k, where lambda is the smoothing. Plans that share directions, batches and noise share
those products. With a normalisation below the weights, the logits are such products divided by a norm, which is a
product, too. Directions, batches, noise, clipping to the integer lattice and updates are the library's. A run gives
what `make_from_seed_not_private` gives on the same seed, up to rounding (`tests/benchmarks/training/test_heads.py`).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.sampler import BatchesFromSeedNotPrivate
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.privacy.noise import SeededNoise


class Part(NamedTuple):
    """A set of records: their features, shape (records, width), and their classes."""

    x: Tensor
    y: Tensor


class Head(Protocol):
    """A classifier on features whose logits are computed for several sets of parameters ("settings") at once."""

    @property
    def start(self) -> Sequence[Tensor]:
        """The parameters that are trained, with their values before training."""

    def logits(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the logits, shape (settings, records, classes). parameters: tensors as in `start`, each with a
        first axis for the settings."""

    def differences(self, part: Part, parameters: Sequence[Tensor], shifts: Sequence[Tensor], rule: str) -> Tensor:
        """Return for each record and shift s by how much the record's loss f changes, shape (records, settings, K),
        where x are the parameters: f(x + s) - f(x - s) by the rule "central", f(x + s) - f(x) by "forward", and the
        derivative of f along s by "exact". Nothing is divided by the length of s. `part` has the records.

        shifts: the s as tensors like those in `start`, each with a first axis for the K directions: lambda u_k, or u_k
        for the rule "exact".
        """


class Linear(NamedTuple):
    """The classifier whose logits are scale * W x for features x. Its field `weights` is W at the start, shape
    (classes, width)."""

    weights: Tensor
    scale: float

    @property
    def start(self) -> Sequence[Tensor]:
        return (self.weights,)

    def logits(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        (weights,) = parameters
        return self.scale * (x @ weights.transpose(1, 2))

    def differences(self, part: Part, parameters: Sequence[Tensor], shifts: Sequence[Tensor], rule: str) -> Tensor:
        at, along = (self.scale * _products(part.x, weights) for (weights,) in (parameters, shifts))
        along = along.transpose(1, 2)
        right = along.gather(1, part.y.view(-1, 1, 1).expand(len(part.y), 1, along.shape[2]))
        likely = torch.exp(at - at.amax(2, keepdim=True))
        if rule == "central":
            # The loss at the logits `at` + `along`, less the loss at the logits `at` - `along`. The largest of `at` was
            # subtracted from all of them, which cancels in the difference.
            return torch.log(likely @ torch.exp(along)) - torch.log(likely @ torch.exp(-along)) - 2 * right
        likely = likely / likely.sum(2, keepdim=True)
        normal = likely @ along if rule == "exact" else torch.log1p(likely @ torch.expm1(along))
        return normal - right


class Normed(NamedTuple):
    """The classifier whose logits are scale * W h/||h|| with h = gain * x + bias for features x. Its trained parameters
    are the weights W, shape (classes, width), the bias and the gain.

    It computes what a `SentenceClassifier` does of which the last normalisation and the label vectors are trained, with
    its parameters in the same order. x is the mean over a text's tokens of the normalised states
    (`curvature.encoder.Scale`).
    """

    weights: Tensor
    bias: Tensor
    gain: Tensor
    scale: float

    @property
    def start(self) -> Sequence[Tensor]:
        return self.weights, self.bias, self.gain

    def logits(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        weights, bias, gain = parameters
        return self.scale * (normalize(_scaled(gain, bias, x), dim=-1) @ weights.transpose(1, 2))

    def differences(self, part: Part, parameters: Sequence[Tensor], shifts: Sequence[Tensor], rule: str) -> Tensor:
        """Return what `Head.differences` does, shape (records, settings, K). The points are (h + e, W + V), (h - e, W -
        V) and (h, W): here h = gain * x + bias and the weights W belong to `parameters`, and e and V are their changes
        by `shifts`.

        (h + e) (W + V) = (h W + e V) + (h V + e W) and ||h + e||^2 = (||h||^2 + ||e||^2) + 2 h e; at the other point
        the second term of each has a minus. So both points need the same products.
        """
        h, e = (_scaled(gain, bias, part.x).transpose(0, 1) for _, bias, gain in (parameters, shifts))
        w, v = parameters[0], shifts[0]
        here, length = torch.einsum("bsw,scw->bsc", h, w)[:, :, None], h.square().sum(2)[:, :, None]
        turned = _products(h, v) + _products(e, w).transpose(1, 2)
        turn = 2 * (h @ e.transpose(1, 2))
        if rule == "exact":
            moved = self.scale * (turned - here * (turn / length)[..., None] / 2) / length.sqrt()[..., None]
            likely = torch.softmax(self.scale * here / length.sqrt()[..., None], dim=3)
            return (likely * moved).sum(3) - moved.gather(3, part.y.view(-1, 1, 1, 1).expand(*turn.shape, 1))[..., 0]
        same = here + torch.einsum("bkw,kcw->bkc", e, v)[:, None]
        norms = length + e.square().sum(2)[:, None]

        def losses(logits: Tensor, norms: Tensor) -> Tensor:
            logits = self.scale * logits / torch.sqrt(norms)[..., None]
            y = part.y.view(-1, 1, 1).expand(norms.shape).flatten()
            return cross_entropy(logits.flatten(0, 2), y, reduction="none").view(norms.shape)

        other = losses(here, length) if rule == "forward" else losses(same - turned, norms - turn)
        return losses(same + turned, norms + turn) - other


class Module(nn.Module):
    """A classifier of the protocol `Head` as a torch module with one set of parameters, which starts at those of
    `start`. The library's optimiser needs a module."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head
        self.trained = nn.ParameterList(value.clone() for value in head.start)

    def forward(self, x: Tensor) -> Tensor:
        return self.head.logits([parameter[None] for parameter in self.trained], x)[0]


def train(head: Head, part: Part, plans: Sequence[Plan], seed: int) -> list[Tensor]:
    """Train the head on the records by each plan, with random numbers from the seed. Returns the trained parameters:
    tensors like those in `start`, each with a first axis for the plans. `part` has the records' features and classes.

    The plans must be of the algorithm dpzero and may differ in clip, step sizes, update and weight decay only.
    """
    plan, sizes = plans[0], tuple(parameter.numel() for parameter in head.start)
    d = sum(sizes)
    directions = Directions(seed.to_bytes(16, "little"), plan.direction)
    batches = BatchesFromSeedNotPrivate(plan.batches, plan.n, seed)
    noise, law, k = SeededNoise(seed), plan.law, plan.directions_per_step
    assert law is not None
    flat = torch.cat([parameter.flatten() for parameter in head.start]).repeat(len(plans), 1)
    kept = [[torch.zeros(d, dtype=flat.dtype) for _ in each.update_rule.kept] for each in plans]
    units = np.array([[each.unit] for each in plans])
    decays = torch.tensor([[each.weight_decay] for each in plans], dtype=flat.dtype)
    alphas = torch.tensor([[each.step_size(t) for t in range(plan.steps)] for each in plans], dtype=flat.dtype)
    for release in range(plan.steps):
        batch = torch.from_numpy(batches.draw())
        u = _directions(directions, release, k, sizes, flat.dtype)
        differences = _differences(head, Part(part.x[batch], part.y[batch]), flat, u, plan)
        drawn = law.draw(noise, plan.scale, (k,))
        sums = np.stack([each.contributions(differences[:, index], d) for index, each in enumerate(plans)]) + drawn
        moves = torch.from_numpy(units * sums / k).to(flat.dtype) @ u
        for index, each in enumerate(plans):
            if kept[index]:
                moves[index] = each.update_rule.direction(moves[index].clone(), kept[index], release)
        flat -= alphas[:, release, None] * (moves + decays * flat)
    return _parameters(head, flat)


def accuracy(head: Head, parameters: Sequence[Tensor], part: Part) -> list[float]:
    """Return for each plan the share of the records that the head classifies correctly. The parameters are tensors
    whose first axis is that of the plans. `part` has the records' features and classes."""
    return [_share(head, [each[index, None] for each in parameters], part) for index in range(len(parameters[0]))]


def _share(head: Head, parameters: Sequence[Tensor], part: Part) -> float:
    return float((head.logits(parameters, part.x)[0].argmax(dim=1) == part.y).double().mean())


def _differences(head: Head, part: Part, flat: Tensor, u: Tensor, plan: Plan) -> NDArray[np.float64]:
    """Return each record's slopes along the directions by the plan's difference rule, in float64, shape (batch,
    settings, K): a difference of losses over 2 lambda or lambda, or the derivative. flat has the parameters x of each
    setting as a row, u the K directions as rows. `part` has the records' features and classes."""
    over = plan.smoothing or 1.0
    found = head.differences(part, _parameters(head, flat), _parameters(head, over * u), plan.difference)
    values: NDArray[np.float64] = (found / ((2 if plan.difference == "central" else 1) * over)).double().numpy()
    return values


def _parameters(head: Head, rows: Tensor) -> list[Tensor]:
    """Cut rows, each of which holds all weights of the head, into the head's parameters. Returns tensors whose first
    axis is that of the rows."""
    parts = torch.split(rows, [parameter.numel() for parameter in head.start], dim=1)
    return [part.view(-1, *parameter.shape) for part, parameter in zip(parts, head.start, strict=True)]


def _scaled(gain: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """Return gain * x + bias, shape (settings, records, width)."""
    return torch.addcmul(bias[:, None], x, gain[:, None])


def _products(x: Tensor, weights: Tensor) -> Tensor:
    """Return the products of x, shape (..., width), with weights of shape (settings, classes, width), as a tensor of
    shape (..., settings, classes)."""
    return torch.unflatten(x @ weights.flatten(0, 1).T, -1, weights.shape[:2])


def _directions(directions: Directions, release: int, k: int, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return the `k` directions of the release with this number, shape (k, d). sizes: the numbers of weights of the
    parameters, whose sum is d."""
    u = torch.empty(k, sum(sizes), dtype=dtype)
    for index in range(k):
        number = release * k + index
        factor = directions.factor(number, sizes)
        for parameter, own in enumerate(torch.split(u[index], list(sizes))):
            for here, values in directions.blocks(number, parameter, 0, len(own), factor, dtype):
                own[here] = values
    return u
