"""Runs zeroth-order algorithms on a quadratic loss: thousands of runs for little more than one matrix product.

The loss of sample x_i is (x - x_i)^T A (x - x_i)/2. In the coordinates y = A^(1/2) (x - center), where center is the
minimiser, it is ||y - y_i||^2/2, and a direction u becomes w = A^(1/2) u. The central difference along u is then w^T (y
- y_i) for every smoothing lambda, and the forward difference w^T (y - y_i) + (lambda/2) ||w||^2. For a block of steps
with directions w_t,

1. one matrix product gives w_t^T y_i for all directions and samples, which all runs share;
2. these numbers are sorted, with prefix sums. Then two binary searches give the clipped mean of each run: the samples
   that are clipped are the two ends of the sorted list;
3. runs move along the w_t (and along the shared noise), so inner products of the directions give w_t^T y of every run,
   and no run's iterate is formed inside the block.

With K directions in a step, a sample's K differences are clipped together. In place of part 2, one matrix product gives
the norms for all samples and runs (`clipping`). The squared gradient norm at every iterate follows from the same inner
products. Tests compare the results with `tests.optim.reference`, to 1e-9.
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
    """The results of L runs on a quadratic loss, in the order of their parameters in `Lanes`.

    A is the matrix of the loss, x_t a run's weights after t steps and T its number of steps.

    Attributes:
        last: the final weights x_T, shape (L, d).
        average: the mean of x_0, ..., x_{T-1}, shape (L, d).
        gradient_squared: the mean of ||A (x_t - c)||^2 over t = 0, ..., T-1, for several points c, shape (points, L):
            first the minimiser, for which this is the mean squared gradient, and then the caller's `centers`.
        excess: the mean of (x_t - c)^T A (x_t - c)/2 over t = 0, ..., T-1, for the same points c, shape (points, L).
            For the minimiser this is how far the loss is above its minimum.
    """

    last: Array
    average: Array
    gradient_squared: Array
    excess: Array

    @classmethod
    def of(
        cls, problem: Quadratic, lanes: Lanes, centers: Sequence[Array], states: Sequence[Tensor], scale: Tensor
    ) -> Self:
        """Compute the results of L runs from sums that were kept while they ran.

        Args:
            problem: the quadratic loss, with matrix A.
            lanes: the parameters of the runs.
            centers: the points c, shape (d,) each, of the rows of `gradient_squared` and `excess` after the first row.
            states: three tensors, whose runs are in the order of `lanes.longest_first()`. z_t is the point after t of T
                steps, less the minimiser. They are scale * z_T, shape (d, L); the sum of scale * z_t over t = 0, ...,
                T-1, shape (d, L); and the sums of z_t^T A^2 z_t and of z_t^T A z_t over the same t, shape (2, L).
            scale: the factors by which the coordinates in the first two tensors are multiplied, shape (d,).
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


# For each difference rule, the multiple of lambda ||w||^2 by which a difference along u exceeds the derivative, where
# w = A^(1/2) u
_CURVED = {"central": 0.0, "forward": 0.5, "exact": 0.0}


@dataclass(frozen=True, eq=False)
class Sweep:
    """A set of runs of one algorithm of the DPZero paper on a quadratic loss, with one starting point.

    Attributes:
        x0: the starting point, shape (d,).
        lanes: the parameters of the runs.
        vector: True for Algorithm 1 of the paper (DPGD-0th): the clip bounds the norm of a sample's finite difference
            times the direction u, and a step adds a noise vector in R^d. False for Algorithm 2 (DPZero): the clip
            bounds the norm of the vector of a sample's K finite differences, and a step adds K noise numbers.
        noise: a function of k that returns the next k standard normal numbers, shape (k,), or vectors, shape (k, d), if
            `vector` is True. Each run multiplies them by its own standard deviation. Seeded noise does not protect any
            data; use it with synthetic data only.
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
    """Run several sets of runs on a quadratic loss, all with the same random directions.

    A step of Algorithm 2 goes from x to x - (alpha/K) sum_k (m_k + sigma z_k) u_k, where alpha is the step size, u_k
    are the K directions, m is the mean over samples of the vector of a sample's K finite differences, clipped to the
    norm C, sigma is the standard deviation of the noise and z_k the next noise numbers. A step of Algorithm 1 goes from
    x to x - alpha (m u + sigma z), where m is the mean of the samples' finite differences along u, each clipped to
    [-C/||u||, C/||u||], and z is the next noise vector.

    Args:
        problem: the quadratic loss.
        sweeps: the sets of runs. All runs of a set share their noise.
        directions: a function of k that returns the next k directions, shape (k, d); see `lanes.directions_of`.
        directions_per_step: K >= 1. ValueError is raised if it is above 1 and a sweep has vector=True.
        difference: "central", "forward" or "exact". Only "forward" uses the runs' smoothing; on a quadratic loss the
            other two are the same.
        centers: points c, shape (d,) each. With A the loss's matrix, each c adds a row to `Outcome.gradient_squared`,
            the means of ||A (x - c)||^2 over a run's points x, and one to `Outcome.excess`, of (x - c)^T A (x - c)/2.
        dtype, device: the dtype and the device of the computation.
        block: the largest number of directions in one matrix product. A step is never split.

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
        # A step moves all iterates after it, so the sum of the block's iterates has its move once for each of them.
        later = torch.arange(end - begin - 1, -1, -1, dtype=dtype, device=device).repeat_interleave(several)[:, None]
        for one, starts, move in zip(
            going, given.starts, torch.split(moves, [one.live for one in going], dim=1), strict=True
        ):
            one.advance(w, starts, given.grams, move, later, several)
    return [Outcome.of(problem, one.sweep.lanes, centers, (one.y, one.total, one.forms), one.root) for one in running]


# The runs of a sweep while they run, sorted by falling number of steps. `root` has the square roots of the eigenvalues
# of the loss's matrix, shape (d,). In a block of steps the first `live` runs have not ended.
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
        # all. False means that all runs have ended before, and that no noise was drawn.
        self.live = int((self.ordered.steps > begin).sum())
        if not self.live:
            return False
        self.alpha, self.clip, self.std, self.smoothing = (values[: self.live] for values in self.parameters)
        self.push, self.here = self.alpha * self.std, self.y[:, : self.live]
        self.noise = self.place(self.sweep.noise(count))
        self.drift = self.noise * self.root if self.sweep.vector else None
        return True

    def step(self, start: Start, norms: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # The arguments own, alpha, limit and shift of `coefficients` for the runs that go on. `start` has the products
        # of the block's directions u with the runs' points before the block, and `norms` the lengths ||u||.
        own = start.own(self.push)
        if self.sweep.vector:
            return own, self.alpha, self.clip / norms[:, None], torch.zeros_like(own)
        return own, self.alpha, self.clip.expand_as(own), self.noise[:, None] * self.std

    def advance(
        self, w: Tensor, starts: Sequence[Start], grams: Sequence[Tensor], move: Tensor, later: Tensor, several: int
    ) -> None:
        # Moves the L runs that go on over a block of steps, and adds to the sums of their iterates and of two quadratic
        # forms of these. `w` has the block's S directions A^(1/2) u, shape (S, d). `starts` and `grams` are fields of
        # `products.Products`. `move` has the coefficient of each direction for each run, shape (S, L), and `later` how
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
"""Runs the paper's Algorithm 2 from the point x0, as `dpzero(problem, x0, lanes, noise=..., **options)`, and returns an
`Outcome`. lanes is a `Lanes`, the parameters of many runs, and noise a function of k that returns k standard normal
numbers, shape (k,). The options, of which directions is required, are those of `run_together`."""
dpgd_0th = partial(_run, vector=True)
"""Runs the paper's Algorithm 1 from the point x0, as `dpgd_0th(problem, x0, lanes, noise=..., **options)`, and returns
an `Outcome`. lanes is a `Lanes`, the parameters of many runs, and noise a function of k that returns k standard normal
vectors, shape (k, d). The options, of which directions is required, are those of `run_together`."""
