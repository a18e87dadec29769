"""Computes the mean of clipped vectors (gradients, or the K differences of a step) for many lanes at once.

A lane is a run with one setting of an algorithm's parameters, such as its clip (`lanes`).
"""

import torch
from torch import Tensor

_SAMPLES = 512
"""On a CPU, samples are processed in blocks of this many, which stay in its cache."""
_FEW = 24
"""With fewer lanes than this, products are computed with each lane's numbers contiguous in memory, which is then 2 to 3
times as fast."""


class ClippedMean:
    """Computes the clipped mean (1/n) sum_i clip_C(h - d_i) for each of L lanes, each with an h and a C of its own.

    A lane is a run with one setting of the parameters. The d_i are vectors of n samples, and clip_C shortens a vector
    to norm C if it is longer. Called with h, shape (d, L), and C, shape (L,), the object returns the means, shape (d,
    L), and min_i ||h - d_i||, shape (L,), in the dtypes of h and C. On a CPU a lane with ||h|| + max_i ||d_i|| <= C,
    where no sample can be clipped, gets h as its mean and 0 in place of the minimum.

    Args:
        rows: the d_i, shape (n, d), which must sum to zero.
        dtype: the dtype of the matrix products of the d_i with h and with the factors by which they are clipped.
    """

    def __init__(self, rows: Tensor, dtype: torch.dtype) -> None:
        # With these rows one matrix product gives all q = ||h - d_i||^2/C^2, as (d_i, ||d_i||^2, 1) times
        # (-2 h, 1, ||h||^2)/C^2 is q. A second one gives both sums of a mean: the last entry of the sum of factor times
        # row is the sum of the factors.
        squares = rows.square().sum(dim=1, keepdim=True)
        self.largest = squares.max().sqrt()
        self.rows = torch.cat([rows, squares, torch.ones_like(squares)], dim=1).to(dtype)
        self.blocks = torch.split(self.rows, _SAMPLES if rows.device.type == "cpu" else len(rows))

    def __call__(self, h: Tensor, clip: Tensor) -> tuple[Tensor, Tensor]:
        size = h.square().sum(dim=0)
        if h.device.type != "cpu":  # Looking for lanes that clip nothing would make the host wait for the GPU.
            return self._all(h, clip, size)
        clips = (size.sqrt() + self.largest > clip).nonzero()[:, 0]
        mean, nearest = h.clone(), torch.zeros_like(clip)
        if len(clips):
            mean[:, clips], nearest[clips] = self._all(h[:, clips], clip[clips], size[clips])
        return mean, nearest

    def _all(self, h: Tensor, clip: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        # The results of `__call__`, by products for every lane, whether it clips a sample or not
        point = (torch.cat([-2 * h, torch.ones_like(size[None]), size[None]]) / clip.square()).to(self.rows.dtype)
        few = len(clip) < _FEW
        if few:
            point = point.T.contiguous().T
        total, least = torch.zeros_like(point), torch.full_like(clip, torch.inf, dtype=point.dtype)
        for rows in self.blocks:
            q = (point.T @ rows.T).T if few else rows @ point
            least = torch.minimum(least, q.amin(dim=0))
            total.addmm_(rows.T, q.clamp_(min=1).rsqrt_())  # factors min(1, q^(-1/2)), by which h - d_i is clipped to C
        mean = (total[-1].to(h.dtype) * h - total[:-2]) / len(self.rows)
        return mean, clip * least.clamp(min=0).sqrt().to(clip.dtype)
