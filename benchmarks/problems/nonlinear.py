"""DPZero on the pseudo-Huber loss and on logistic regression, for many runs at once. Each run, called a lane, has its
own step size, smoothing lambda, clip and noise; all lanes share their random directions.

Each loss depends on the weights x through one number per sample, which a step along a direction u changes by a formula:

- pseudo-Huber, with data points y_i, y = A^(1/2) (x - center) and w = A^(1/2) u: the number is q_i = ||y - y_i||^2.
With v_i = w^T (y - y_i) and q+- = q +- 2 lambda v + lambda^2 w^T w, the difference is 2 v/(sqrt(1 + q+) + sqrt(1 +
q-)); a step -c w turns q into q - 2 c v + c^2 w^T w;
- logistic, with features a_i and labels b_i: the number is the margin m_i = b_i a_i^T x. With h_i = lambda b_i a_i^T u
the difference is -sign(h) log(1 + (exp(2 |h|) - 1) sigmoid(-|h| - m))/(2 lambda); a step -c u adds -c b_i a_i^T u.

So a lane keeps that number for every sample, and one matrix product for a block of steps serves all lanes. No
difference is computed by subtracting two nearly equal losses, as the algorithm's definition would do. The K directions
of a step are consecutive rows of that product, and the number is updated for a step along each of them in turn.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from benchmarks.problems.lipschitz import LogisticRegression, PseudoHuber
from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.optim.weights.directions import whole_products
from dpzero_theory.synthetic.lanes import Draw, Lanes, blocks
from dpzero_theory.synthetic.place import Place, to_numpy
from dpzero_theory.synthetic.problems import point_of

CHUNK = 1 << 17
"""How many numbers are worked on at a time, so that they stay in the cache of a processor core."""


@dataclass(frozen=True, eq=False)
class NonlinearRuns:
    """The results of L runs ("lanes") of T steps, in the order in which they were given.

    Attributes:
        last: x_T, shape (L, d).
        gradient_squared: mean of ||grad F_S(x_t)||^2 over t = 0..T-1, shape (L,). It is exact if T <= evaluations;
            otherwise it is an unbiased estimate from one t in each of about that many pieces of the run, of which the
            first are the smallest.
        last_gradient_squared: ||grad F_S(x_T)||^2, shape (L,).
    """

    last: Array
    gradient_squared: Array
    last_gradient_squared: Array


@whole_products()
def dpzero(
    problem: PseudoHuber | LogisticRegression,
    x0: Array,
    lanes: Lanes,
    *,
    directions: Draw,
    noise: Draw,
    rng: np.random.Generator,
    directions_per_step: int = 1,
    evaluations: int = 128,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    block: int = 128,
) -> NonlinearRuns:
    """Run Algorithm 2 (DPZero) for each lane, which is one run with its own parameters. All lanes share directions and
    standard noise, drawn in the order of `tests.optim.reference`.

    Args:
        problem: the loss.
        x0: the start of every lane, shape (d,).
        lanes: the parameters of the runs: steps T, step sizes, smoothings, clips and noise standard deviations.
        directions: stream of u, rows of length d, K for each step (public; a seed is fine, see `lanes.directions_of`).
        noise: stream of standard normal scalars, K for each step, which each lane multiplies by its noise_std. A seeded
            stream is for experiments without a privacy claim.
        rng: picks the iterates whose gradient is evaluated, at most `evaluations` per lane.
        directions_per_step: K >= 1, the number of directions of a step, whose differences are clipped jointly.
        evaluations: about how many gradients are evaluated in each lane.
        dtype, device: those of the computation, on torch.
        block: directions per matrix product, at least K.
    """
    start = point_of(x0, problem.d, "x0")
    check.integer("evaluations", evaluations)
    several = check.integer("directions_per_step", directions_per_step, at_most=2**16)
    run, back = lanes.longest_first()
    tensor = Place(dtype, device)
    alpha, smoothing, clip, std = map(tensor, (run.step_size, run.smoothing, run.clip, run.noise_std))
    made = _PseudoHuber if isinstance(problem, PseudoHuber) else _Logistic
    loss = made(problem, start, len(lanes), tensor)  # type: ignore[arg-type]
    schedules = [_early(rng, int(steps), evaluations) for steps in run.steps]
    mean = np.zeros(len(lanes))
    for begin, end in blocks(lanes.steps, max(block // several, 1)):
        live = int((run.steps > begin).sum())
        z = tensor(noise((end - begin) * several))[:, None]
        loss.start(tensor(directions(len(z))), live)
        for t in range(0, len(z), several):
            step = slice(t, t + several)
            due = [lane for lane in range(live) if begin + t // several in schedules[lane]]
            total = loss.clipped_sum(step, smoothing[:live], clip[:live], due)
            loss.step(step, alpha[:live] / several * (total / problem.n + std[:live] * z[step]))
        seen, squares = loss.stop(slice(len(z) - several, len(z)))
        for (lane, t), squared in zip(seen, to_numpy(squares) if seen else (), strict=True):
            mean[lane] += schedules[lane][begin + t // several] * squared
    last = loss.points()
    final = np.array([np.square(problem.gradient(x)).sum() for x in last])
    return NonlinearRuns(last[back], mean[back], final[back])


def _early(rng: np.random.Generator, steps: int, evaluations: int) -> dict[int, float]:
    """Return the steps t at which the gradient is evaluated, each with its weight in an estimate of the mean over all
    `steps`. If `steps` is at most `evaluations`, these are all steps. Otherwise the run is cut into at most about
    `evaluations` pieces, half of the cuts equally spaced and half geometric, and one t is drawn from each piece and
    weighted by the piece's length."""
    if steps <= evaluations:
        return dict.fromkeys(range(steps), 1 / steps)
    half = max(evaluations // 2, 1)
    cuts = np.concatenate([np.linspace(0, steps, half + 1), np.geomspace(1, steps, evaluations - half + 1)])
    edges = np.unique(cuts.round().astype(int))
    return {int(rng.integers(low, high)): float(high - low) / steps for low, high in pairwise(edges)}


Seen = list[tuple[int, int]]
"""Pairs of the number of a lane (a run) and the first row of a step among the directions of its block."""


def _chunks(n: int, width: int) -> Iterator[slice]:
    size = max(CHUNK // width, 1)
    return (slice(i, i + size) for i in range(0, n, size))


def _before(step: slice) -> slice:
    """Return the slice of rows of the step before this one, or an empty slice if this is the first step."""
    return slice(max(2 * step.start - step.stop, 0), step.start)


def _clipped(differences: Tensor) -> Tensor:
    """Clip the differences, of shape (K, live, n) and in units of the clip, so that each sample's K numbers have norm
    at most 1 in each lane. Returns their sum over the n samples, shape (K, live)."""
    if len(differences) == 1:
        return differences.clamp_(-1, 1).sum(dim=2)
    return differences.div_(differences.norm(dim=0).clamp_(min=1)).sum(dim=2)


class _PseudoHuber:
    """The pseudo-Huber loss in all L lanes (runs): y, shape (L, d), is A^(1/2) (x - center) at the block's start, and
    q, shape (L, n), the squared distances ||y - y_i||^2 to the n data points before the latest step.

    Each block of steps calls `start` with the directions u of all its steps, shape (number, d), for the first `live`
    lanes, which are those that have steps left; then for each step `clipped_sum` and `step`; then `stop`. A step is
    given as the slice of its K rows among the directions of the block.
    """

    def __init__(self, problem: PseudoHuber, x0: Array, lanes: int, tensor: Place) -> None:
        self.root = tensor(np.sqrt(problem.spectrum))
        self.origin = tensor(problem.center)
        self.data = tensor(problem.points)
        y = self.root * (tensor(x0) - self.origin)
        self.y = y.repeat(lanes, 1)
        self.q = (self.data - y).square().sum(dim=1).repeat(lanes, 1)

    def start(self, u: Tensor, live: int) -> None:
        self.w = u * self.root
        self.data_part = self.w @ self.data.T
        self.gram = self.w @ self.w.T
        self.own = self.w @ self.y[:live].T
        self.move = torch.zeros_like(self.own)
        self.live = live
        self.weights: list[tuple[int, int, Tensor]] = []

    def clipped_sum(self, step: slice, smoothing: Tensor, clip: Tensor, due: list[int]) -> Tensor:
        """Return the sum over samples i of this step's differences along its K directions, each sample's K clipped
        jointly, shape (K, live). The smoothings lambda and the clips C have one value per lane. For the lanes in `due`,
        the weights with which samples enter the gradient at this step are kept until `stop` is called."""
        t, width, bound = step.start, smoothing[:, None], clip[:, None]
        for row in range(t, step.stop):
            self.own[row] -= self.gram[row, :t] @ self.move[:t]
        here = self.own[step, :, None]
        square = self.gram.diagonal()[step, None, None]
        total = torch.zeros_like(self.own[step])
        for part in _chunks(self.data.shape[0], total.numel()):
            q = self.q[: self.live, part]
            self._advance(q, part, _before(step))
            v = here - self.data_part[step, None, part]
            middle = q + (1 + width * width * square)
            roots = torch.addcmul(middle, v, 2 * width).sqrt_()
            roots += middle.addcmul_(v, 2 * width, value=-1).sqrt_()
            total += _clipped(v.mul_(2 / bound).div_(roots))
        total *= clip
        self.weights += [(lane, t, (1 + self.q[lane]).rsqrt()) for lane in due]
        return total

    def _advance(self, q: Tensor, part: slice, step: slice) -> None:
        for row in range(step.start, step.stop):
            move = self.move[row][:, None]
            # With w a row, own is w^T y before the move along w, data_part is w^T y_i, and v = w^T (y - y_i) is their
            # difference. A move of y by -c w, with c = `move`, turns q = ||y - y_i||^2 into q - 2 c v + c^2 w^T w. The
            # first line here adds what is the same for all data points, the second adds 2 c data_part.
            q.add_(move * (move * self.gram[row, row] - 2 * self.own[row][:, None]))
            q.addcmul_(2 * move, self.data_part[row, part])

    def step(self, step: slice, move: Tensor) -> None:
        """Move every lane by -move along this step's K directions; `move` has shape (K, live)."""
        self.move[step] = move
        # own[row] becomes the inner product at the point to which the moves along the earlier rows lead
        for row in range(step.start + 1, step.stop):
            self.own[row] -= self.gram[row, step.start : row] @ self.move[step.start : row]

    def stop(self, last: slice) -> tuple[Seen, Tensor]:
        """End the block, whose last step is `last`. Returns the places (lane, row) at which gradients were due, where
        row is the first row of the step, and ||grad F_S||^2 at each of them."""
        for part in _chunks(self.data.shape[0], self.live):
            self._advance(self.q[: self.live, part], part, last)
        squares = [self.y.new_empty(0)]
        if self.weights:
            rows = torch.stack([weights for _, _, weights in self.weights])
            pulls = rows @ self.data
            for (lane, t, weights), pull in zip(self.weights, pulls, strict=True):
                y = self.y[lane] - self.move[:t, lane] @ self.w[:t]
                gradient = self.root * (weights.sum() * y - pull) / len(weights)
                squares.append(gradient.square().sum()[None])
        self.y[: self.live] -= self.move.T @ self.w
        return [(lane, t) for lane, t, _ in self.weights], torch.cat(squares)

    def points(self) -> Array:
        return to_numpy(self.y / self.root + self.origin)


class _Logistic:
    """Logistic regression in all L lanes (runs): x, shape (L, d), are the weights at the block's start, and the
    margins, shape (L, n), are those of the n samples before the latest step."""

    def __init__(self, problem: LogisticRegression, x0: Array, lanes: int, tensor: Place) -> None:
        self.rows = _matrix(problem.rows, tensor)
        self.columns = _matrix(problem.rows, tensor, transpose=True)
        self.x = tensor(x0).repeat(lanes, 1)
        self.margins = tensor(problem.margins(x0)).repeat(lanes, 1)

    def start(self, u: Tensor, live: int) -> None:
        self.u = u
        # With a single direction torch calls the transposed product contiguous whatever its strides are, so that
        # kernels would read it otherwise; the copy has the strides of a contiguous tensor.
        self.data_part = (self.rows @ u.T).T.clone(memory_format=torch.contiguous_format)
        self.move = u.new_zeros((len(u), live))
        self.live = live
        self.weights: list[tuple[int, int, Tensor]] = []

    def clipped_sum(self, step: slice, smoothing: Tensor, clip: Tensor, due: list[int]) -> Tensor:
        width, bound = smoothing[:, None], clip[:, None]
        total = torch.zeros_like(self.move[step])
        for part in _chunks(self.margins.shape[1], total.numel()):
            margins = self.margins[: self.live, part]
            self._advance(margins, part, _before(step))
            total -= _clipped(self._differences(self.data_part[step, None, part], margins, width) / bound)
        total *= clip
        self.weights += [(lane, step.start, (-self.margins[lane]).sigmoid_()) for lane in due]
        return total

    def _differences(self, slopes: Tensor, margins: Tensor, width: Tensor) -> Tensor:
        """Return minus the difference of each sample with the given margin. `slopes` are the b_i a_i^T u, by which a
        step along u changes the margins, and `width` is lambda."""
        h = width * slopes
        size = h.abs()
        weight = (-size - margins).sigmoid_()
        return (2 * size).expm1_().mul_(weight).log1p_().mul_(h.sign_()).div_(2 * width)

    def _advance(self, margins: Tensor, part: slice, step: slice) -> None:
        for row in range(step.start, step.stop):
            margins.addcmul_(self.move[row][:, None], self.data_part[row, part], value=-1)

    def step(self, step: slice, move: Tensor) -> None:
        self.move[step] = move

    def stop(self, last: slice) -> tuple[Seen, Tensor]:
        for part in _chunks(self.margins.shape[1], self.live):
            self._advance(self.margins[: self.live, part], part, last)
        self.x[: self.live] -= self.move.T @ self.u
        squares = self.x.new_empty(0)
        if self.weights:
            gradients = self.columns @ torch.stack([weights for _, _, weights in self.weights], dim=1)
            squares = gradients.square().sum(dim=0) / self.margins.shape[1] ** 2
        return [(lane, t) for lane, t, _ in self.weights], squares

    def points(self) -> Array:
        return to_numpy(self.x)


def _matrix(rows: Array | csr_array, tensor: Place, *, transpose: bool = False) -> Tensor:
    if isinstance(rows, np.ndarray):
        return tensor(rows.T if transpose else rows)
    sparse = csr_array(rows.T) if transpose else rows
    values = tensor(sparse.data)
    pointers, indices = (torch.as_tensor(a, device=values.device) for a in (sparse.indptr, sparse.indices))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)
        return torch.sparse_csr_tensor(pointers, indices, values, size=sparse.shape, check_invariants=True)
