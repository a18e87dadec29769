"""Runs DP-GD (gradient descent with clipped gradients and Gaussian noise) on a quadratic loss at many settings at once.

With h = A (x - center) and d_i = A (x_i - center), where A is the matrix of the loss and center its minimiser, the
gradient of sample i is h - d_i. One matrix product gives the norms ||h - d_i|| of all runs, and a second one the sums
of the clipped gradients (`clipping`). Tests compare the results with `tests.optim.reference.dpgd`, to 1e-9. Three
things save time:

- A run with ||h|| + max_i ||d_i|| <= C, its clip, clips nothing, and its mean gradient is h, without any product.
- A run with step size alpha and noise sigma that clips every sample moves by alpha C times the mean of unit vectors,
  and the noise. So runs with equal numbers of steps, alpha C and alpha sigma move together, and one stands for all
  until some ||h - d_i|| falls below another's clip: a block of steps with such a fall is repeated with runs apart.
- The products may be computed in float32, with relative errors of about 1e-7 that no cancellation enlarges.
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

# The number of steps in a block: 1 on a CPU, and 32 on a device, where the host has to wait at the end of each block
_STEPS = {"host": 1, "device": 32}


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
    """Run DP-GD on a quadratic loss at many settings of the parameters, all with the same noise.

    A step goes from x to x - alpha (m + sigma z), where alpha is the step size, m the mean over samples of the
    gradients, each clipped to the norm C, sigma the standard deviation of the noise and z the next noise vector.

    Args:
        problem: the quadratic loss.
        x0: the starting point of every run, shape (d,).
        lanes: the parameters of the runs.
        noise: a function of k that returns the next k standard normal vectors, shape (k, d).
        centers: points c, shape (d,) each. With A the loss's matrix, each c adds a row to `Outcome.gradient_squared`,
            the means of ||A (x - c)||^2 over a run's points x, and one to `Outcome.excess`, of (x - c)^T A (x - c)/2.
        dtype, device: the dtype and the device of the computation.
        product_dtype: the dtype of the matrix products by which gradients are clipped; `dtype` if None.

    Returns:
        The results of the runs, in the order of `lanes`.
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
    # Makes a step of DP-GD for each row of `z`, h <- h - alpha A (mean + std z), where h = A (x - center) is a run's
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
    # Returns for each run the index of the run that stands for it. Runs with equal numbers of steps, and equal
    # products of step size with clip and with noise, move alike as long as every sample is clipped. So the one with the
    # smallest clip stands for them; the caller makes a run its own leader when it no longer clips every sample.
    leader = np.arange(len(lanes))
    first: dict[tuple[str, ...], int] = {}
    for lane in np.argsort(lanes.clip, kind="stable"):
        alpha = lanes.step_size[lane]
        scales = (lanes.steps[lane], alpha * lanes.clip[lane], alpha * lanes.noise_std[lane])
        leader[lane] = first.setdefault(tuple(f"{scale:.12g}" for scale in scales), lane)
    return leader
