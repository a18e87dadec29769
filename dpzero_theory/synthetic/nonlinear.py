"""DPZero on the pseudo-Huber loss and on logistic regression, many lanes at once.

Each loss depends on x through one number per sample, which a step along u changes by a formula:

- pseudo-Huber, with y = A^(1/2) (x - center) and w = A^(1/2) u: the number is q_i = ||y - y_i||^2, and with
  v_i = w^T (y - y_i) and q+- = q +- 2 lambda v + lambda^2 w^T w the two-point difference is
  2 v/(sqrt(1 + q+) + sqrt(1 + q-)); a step -c w turns q into q - 2 c v + c^2 w^T w;
- logistic: the number is the margin m_i = b_i a_i^T x, and with h_i = lambda b_i a_i^T u the difference is
  -sign(h) log(1 + (exp(2 |h|) - 1) sigmoid(-|h| - m))/(2 lambda); a step -c u adds -c b_i a_i^T u.

So lanes keep that number for every sample, one matrix product for a block of steps serves all of them, and no
difference subtracts two nearly equal losses, as the algorithm's definition does.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.synthetic.lanes import Draw, Lanes, blocks
from dpzero_theory.synthetic.place import Place, checked_start, to_numpy
from dpzero_theory.synthetic.problems import LogisticRegression, PseudoHuber

CHUNK = 1 << 17
"""How many numbers are worked on at a time, so that they stay in a core's cache."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the lanes end with, in the order they were given.

    Attributes:
        last: x_T, shape (L, d).
        gradient_squared: mean of ||grad F_S(x_t)||^2 over t = 0..T-1, shape (L,): exact where T <= evaluations,
            otherwise an unbiased estimate from one t in each of about that many pieces, the first ones the smallest.
        last_gradient_squared: ||grad F_S(x_T)||^2, shape (L,).
    """

    last: Array
    gradient_squared: Array
    last_gradient_squared: Array


def dpzero(
    problem: PseudoHuber | LogisticRegression,
    x0: Array,
    lanes: Lanes,
    *,
    directions: Draw,
    noise: Draw,
    rng: np.random.Generator,
    evaluations: int = 128,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    block: int = 128,
) -> Outcome:
    """Run Algorithm 2 on every lane, all with the same directions and standard noise.

    Args:
        problem: the loss; x0: shape (d,), every lane's start.
        directions: stream of u_t, rows of length d (public; a seed is fine).
        noise: stream of standard normal scalars, which each lane multiplies by its noise_std. A seeded stream
            is for experiments without a privacy claim.
        rng: picks the iterates whose gradient is evaluated, at most `evaluations` per lane.
        block: steps per matrix product. dtype, device: of the computation, on torch.
    """
    start = checked_start(x0, problem.d)
    check.integer("evaluations", evaluations)
    run, back = lanes.longest_first()
    tensor = Place(dtype, device)
    alpha, smoothing, clip, std = map(tensor, (run.step_size, run.smoothing, run.clip, run.noise_std))
    loss = _loss(problem, start, len(lanes), tensor)
    schedule = [_schedule(rng, int(steps), evaluations) for steps in run.steps]
    mean = np.zeros(len(lanes))
    for begin, end in blocks(lanes.steps, block):
        live = int((run.steps > begin).sum())
        z = tensor(noise(end - begin))
        loss.start(tensor(directions(end - begin)), live)
        for t in range(end - begin):
            due = [lane for lane in range(live) if begin + t in schedule[lane]]
            total = loss.clipped_sum(smoothing[:live], clip[:live], due)
            loss.step(alpha[:live] * (total / problem.n + std[:live] * z[t]))
        for lane, t, squared in loss.stop():
            mean[lane] += schedule[lane][begin + t] * squared
    last = loss.points()
    final = np.array([np.square(problem.gradient(x)).sum() for x in last])
    return Outcome(last[back], mean[back], final[back])


def _schedule(rng: np.random.Generator, steps: int, evaluations: int) -> dict[int, float]:
    """Iterates to evaluate and their weights: one at random in each piece of 0..T-1.

    Half of the cuts are equal and half geometric, because the gradient falls fastest in the first steps.
    """
    if steps <= evaluations:
        return dict.fromkeys(range(steps), 1 / steps)
    half = max(evaluations // 2, 1)
    cuts = np.concatenate([np.linspace(0, steps, half + 1), np.geomspace(1, steps, evaluations - half + 1)])
    edges = np.unique(cuts.round().astype(int))
    return {int(rng.integers(low, high)): float(high - low) / steps for low, high in pairwise(edges)}


class _Loss(Protocol):
    """The state of all lanes. A block is start, then clipped_sum and step in turn, then stop."""

    def start(self, u: Tensor, live: int) -> None:
        """Begin a block with directions u, shape (K, d), for the first `live` lanes."""

    def clipped_sum(self, smoothing: Tensor, clip: Tensor, due: list[int]) -> Tensor:
        """sum_i clip_C(difference_i), shape (live,); remember the weights for the gradients of lanes `due`."""

    def step(self, move: Tensor) -> None:
        """Every lane goes by -move, shape (live,), along this step's direction."""

    def stop(self) -> Iterator[tuple[int, int, float]]:
        """End the block: lane, step in the block and ||grad F_S||^2 for each gradient remembered."""

    def points(self) -> Array:
        """The lanes' x, shape (L, d)."""


def _loss(problem: PseudoHuber | LogisticRegression, x0: Array, lanes: int, tensor: Place) -> _Loss:
    if isinstance(problem, PseudoHuber):
        return _PseudoHuber(problem, x0, lanes, tensor)
    return _Logistic(problem, x0, lanes, tensor)


def _chunks(n: int, live: int) -> Iterator[slice]:
    size = max(CHUNK // live, 1)
    return (slice(i, i + size) for i in range(0, n, size))


class _PseudoHuber:
    """y of shape (L, d) at the block's start, and q of shape (L, n), which lags one step behind."""

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
        self.t = 0
        self.live = live
        self.weights: list[tuple[int, int, Tensor]] = []

    def clipped_sum(self, smoothing: Tensor, clip: Tensor, due: list[int]) -> Tensor:
        t, width, bound = self.t, smoothing[:, None], clip[:, None]
        here = (self.own[t] - self.gram[t, :t] @ self.move[:t])[:, None]
        self.own[t] = here[:, 0]
        square = self.gram[t, t]
        total = torch.zeros_like(clip)
        for part in _chunks(self.data.shape[0], self.live):
            q = self.q[: self.live, part]
            if t > 0:
                self._advance(q, part, t - 1)
            v = here - self.data_part[t, part]
            middle = q + (1 + width * width * square)
            roots = torch.addcmul(middle, v, 2 * width).sqrt_()
            roots += middle.addcmul_(v, 2 * width, value=-1).sqrt_()
            total += v.mul_(2 / bound).div_(roots).clamp_(-1, 1).sum(dim=1)
        total *= clip
        self.weights += [(lane, t, (1 + self.q[lane]).rsqrt()) for lane in due]
        return total

    def _advance(self, q: Tensor, part: slice, t: int) -> None:
        move = self.move[t][:, None]
        # q - 2 c v + c^2 w^T w with v = own - data_part
        q.add_(move * (move * self.gram[t, t] - 2 * self.own[t][:, None]))
        q.addcmul_(2 * move, self.data_part[t, part])

    def step(self, move: Tensor) -> None:
        self.move[self.t] = move
        self.t += 1

    def stop(self) -> Iterator[tuple[int, int, float]]:
        for part in _chunks(self.data.shape[0], self.live):
            self._advance(self.q[: self.live, part], part, self.t - 1)
        if self.weights:
            rows = torch.stack([weights for _, _, weights in self.weights])
            pulls = rows @ self.data
            for (lane, t, weights), pull in zip(self.weights, pulls, strict=True):
                y = self.y[lane] - self.move[:t, lane] @ self.w[:t]
                gradient = self.root * (weights.sum() * y - pull) / len(weights)
                yield lane, t, float(gradient.square().sum())
        self.y[: self.live] -= self.move.T @ self.w

    def points(self) -> Array:
        return to_numpy(self.y / self.root + self.origin)


class _Logistic:
    """x of shape (L, d) at the block's start, and margins of shape (L, n), which lag one step behind."""

    def __init__(self, problem: LogisticRegression, x0: Array, lanes: int, tensor: Place) -> None:
        self.rows = _matrix(problem.rows, tensor)
        self.columns = _matrix(problem.rows, tensor, transpose=True)
        self.x = tensor(x0).repeat(lanes, 1)
        self.margins = tensor(problem.margins(x0)).repeat(lanes, 1)

    def start(self, u: Tensor, live: int) -> None:
        self.u = u
        self.data_part = (self.rows @ u.T).T.contiguous()
        self.move = u.new_zeros((len(u), live))
        self.t = 0
        self.live = live
        self.weights: list[tuple[int, int, Tensor]] = []

    def clipped_sum(self, smoothing: Tensor, clip: Tensor, due: list[int]) -> Tensor:
        t, width, bound = self.t, smoothing[:, None], clip[:, None]
        total = torch.zeros_like(clip)
        for part in _chunks(self.margins.shape[1], self.live):
            margins = self.margins[: self.live, part]
            if t > 0:
                self._advance(margins, part, t - 1)
            h = width * self.data_part[t, part]
            size = h.abs()
            weight = (-size - margins).sigmoid_()
            size.mul_(2).expm1_().mul_(weight).log1p_().mul_(h.sign_())
            total -= size.div_(2 * width * bound).clamp_(-1, 1).sum(dim=1)
        total *= clip
        self.weights += [(lane, t, (-self.margins[lane]).sigmoid_()) for lane in due]
        return total

    def _advance(self, margins: Tensor, part: slice, t: int) -> None:
        margins.addcmul_(self.move[t][:, None], self.data_part[t, part], value=-1)

    def step(self, move: Tensor) -> None:
        self.move[self.t] = move
        self.t += 1

    def stop(self) -> Iterator[tuple[int, int, float]]:
        for part in _chunks(self.margins.shape[1], self.live):
            self._advance(self.margins[: self.live, part], part, self.t - 1)
        self.x[: self.live] -= self.move.T @ self.u
        if self.weights:
            gradients = self.columns @ torch.stack([weights for _, _, weights in self.weights], dim=1)
            squares = gradients.square().sum(dim=0) / self.margins.shape[1] ** 2
            for (lane, t, _), squared in zip(self.weights, squares, strict=True):
                yield lane, t, float(squared)

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
