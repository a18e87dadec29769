"""Measures how often DPZero clips: how large the slopes u^T grad f(x; xi_i) are along random directions u.

The shares of clipped slopes are compared with those that follow from gradient norms and the uniform law of u.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import betaincc
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.curvature.intervals import Interval, mean_interval
from dpzero_theory.curvature.lanczos import random_start


@dataclass(frozen=True)
class Clipped:
    """The share of samples that a clip C clips along random directions u.

    Attributes:
        clip: C, in the unit of a gradient norm.
        measured: the share of samples with |u^T grad f_i| >= C, on average over u, where f_i is the loss of sample i.
        law: the share that is expected from the gradient norms alone, for u uniform on the sphere of radius sqrt(d).
    """

    clip: float
    measured: Interval
    law: float


def clipped_shares(
    slopes: Callable[[Tensor], Tensor],
    norms: Tensor,
    start: Tensor,
    clips: Sequence[float],
    directions: int,
    generator: torch.Generator,
    level: float = 0.95,
) -> tuple[list[Clipped], Tensor]:
    """Returns the share of samples clipped at each clip C, averaged over random directions u, and all slopes u^T g_i.

    Here g_i is the gradient of sample i. The slopes have shape (directions, n). All samples share a direction, so the t
    interval is over directions. It is too narrow for a share so small that most directions clip nobody. Samples with
    zero gradient are never clipped.

    Args:
        slopes: a function of u that returns u^T g_i for each sample, or finite differences, shape (n,).
        norms: ||g_i||, shape (n,).
        start: a vector with the shape, dtype and device that u has.
        clips: the values of C > 0.
        directions: how many directions u are drawn, at least 2.
        generator: a CPU generator, which draws them.
        level: the coverage probability of the intervals.

    Raises:
        ValueError: an argument outside its range.
    """
    d = len(start)
    count = check.integer("directions", directions, at_least=2)
    table = torch.stack([slopes(math.sqrt(d) * random_start(d, generator, start)) for _ in range(count)]).double().cpu()
    sizes = norms.double().cpu().numpy()
    clipped = []
    for clip in clips:
        shares = (table.abs() >= check.real("clip", clip, above=0)).double().mean(dim=1).numpy()
        law = float(np.mean(_tail(clip, sizes, d)))
        mean = mean_interval(shares, level)
        clipped.append(Clipped(clip, replace(mean, low=max(mean.low, 0.0), high=min(mean.high, 1.0)), law))
    return clipped, table


def _tail(clip: float, sizes: Array, d: int) -> Array:
    """Returns P(|u^T a| >= clip) for vectors a of the lengths `sizes` and u uniform on the sphere of radius sqrt(d).

    By symmetry it is P(|u_1| >= clip/||a||), with u_1^2/d ~ Beta(1/2, (d-1)/2); for d = 1 always u_1^2 = 1.
    """
    if d == 1:
        return (sizes >= clip).astype(np.float64)
    with np.errstate(divide="ignore"):
        share = np.minimum((clip / sizes) ** 2 / d, 1.0)
    return np.asarray(betaincc(0.5, (d - 1) / 2, share))
