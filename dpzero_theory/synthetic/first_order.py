"""DP-GD sweeps on the quadratic: two matrix products a step for the lanes that clip, none for those that cannot.

With h = A (x - center) and d_i = A (x_i - center) the gradient of sample i is h - d_i, and the d_i sum to zero.
All norms ||h - d_i|| of all lanes come from one product, the weighted sums of the d_i from a second; both are made
of samples in blocks that stay in the cache. A lane with ||h|| + max_i ||d_i|| <= C clips nothing, and its mean
gradient is h. Equal to `dpzero_theory.optim.reference.dpgd` up to rounding: the tests hold it to 1e-9.

The products are nearly all of the time. In float32 they take a third of it and err by about 1e-7 of a gradient, which
no difference of close numbers magnifies; what adds up over steps, the iterates and measurements, keeps its dtype.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dpzero_theory import check
from dpzero_theory.synthetic.engine import Outcome
from dpzero_theory.synthetic.lanes import Draw, Lanes
from dpzero_theory.synthetic.problems import Quadratic

__all__ = ["dpgd"]

Array = NDArray[np.float64]
Tensor = torch.Tensor

SAMPLES = 512
"""Samples in a block."""


def dpgd(
    problem: Quadratic,
    x0: Array,
    lanes: Lanes,
    *,
    noise: Draw,
    centers: Sequence[Array] = (),
    dtype: torch.dtype = torch.float64,
    product_dtype: torch.dtype | None = None,
    device: str = "cpu",
) -> Outcome:
    """Run DP-GD on every lane, all with the same standard noise.

    Args:
        problem: the quadratic loss; x0: shape (d,), every lane's start.
        noise: stream of standard normal rows of length d, which each lane multiplies by its noise_std.
        centers: where `Outcome` measures after the problem's own minimiser; shape (d,) each.
        dtype, device: of the computation, on torch.
        product_dtype: of the products with the samples, if not dtype.
    """
    start = check.real_array("x0", x0)
    if start.shape != (problem.d,):
        raise ValueError(f"x0 must have shape (d,) = ({problem.d},); got {start.shape}")
    order = np.argsort(-lanes.steps, kind="stable")
    run = lanes.take(order)

    def tensor(values: NDArray[np.generic]) -> Tensor:
        return torch.as_tensor(values, dtype=dtype, device=device)

    alpha, clip, std = map(tensor, (run.step_size, run.clip, run.noise_std))
    spectrum, origin = tensor(problem.spectrum), tensor(problem.center)
    rows = tensor(problem.points) * tensor(np.sqrt(problem.spectrum))
    clipped_mean = _ClippedMean(rows, product_dtype or dtype)
    targets = torch.stack([spectrum * (tensor(c) - origin) for c in (problem.center, *centers)])
    h = (spectrum * (tensor(start) - origin))[:, None].repeat(1, len(lanes))
    total = torch.zeros_like(h)
    forms = torch.zeros((2, len(targets), len(lanes)), dtype=dtype, device=device)
    for t in range(int(run.steps[0])):
        live = int((run.steps > t).sum())
        here = h[:, :live]
        total[:, :live] += here
        forms[0, :, :live] += _squares(here, targets)
        forms[1, :, :live] += _squares(here, targets, 1 / spectrum)
        mean = clipped_mean(here, clip[:live])
        push = tensor(noise(1)[0])[:, None] * std[:live]
        here -= alpha[:live] * spectrum[:, None] * (mean + push)

    steps = tensor(run.steps)
    back = np.argsort(order, kind="stable")

    def points_of(columns: Tensor) -> Array:
        return _numpy((columns / spectrum[:, None] + origin[:, None]).T)[back]

    means = _numpy(forms / steps)[:, :, back]
    return Outcome(points_of(h), points_of(total / steps), means[0], means[1] / 2)


class _ClippedMean:
    """(1/n) sum_i clip_C(h - d_i) for each column h; rows: d_i, shape (n, d), which sum to zero."""

    def __init__(self, rows: Tensor, dtype: torch.dtype) -> None:
        squares = rows.square().sum(dim=1)
        self.largest = squares.max().sqrt()
        self.rows = rows.to(dtype)
        pieces = torch.split(self.rows, SAMPLES), torch.split(squares.to(dtype), SAMPLES)
        self.blocks = list(zip(*pieces, strict=True))

    def __call__(self, h: Tensor, clip: Tensor) -> Tensor:
        size = h.square().sum(dim=0)
        clips = (size.sqrt() + self.largest > clip).nonzero()[:, 0]
        mean = h.clone()
        if len(clips):
            some = h[:, clips]
            point, bound, square = (value.to(self.rows.dtype) for value in (some, clip[clips], size[clips]))
            pull, total = torch.zeros_like(point), torch.zeros_like(bound)
            for rows, squares in self.blocks:
                norms = (rows @ point).mul_(-2).add_(squares[:, None]).add_(square).clamp_(min=0).sqrt_()
                weights = (bound / norms).clamp_(max=1)
                pull.addmm_(rows.T, weights)
                total += weights.sum(dim=0)
            mean[:, clips] = (total.to(h.dtype) * some - pull) / len(self.rows)
        return mean


def _squares(h: Tensor, targets: Tensor, metric: Tensor | None = None) -> Tensor:
    """||h - t||^2, in the diagonal metric if given, for each target row t and column h."""
    scaled = h if metric is None else h * metric[:, None]
    aimed = targets if metric is None else targets * metric
    return (scaled * h).sum(dim=0) - 2 * (targets @ scaled) + (aimed * targets).sum(dim=1)[:, None]


def _numpy(values: Tensor) -> Array:
    return values.cpu().numpy().astype(np.float64)
