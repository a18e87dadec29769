"""The slopes u^T grad f(x; xi_i) that DPZero clips, over public directions u, beside the law of the sphere."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.curvature.intervals import Interval, mean_interval
from dpzero_theory.curvature.lanczos import Operator, random_start
from dpzero_theory.sphere import sphere_tail


@dataclass(frozen=True)
class Clipped:
    """The share of clipped slopes at one clip.

    Attributes:
        clip: C.
        measured: the share of samples with |u^T grad f_i| >= C.
        law: the share that the law of the sphere predicts.
    """

    clip: float
    measured: Interval
    law: float


def sphere_direction(d: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """A vector u uniform on the sphere of radius sqrt(d), of the dtype and device of `like`."""
    return random_start(d, generator, Operator(d, lambda v: v, like.dtype, like.device)) * math.sqrt(d)


def clipped_shares(
    slopes: Callable[[Tensor], Tensor],
    norms: Tensor,
    start: Tensor,
    clips: Sequence[float],
    directions: int,
    generator: torch.Generator,
    level: float = 0.95,
) -> tuple[list[Clipped], Tensor]:
    """Shares of samples clipped at each C, averaged over directions, and the slopes, shape (directions, n).

    The law averages P(|u^T g_i| >= C) over the samples' gradient norms; samples with zero gradient are never clipped.
    One direction is shared by all samples, so the t interval is over directions. It is too narrow for a share so small
    that most directions clip nobody.

    Args:
        slopes: u -> u^T grad f_i, or the finite differences, shape (n,).
        norms: ||g_i||, shape (n,).
        start: a vector whose shape, dtype and device u has.
        clips: C > 0.
        directions: how many u, at least 2.
        generator: a CPU generator.
        level: probability of the intervals.

    Raises:
        ValueError: an argument outside its range.
    """
    d = len(start)
    count = check.integer("directions", directions, at_least=2)
    table = torch.stack([slopes(sphere_direction(d, generator, start)) for _ in range(count)]).double().cpu()
    sizes = norms.double().cpu().numpy()
    clipped = []
    for clip in clips:
        shares = (table.abs() >= check.real("clip", clip, above=0)).double().mean(dim=1).numpy()
        law = sum(float(sphere_tail(clip, float(size), d)) for size in sizes if size > 0) / len(sizes)
        mean = mean_interval(shares, level)
        clipped.append(Clipped(clip, replace(mean, low=max(mean.low, 0.0), high=min(mean.high, 1.0)), law))
    return clipped, table
