"""Computes the mean of clipped vectors (gradients, or the K differences of a step) for many settings at once.

A setting of the parameters of an algorithm, such as a clip and a step size, is called a lane (see `lanes`).
"""

from collections.abc import Callable

import torch
from torch import Tensor

_SAMPLES = 512
"""On a CPU, samples are processed in blocks of this many, which stay in its cache."""
_FEW = 24
"""With fewer lanes (settings of the parameters) than this, products are computed with each lane's numbers contiguous in
memory, which is then 2 to 3 times as fast.
"""


def _hard(q: Tensor) -> Tensor:
    return q.clamp_(min=1).rsqrt_()


class ClippedMean:
    """Computes the clipped mean (1/n) sum_i clip_C(h - d_i) for each of L lanes, of which each has its own h and C.

    A lane is one setting of an algorithm's parameters, and the d_i are vectors of n samples. Called with h, shape (d,
    L), and C, shape (L,), it returns the means, shape (d, L), and min_i ||h - d_i||, shape (L,). On a CPU a lane with
    ||h|| + max_i ||d_i|| <= C, where no sample can be clipped, gets h as its mean and 0 in place of the minimum.

    For sample i the row (d_i, ||d_i||^2, 1) is stored. Its product with (-2 h, 1, ||h||^2)/C^2 is q = ||h -
    d_i||^2/C^2, and the sum of the rows with the clip factors min(1, q^(-1/2)) also contains the sum of the factors.

    Args:
        rows: the d_i, shape (n, d), which must sum to zero.
        dtype: of the products.
        weight: another function of q in place of the clip factor; it may work in place.
    """

    def __init__(self, rows: Tensor, dtype: torch.dtype, weight: Callable[[Tensor], Tensor] = _hard) -> None:
        squares = rows.square().sum(dim=1, keepdim=True)
        self.largest = squares.max().sqrt()
        self.rows = torch.cat([rows, squares, torch.ones_like(squares)], dim=1).to(dtype)
        self.blocks = torch.split(self.rows, _SAMPLES if rows.device.type == "cpu" else len(rows))
        self.weight = weight

    def __call__(self, h: Tensor, clip: Tensor) -> tuple[Tensor, Tensor]:
        size = h.square().sum(dim=0)
        if (
            h.device.type != "cpu"
        ):  # All lanes are computed: to find those that clip nothing, the host would have to wait for the device.
            return self._all(h, clip, size)
        clips = (size.sqrt() + self.largest > clip).nonzero()[:, 0]
        mean, nearest = h.clone(), torch.zeros_like(clip)
        if len(clips):
            mean[:, clips], nearest[clips] = self._all(h[:, clips], clip[clips], size[clips])
        return mean, nearest

    def _all(self, h: Tensor, clip: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means of the clipped h - d_i over the samples, shape (d, L), and min_i ||h - d_i||, shape (L,).

        Calling the object returns the same, except that on a CPU it saves this computation for the lanes in which no
        sample can be clipped. `h` are the vectors of the L lanes (settings of the parameters), shape (d, L), `clip`
        their clips C and `size` the ||h||^2, both of shape (L,).
        """
        total, rows, least = self.weighted(h, clip, size)
        return (total * h - rows) / len(self.rows), clip * least.clamp(min=0).sqrt().to(clip.dtype)

    def weighted(self, h: Tensor, clip: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns, for each lane, what the clipped mean and the smallest ||h - d_i|| follow from.

        It is the sum over the samples of the clip factors, shape (L,), the sum of the factor times d_i, shape (d, L),
        and the least q = ||h - d_i||^2/C^2 of a sample, shape (L,). The d_i are the rows that the class was given; the
        clip factor is its `weight` of q, by default min(1, C/||h - d_i||).

        `h` has a vector h for each lane, shape (d, L), `clip` the lanes' clips C and `size` the ||h||^2, both of shape
        (L,).
        """
        point = (torch.cat([-2 * h, torch.ones_like(size[None]), size[None]]) / clip.square()).to(self.rows.dtype)
        few = len(clip) < _FEW
        if few:
            point = point.T.contiguous().T
        total, least = torch.zeros_like(point), torch.full_like(clip, torch.inf, dtype=point.dtype)
        for rows in self.blocks:
            q = (point.T @ rows.T).T if few else rows @ point
            least = torch.minimum(least, q.amin(dim=0))
            total.addmm_(rows.T, self.weight(q))
        return total[-1].to(h.dtype), total[:-2], least
