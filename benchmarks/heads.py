"""DPZero on a linear head over frozen features, many settings at once: what `optim` does, without its forwards.

The logits of a head are linear in its weights, so that one product with the batch gives all of them at x +- lambda u_k
for every direction, and settings that share directions, batches and noise share those products. Directions, batches,
noise, clipping on the lattice and updates are the library's; a run is that of `make_from_seed_not_private` on the same
seed up to rounding (`tests/benchmarks/test_heads.py`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzero_theory.optim.directions import Directions
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.sampler import BatchesFromSeedNotPrivate
from dpzero_theory.privacy.noise import SeededNoise

__all__ = ["Head", "Part", "accuracy", "train"]


class Part(NamedTuple):
    """Records: features of shape (records, width) and classes."""

    x: Tensor
    y: Tensor


class Head(NamedTuple):
    """Logits scale * W x, with the weights W of shape (classes, width) at the start."""

    weights: Tensor
    scale: float


def train(head: Head, part: Part, plans: Sequence[Plan], seed: int) -> Tensor:
    """The trained weights of each plan, shape (plans, classes, width).

    plans: of dpzero; they may differ in clip, step sizes, update and weight decay, and in nothing else.
    """
    plan, d = plans[0], head.weights.numel()
    directions = Directions(seed.to_bytes(16, "little"), plan.direction)
    batches = BatchesFromSeedNotPrivate(plan.sampling, plan.n, plan.sample_rate, seed)
    noise, law, k = SeededNoise(seed), plan.law, plan.directions_per_step
    assert law is not None
    flat = head.weights.reshape(1, d).repeat(len(plans), 1)
    kept = [[torch.zeros(d, dtype=flat.dtype) for _ in each.update_rule.kept] for each in plans]
    units = np.array([[each.unit] for each in plans])
    decays = torch.tensor([[each.weight_decay] for each in plans], dtype=flat.dtype)
    alphas = torch.tensor([[each.step_size(t) for t in range(plan.steps)] for each in plans], dtype=flat.dtype)
    for release in range(plan.steps):
        batch = torch.from_numpy(batches.draw())
        u = _directions(directions, release, k, d, flat.dtype)
        differences = _differences(head, Part(part.x[batch], part.y[batch]), flat, u, plan.smoothing)
        drawn = law.draw(noise, plan.scale, (k,))
        sums = np.stack([each.contributions(differences[:, index], d) for index, each in enumerate(plans)]) + drawn
        moves = torch.from_numpy(units * sums / k).to(flat.dtype) @ u
        for index, each in enumerate(plans):
            if kept[index]:
                moves[index] = each.update_rule.direction(moves[index].clone(), kept[index], release)
        flat -= alphas[:, release, None] * (moves + decays * flat)
    return flat.view(len(plans), *head.weights.shape)


def accuracy(head: Head, weights: Tensor, part: Part) -> list[float]:
    """Of each of the plans' weights."""
    found = (part.x @ weights.transpose(1, 2)).argmax(dim=2) == part.y
    return [float(value) for value in found.double().mean(dim=1)]


def _directions(directions: Directions, release: int, k: int, d: int, dtype: torch.dtype) -> Tensor:
    """u_k of a release, shape (K, d)."""
    u = torch.empty(k, d, dtype=dtype)
    for index in range(k):
        number = release * k + index
        for here, values in directions.blocks(number, 0, 0, d, directions.factor(number, (d,)), dtype):
            u[index, here] = values
    return u


def _differences(head: Head, part: Part, flat: Tensor, u: Tensor, smoothing: float) -> NDArray[np.float64]:
    """(f(x + lambda u_k) - f(x - lambda u_k))/(2 lambda), shape (batch, settings, K)."""
    classes, width = head.weights.shape
    size, settings, k = len(part.y), len(flat), len(u)
    at = head.scale * (part.x @ flat.view(-1, width).T).view(size, settings, classes)
    along = smoothing * head.scale * (part.x @ u.view(-1, width).T).view(size, k, classes).transpose(1, 2)
    likely = torch.exp(at - at.amax(2, keepdim=True))  # log sum_c exp(at_c +- along_c), but for what is common to both
    normal = torch.log(likely @ torch.exp(along)) - torch.log(likely @ torch.exp(-along))
    slope = 2 * along.gather(1, part.y.view(-1, 1, 1).expand(size, 1, k))
    found: NDArray[np.float64] = ((normal - slope) / (2 * smoothing)).double().numpy()
    return found
