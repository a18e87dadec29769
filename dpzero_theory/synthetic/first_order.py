"""Runs DP-GD on the quadratic loss for many lanes, runs with one setting of the parameters each (`lanes`), at once.

With h = A (x - center) and d_i = A (x_i - center), the gradient of sample i is h - d_i, and the d_i sum to zero. All
norms ||h - d_i|| of all lanes come from one product, and the weighted sums of the d_i from a second; both are computed
for samples in blocks, which stay in the cache. The results equal those of `tests.optim.reference.dpgd` up to rounding;
tests compare them to 1e-9. The products take nearly all of the time, and three things save most of them:

- A lane with ||h|| + max_i ||d_i|| <= C clips nothing, and its mean gradient is h, without any product.
- Lanes that clip every sample move by alpha C times the mean of unit vectors. So lanes with equal T, alpha C and alpha
  sigma move together, and only one of them is computed until some ||h - d_i|| falls below another lane's C. Whether it
  has is checked after a block of steps, and the block is then repeated with the lanes that separate. On a CPU a block
  is one step; elsewhere it is 32 steps, because the host has to wait for the device at each check.
- The products may be computed in float32, with relative errors of about 1e-7 that no cancellation enlarges. Iterates
  and measurements, which add up over steps, keep their own dtype.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzero_theory.check import Array
from dpzero_theory.optim.weights.directions import whole_products
from dpzero_theory.synthetic.clipping import ClippedMean
from dpzero_theory.synthetic.engine import Outcome
from dpzero_theory.synthetic.lanes import Draw, Lanes, blocks
from dpzero_theory.synthetic.place import Place, to_numpy
from dpzero_theory.synthetic.problems import Quadratic, point_of

_STEPS = {"host": 1, "device": 32}
"""The number of steps in a block, on a CPU ("host") and elsewhere ("device"); after a block it is checked which lanes
still move together."""


@whole_products()
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
    """Run DP-GD on a quadratic loss at many settings of the parameters, the lanes, all with the same noise.

    A step goes from x to x - alpha (M + sigma z), where alpha is the step size, M the mean over samples of their
    gradients, each clipped to the norm C, sigma the noise_std and z the next row of the noise.

    Args:
        problem: the quadratic loss.
        x0: shape (d,), the start of every lane.
        lanes: the lanes' parameters.
        noise: a stream (`lanes.Draw`) of standard normal rows of length d; each lane multiplies it by its noise_std.
        centers: further points about which `Outcome` measures, after the problem's own minimiser; shape (d,) each.
        dtype, device: where and in which dtype torch computes.
        product_dtype: the dtype of the matrix products by which gradients are clipped (`ClippedMean`); `dtype` if None.

    Returns:
        The lanes' final and average iterates, and means of quadratic forms of their iterates.
    """
    start, tensor = point_of(x0, problem.d, "x0"), Place(dtype, device)
    run, _ = lanes.longest_first()
    alpha, clip, std = map(tensor, (run.step_size, run.clip, run.noise_std))
    spectrum = tensor(problem.spectrum)
    rows = tensor(problem.points) * tensor(np.sqrt(problem.spectrum))
    clipped_mean = ClippedMean(rows, product_dtype or dtype)
    h = (spectrum * tensor(start - problem.center))[:, None].repeat(1, len(lanes))
    total = torch.zeros_like(h)
    forms = torch.zeros((2, len(lanes)), dtype=dtype, device=device)
    leader, everyone = _leaders(run), np.arange(len(run))
    for begin, end in blocks(lanes.steps, _STEPS["host" if device == "cpu" else "device"]):
        live, z = int((run.steps > begin).sum()), tensor(noise(end - begin))
        while True:
            moving = np.flatnonzero(leader[:live] == everyone[:live])
            index = torch.as_tensor(moving, device=device)
            given = (values[index] for values in (alpha, clip, std))
            *states, nearest = _advance(clipped_mean, spectrum, h[:, index], z, *given)
            distance = np.zeros(live)
            distance[moving] = to_numpy(nearest)
            away = np.flatnonzero((leader != everyone)[:live] & (run.clip[:live] > distance[leader[:live]]))
            if not len(away):
                break
            for state in (h, total, forms):
                state[..., away] = state[..., leader[away]]
            leader[away] = away
        h[:, index] = states[0]
        total[:, index] += states[1]
        forms[:, index] += states[2]
    h, total, forms = (state[..., leader] for state in (h, total, forms))
    return Outcome.of(problem, lanes, centers, (h, total, forms), spectrum)


def _advance(
    clipped_mean: ClippedMean, spectrum: Tensor, here: Tensor, z: Tensor, alpha: Tensor, clip: Tensor, std: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Makes a step of DP-GD for each row of `z`, h <- h - alpha A (mean + std z), where h = A (x - center) is a lane's
    # mean gradient, and `clipped_mean` has the clipped gradients h - d_i. Returns h; the sums over the points before
    # each step of h, and of ||h||^2 and h^T A^-1 h; and the least minimum of ||h - d_i|| from `clipped_mean`.
    total, forms = torch.zeros_like(here), here.new_zeros((2, len(clip)))
    least = torch.full_like(clip, torch.inf)
    for row in z:
        mean, nearest = clipped_mean(here, clip)
        least = torch.minimum(least, nearest)
        total += here
        squares = here * here
        forms += torch.stack([squares.sum(dim=0), (1 / spectrum) @ squares])
        here = here - alpha * spectrum[:, None] * (mean + row[:, None] * std)
    return here, total, forms, least


def _leaders(lanes: Lanes) -> NDArray[np.int64]:
    # Lanes (runs) with equal numbers of steps, and equal products of step size with clip and with noise, move alike as
    # long as every sample is clipped. So the one with the smallest clip is computed in the place of the others; the
    # caller makes a lane its own leader when a sample is no longer clipped with the lane's clip.
    leader = np.arange(len(lanes))
    first: dict[tuple[str, ...], int] = {}
    for lane in np.argsort(lanes.clip, kind="stable"):
        alpha = lanes.step_size[lane]
        scales = (lanes.steps[lane], alpha * lanes.clip[lane], alpha * lanes.noise_std[lane])
        leader[lane] = first.setdefault(tuple(f"{scale:.12g}" for scale in scales), lane)
    return leader
