"""The zeroth-order methods on the quadratic as the number of steps T goes to infinity with alpha T fixed, where alpha
is the step size.

Let x_i be the n samples, A the Hessian, g_i = A (x - x_i) the gradient of sample i, C the clip, and s = alpha T. With
Gaussian directions u, E[u clip_C(u^T g_i)] = erf(C/(sqrt(2) ||g_i||)) g_i, and the variance from the directions
themselves, about alpha times the motion, disappears. The noise is the sum of T steps of size alpha sigma, which grows
like sqrt(T) alpha sigma = 2 C s/(n mu) in every direction. Calibration of sigma to mu-GDP makes it independent of T. So
x follows

    dx = -(1/n) sum_i erf(C/(sqrt(2) ||g_i||)) g_i dt + (noise/sqrt(s)) dW,    0 <= t <= s,

with noise = sqrt(T) alpha sigma and a Brownian motion W. This is DP-GD with a softer clip. For DPGD-0th (Algorithm 1),
C here is the clip of the vector's norm divided by sqrt(d), and the noise is that of its own clip. For directions on the
sphere of radius sqrt(d) the weights erf(...) differ by O(1/d).

Time is cut into pieces. In each the equation is solved exactly with the weights fixed at its beginning, which makes it
linear. The pieces are shortest at the beginning, where the gradient falls fastest.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.synthetic.clipping import ClippedMean
from dpzero_theory.synthetic.lanes import Draw
from dpzero_theory.synthetic.place import Place, checked_start, to_numpy, whole_products
from dpzero_theory.synthetic.problems import Quadratic

PIECES = 128


@dataclass(frozen=True, eq=False)
class LimitRuns:
    """The results of L settings: `last` is x at the end, shape (L, d); `gradient_squared`, shape (L,), is the mean over
    time of the expected ||grad F_S||^2, given x at the beginning of each piece of time."""

    last: Array
    gradient_squared: Array


@whole_products()
def many_small_steps(
    problem: Quadratic,
    x0: Array,
    *,
    time: Array,
    clip: Array,
    noise: Array,
    normals: Draw,
    pieces: int = PIECES,
    dtype: torch.dtype = torch.float64,
    product_dtype: torch.dtype | None = None,
    device: str = "cpu",
) -> LimitRuns:
    """Follow the stochastic equation of the module, the limit of many small steps, for L settings with the same
    standard noise.

    Args:
        problem: the quadratic loss.
        x0: the start in every setting, shape (d,).
        time: s = alpha T > 0, step size times steps, shape (L,).
        clip: C > 0 of the scalar, shape (L,).
        noise: sqrt(T) alpha sigma >= 0, shape (L,).
        normals: a stream of standard normal rows of length d.
        pieces: the number of pieces into which time is cut.
        dtype, product_dtype, device: those of the computation, and of its matrix products, as in `first_order.dpgd`.

    Raises ValueError for a value out of its range.
    """
    place = Place(dtype, device)
    check.integer("pieces", pieces)
    s, c = place(check.real_array("time", time, above=0)), place(check.real_array("clip", clip, above=0))
    rate = place(check.real_array("noise", noise, at_least=0)).square() / s
    spectrum = place(problem.spectrum)[:, None]
    rows = place(problem.points) * place(np.sqrt(problem.spectrum))
    weights = ClippedMean(rows, product_dtype or dtype, _soft)
    h = (spectrum[:, 0] * place(checked_start(x0, problem.d) - problem.center))[:, None].repeat(1, len(s))
    total = torch.zeros_like(s)
    ends = np.square(np.arange(pieces + 1) / pieces)
    for begin, end, z in zip(ends[:-1], ends[1:], place(normals(pieces)), strict=True):
        weight, towards, _ = weights.weighted(h, c, h.square().sum(dim=0))
        pull, spread = spectrum * weight / problem.n, spectrum.square() * rate
        h, squares = _piece(h, towards / weight, pull, spread, s * float(end - begin), z)
        total += squares
    last = to_numpy((h / spectrum).T) + problem.center
    return LimitRuns(last, to_numpy(total / s))


def _soft(q: Tensor) -> Tensor:
    return q.clamp_(min=1e-30).mul_(2).rsqrt_().erf_()


def _piece(h: Tensor, goal: Tensor, pull: Tensor, rate: Tensor, time: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Solve dh = -pull (h - goal) dt + sqrt(rate) dW exactly for a duration `time`, where W is a Brownian motion and z
    are standard normal numbers, one for each coordinate, from which the noise at the end is made. Returns h at the end,
    and the integral over that time of the expected ||h||^2. h, goal, pull have a row for each coordinate, a column for
    each setting."""
    away, decay = h - goal, torch.exp(-pull * time)
    once, twice = (1 - decay) / pull, (1 - decay.square()) / (2 * pull)
    squares = away.square() * twice + 2 * goal * away * once + goal.square() * time
    squares += rate * (time - twice) / (2 * pull)
    return goal + away * decay + (rate * twice).sqrt() * z[:, None], squares.sum(dim=0)
