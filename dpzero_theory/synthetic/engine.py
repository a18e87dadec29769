"""Runs zeroth-order algorithms on a quadratic loss: thousands of runs for little more than one matrix product.

The loss of sample x_i is f(x; x_i) = (x - x_i)^T A (x - x_i)/2. In the coordinates y = A^(1/2) (x - center), where
center is the minimiser, it is ||y - y_i||^2/2, and a direction u becomes w = A^(1/2) u. The central difference is then
w^T (y - y_i), exactly and for every smoothing lambda, and so is the exact one. The forward difference is w^T (y - y_i)
+ (lambda/2) ||w||^2. So for a block of steps

1. One matrix product w_t^T y_i gives the data's part of every difference, for all lanes. (A lane is a run with one
   setting of the algorithm's parameters, see `lanes`.)
2. These numbers are sorted, with prefix sums. Then two binary searches give every lane's clipped mean: the samples
   whose difference is above C, and the samples whose difference is below -C, are the ends of the sorted list.
3. Lanes move along the w_t (and along the shared noise), so their own part w_t^T y follows from inner products of the
   directions, and no lane's iterate is formed inside the block.

With K directions a step a sample's K differences are clipped jointly in norm. In place of part 2, the norms for all
samples and lanes then come from one matrix product (`clipping`).

Quadratic forms of every iterate, such as the squared gradient norm, follow from the same inner products. Parts 1 and 2
depend on neither the algorithm nor the start nor the noise: `run_together` makes them once for several sets of lanes.
The results equal those of `tests.optim.reference` up to rounding; tests compare them to 1e-9.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.weights.directions import whole_products
from dpzero_theory.synthetic.captured import Captured
from dpzero_theory.synthetic.lanes import Draw, Lanes, blocks
from dpzero_theory.synthetic.place import Place, to_numpy
from dpzero_theory.synthetic.problems import Quadratic, point_of
from dpzero_theory.synthetic.products import Products, Start, coefficients, step_loop


@dataclass(frozen=True, eq=False)
class Outcome:
    """The results of L lanes, in the order in which the lanes were given.

    A lane is a run with one setting of the parameters. A is the matrix of the quadratic loss, x_t is the iterate after
    t steps, and T is the number of steps.

    Attributes:
        last: each lane's final iterate x_T, shape (L, d).
        average: the mean of x_0, ..., x_{T-1}, shape (L, d).
        gradient_squared: the mean of ||A (x_t - c)||^2 over t = 0, ..., T-1, for each center c, of which the first is
            the minimiser; shape (centers, L). Where c is the mean of a data set, A (x - c) is its gradient.
        excess: the mean of (x_t - c)^T A (x_t - c)/2, of the same shape: how far the loss is above its minimum.
    """

    last: Array
    average: Array
    gradient_squared: Array
    excess: Array

    @classmethod
    def of(
        cls, problem: Quadratic, lanes: Lanes, centers: Sequence[Array], states: Sequence[Tensor], scale: Tensor
    ) -> Self:
        """Make the results of L lanes (runs) on a quadratic loss from sums that were kept while the lanes ran.

        Args:
            problem: the quadratic loss, with the diagonal matrix A and its minimiser.
            lanes: the lanes' parameters, in the order in which the results are returned.
            centers: points c, shape (d,) each, for which the means of ||A (x - c)||^2 and (x - c)^T A (x - c)/2 over
                the iterates x are wanted, in addition to the minimiser.
            states: three tensors, with the lanes sorted by falling number of steps T as `lanes.longest_first()` does
                (stably). With z_t the iterate after t steps less the minimiser, they are scale * z_T, shape (d, L); the
                sum of scale * z_t over t = 0, ..., T-1, shape (d, L); and the sums of z_t^T A^2 z_t and of z_t^T A z_t
                over the same t, shape (2, L).
            scale: shape (d,), the factors of the coordinates in the first two tensors.
        """
        # Forms about other centers c need no further sums: with x measured from the minimiser, and a the average of the
        # x_t, the mean of (x_t - c)^T M (x_t - c) is the mean of x_t^T M x_t, less 2 c^T M a, plus c^T M c.
        ordered, back = lanes.longest_first()
        last, total, forms = states
        steps = last.new_tensor(ordered.steps)
        end, average = (to_numpy((y / scale[:, None]).T)[back] for y in (last, total / steps))
        means = to_numpy(forms / steps)[:, back]
        offsets = np.stack([center - problem.center for center in (problem.center, *centers)])
        gradient, excess = (
            mean - 2 * (offsets * metric) @ average.T + ((offsets * metric) * offsets).sum(axis=1)[:, None]
            for mean, metric in zip(means, (problem.spectrum**2, problem.spectrum), strict=True)
        )
        return cls(end + problem.center, average + problem.center, gradient, excess / 2)


_CURVED = {"central": 0.0, "forward": 0.5, "exact": 0.0}
"""For each difference rule, how many times lambda ||w||^2 a difference on the quadratic exceeds w^T (y - y_i)."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """Lanes, runs with one setting of the parameters each, of one algorithm of the DPZero paper from one start.

    Attributes:
        x0: shape (d,), the start of every lane.
        lanes: the lanes' parameters.
        vector: whether this is Algorithm 1, where the clip bounds ||difference * u|| and the noise is a vector in R^d;
            otherwise it is Algorithm 2, where the clip bounds the norm of a sample's differences along the K directions
            u of a step, and the noise is a number for each. A difference is a change of loss over a change of position,
            such as (f(x + lambda u) - f(x - lambda u))/(2 lambda).
        noise: a stream (`lanes.Draw`) of standard normal numbers, K for each step; with `vector`, of standard normal
            rows of length d. Each lane multiplies it by its noise_std. A seeded stream makes nothing private, so it is
            for synthetic data only.
    """

    x0: Array
    lanes: Lanes
    vector: bool
    noise: Draw


@whole_products()
def run_together(
    problem: Quadratic,
    sweeps: Sequence[Sweep],
    *,
    directions: Draw,
    directions_per_step: int = 1,
    difference: str = "central",
    centers: Sequence[Array] = (),
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    block: int = 128,
) -> list[Outcome]:
    """Run every lane of every sweep, all with the same directions, and the lanes of a sweep with the same noise.

    A lane is a run with one setting of the parameters; a sweep is a set of lanes of one algorithm. A step goes from x
    to x - (alpha/K) sum_k (M_k + sigma z_k) u_k, where alpha is the step size and sigma z_k the noise. M is the mean
    over samples of the vectors of a sample's K differences, each vector clipped to the norm C; a difference is how fast
    the sample's loss changes along the direction u_k: (f(x + lambda u_k) - f(x - lambda u_k))/(2 lambda), or (f(x +
    lambda u_k) - f(x))/lambda for forward differences. A `vector` sweep (the DPZero paper's Algorithm 1) has K = 1 and
    noise in all coordinates: x - alpha (M_1 u_1 + sigma z), z in R^d; there C bounds ||difference * u_1||, so that the
    difference is clipped to C/||u_1||.

    Args:
        problem: the quadratic loss.
        sweeps: the lanes to run.
        directions: a stream of directions u, rows of length d, K for each step. They are public, so the stream may be
            seeded; see `lanes.directions_of`.
        directions_per_step: K >= 1; 1 with a `vector` sweep, else ValueError.
        difference: the difference rule, a name of `dpzero_theory.difference.DIFFERENCES`. Only "forward" uses the
            lanes' smoothing; on a quadratic "central" and "exact" are the same.
        centers: further points c, shape (d,) each. The outcomes have, as for the problem's own minimiser, the means
            over the iterates x_t of ||A (x_t - c)||^2 (`gradient_squared`) and (x_t - c)^T A (x_t - c)/2 (`excess`),
            where A is the matrix of the loss.
        dtype, device: where and in which dtype torch computes.
        block: how many directions share a matrix product; a step's K always do.

    Returns:
        An outcome for each sweep.
    """
    most = 1 if any(sweep.vector for sweep in sweeps) else 2**16
    several = check.integer("directions_per_step", directions_per_step, at_most=most)
    curved = _CURVED[check.choice("difference", difference, tuple(DIFFERENCES))]
    place = Place(dtype, device)
    root, points = place(np.sqrt(problem.spectrum)), place(problem.points)
    running = [_Running(sweep, problem, root, place) for sweep in sweeps]
    loop = Captured(step_loop)
    for begin, end in blocks(np.concatenate([s.lanes.steps for s in sweeps]), max(block // several, 1)):
        count = (end - begin) * several
        u = place(directions(count))
        w, norms = u * root, u.square().sum(dim=1).sqrt()  # Torch's norm of 10^6 float32 is too small.
        going = [one for one in running if one.begin(begin, count)]
        given = Products.of(w, points, [(one.here, one.drift) for one in going], [root * root])
        steps = zip(*(one.step(start[0], norms) for one, start in zip(going, given.starts, strict=True)), strict=True)
        own, alpha, limit, shift = (torch.cat(parts, dim=-1) for parts in steps)
        if curved:
            own = own + curved * given.grams[0].diagonal()[:, None] * torch.cat([one.smoothing for one in going])
        moves = coefficients(given.data, given.grams[0], own, alpha, limit, shift, loop, several)
        # A step shifts all iterates after it, so the sum of the block's iterates has its shift once for each of them.
        later = torch.arange(end - begin - 1, -1, -1, dtype=dtype, device=device).repeat_interleave(several)[:, None]
        for one, starts, move in zip(
            going, given.starts, torch.split(moves, [one.live for one in going], dim=1), strict=True
        ):
            one.advance(w, starts, given.grams, move, later, several)
    return [Outcome.of(problem, one.sweep.lanes, centers, (one.y, one.total, one.forms), one.root) for one in running]


# The lanes (runs) of a sweep while they run, sorted by falling number of steps. `root` has the square roots of the
# eigenvalues of the loss's matrix, shape (d,). In a block of steps the first `live` lanes are still running.
class _Running:
    def __init__(self, sweep: Sweep, problem: Quadratic, root: Tensor, place: Place) -> None:
        self.sweep, self.root, self.place = sweep, root, place
        self.ordered, _ = sweep.lanes.longest_first()
        start = place(point_of(sweep.x0, problem.d, "x0") - problem.center)
        self.y = (root * start)[:, None].repeat(1, len(sweep.lanes))
        self.total = torch.zeros_like(self.y)
        self.forms = torch.zeros((2, len(sweep.lanes)), dtype=place.dtype, device=place.device)
        ordered = self.ordered
        parameters = (ordered.step_size, ordered.clip, ordered.noise_std, ordered.smoothing)
        self.parameters = [place(values) for values in parameters]

    def begin(self, begin: int, count: int) -> bool:
        # Makes ready for the block of steps that begins with step `begin`, in which `count` directions are drawn in
        # all. False means that all lanes have ended before, and that no noise was drawn.
        self.live = int((self.ordered.steps > begin).sum())
        if not self.live:
            return False
        self.alpha, self.clip, self.std, self.smoothing = (values[: self.live] for values in self.parameters)
        self.push, self.here = self.alpha * self.std, self.y[:, : self.live]
        self.noise = self.place(self.sweep.noise(count))
        self.drift = self.noise * self.root if self.sweep.vector else None
        return True

    def step(self, start: Start, norms: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # The arguments own, alpha, limit and shift of `coefficients` for the lanes that go on. `start` has the products
        # of the block's directions u with the lanes' points before the block, and `norms` the lengths ||u||.
        own = start.own(self.push)
        if self.sweep.vector:
            return own, self.alpha, self.clip / norms[:, None], torch.zeros_like(own)
        return own, self.alpha, self.clip.expand_as(own), self.noise[:, None] * self.std

    def advance(
        self, w: Tensor, starts: Sequence[Start], grams: Sequence[Tensor], move: Tensor, later: Tensor, several: int
    ) -> None:
        # Move the L lanes that go on over a block of steps, and add to the sums of their iterates and of two quadratic
        # forms of these. `w` has the block's S directions A^(1/2) u, shape (S, d). `starts` and `grams` are fields of
        # `products.Products`. `move` has the coefficient of each direction for each lane, shape (S, L), and `later` how
        # many iterates of the block come after each direction's step, shape (S, 1). A step has `several` directions.
        for sums, start, gram in zip(self.forms, starts[::-1], grams[::-1], strict=True):
            sums[: self.live] += start.path(gram, move, self.push)[:-1:several].sum(dim=0)
        whole = len(later) // several * self.here - w.T @ (later * move)
        self.y[:, : self.live], self.total[:, : self.live] = self.here - w.T @ move, self.total[:, : self.live] + whole
        if self.drift is not None:
            self.total[:, : self.live] -= (later * self.drift).sum(dim=0)[:, None] * self.push
            self.y[:, : self.live] -= self.drift.sum(dim=0)[:, None] * self.push


def _run(problem: Quadratic, x0: Array, lanes: Lanes, *, vector: bool, noise: Draw, **options: Any) -> Outcome:
    return run_together(problem, [Sweep(x0, lanes, vector, noise)], **options)[0]


dpzero = partial(_run, vector=False)
"""Runs the paper's Algorithm 2 (DPZero), which clips scalar differences and adds scalar noise; arguments of `_run`."""
dpgd_0th = partial(_run, vector=True)
"""Runs the paper's Algorithm 1 (DPGD-0th), which clips vectors and adds a vector of noise; arguments of `_run`."""
