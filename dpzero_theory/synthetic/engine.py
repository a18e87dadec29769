"""Zeroth-order sweeps on the quadratic: thousands of runs for little more than one matrix product.

In the coordinates y = A^(1/2) (x - center) the quadratic is f(x; x_i) = ||y - y_i||^2/2, a direction u
becomes w = A^(1/2) u, and the two-point difference is w^T (y - y_i), exactly and for every smoothing. So for
a block of steps

1. one matrix product w_t^T y_i gives the data's part of every difference of every lane;
2. a sort of it, with prefix sums, gives every lane's clipped mean by two binary searches: the samples whose
   difference is above C, and those below -C, are the ends of the sorted list;
3. lanes move along the w_t (and along the shared noise), so their own part w_t^T y follows from inner
   products of the directions, and no lane's iterate is formed inside the block.

Quadratic forms of every iterate, such as the squared gradient norm, follow from the same inner products.
Equal to `dpzero_theory.optim.reference` up to rounding: the tests hold it to 1e-9.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dpzero_theory import check
from dpzero_theory.synthetic.lanes import Draw, Lanes, blocks
from dpzero_theory.synthetic.problems import Quadratic

__all__ = ["Outcome", "dpgd_0th", "dpzero"]

Array = NDArray[np.float64]
Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the lanes end with; lanes in the order they were given.

    Attributes:
        last: x_T, shape (L, d).
        average: the mean of x_0, ..., x_{T-1}, shape (L, d).
        gradient_squared: E||A (x_tau - c)||^2 over tau uniform on 0..T-1, exactly, for each center c;
            shape (centers, L). Where c is the mean of a sample, A (x - c) is the gradient of its loss.
        excess: E[(x_tau - c)^T A (x_tau - c)]/2 likewise: the loss above its minimum.
    """

    last: Array
    average: Array
    gradient_squared: Array
    excess: Array


def dpzero(
    problem: Quadratic,
    x0: Array,
    lanes: Lanes,
    *,
    directions: Draw,
    noise: Draw,
    centers: Sequence[Array] = (),
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    block: int = 128,
) -> Outcome:
    """Run Algorithm 2 on every lane, all with the same directions and standard noise.

    Args:
        problem: the quadratic loss; x0: shape (d,), every lane's start.
        directions: stream of u_t, rows of length d (public; a seed is fine).
        noise: stream of standard normal scalars, which each lane multiplies by its noise_std. The noise of a
            release must be private; a seeded stream is for synthetic data, and then nothing is private.
        centers: where `Outcome` measures after the problem's own minimiser; shape (d,) each.
        block: steps per matrix product. dtype, device: of the computation, on torch.
    """
    return _run(problem, x0, lanes, directions, noise, centers, _Place(dtype, device, block), vector=False)


def dpgd_0th(
    problem: Quadratic,
    x0: Array,
    lanes: Lanes,
    *,
    directions: Draw,
    noise: Draw,
    centers: Sequence[Array] = (),
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    block: int = 128,
) -> Outcome:
    """Run Algorithm 1 on every lane: as `dpzero`, but clip bounds ||difference u||; noise rows are in R^d."""
    return _run(problem, x0, lanes, directions, noise, centers, _Place(dtype, device, block), vector=True)


@dataclass(frozen=True)
class _Place:
    dtype: torch.dtype
    device: str
    block: int

    def tensor(self, values: NDArray[np.generic]) -> Tensor:
        return torch.as_tensor(values, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class _Block:
    """One block of K steps: directions w (K, d), their norms as u (K,), noise (K,) or (K, d)."""

    w: Tensor
    norms: Tensor
    noise: Tensor


def _run(
    problem: Quadratic,
    x0: Array,
    lanes: Lanes,
    directions: Draw,
    noise: Draw,
    centers: Sequence[Array],
    place: _Place,
    *,
    vector: bool,
) -> Outcome:
    start = check.real_array("x0", x0)
    if start.shape != (problem.d,):
        raise ValueError(f"x0 must have shape (d,) = ({problem.d},); got {start.shape}")
    order = np.argsort(-lanes.steps, kind="stable")
    sorted_lanes = lanes.take(order)
    root = place.tensor(np.sqrt(problem.spectrum))
    origin = place.tensor(problem.center)
    points = place.tensor(problem._points)
    alpha, clip, std = (place.tensor(a) for a in (sorted_lanes.step_size, sorted_lanes.clip, sorted_lanes.noise_std))
    targets = [root * (place.tensor(c) - origin) for c in (problem.center, *centers)]
    y = (root * (place.tensor(start) - origin))[:, None].repeat(1, len(lanes))
    total = torch.zeros_like(y)
    forms = torch.zeros((2, len(targets), len(lanes)), dtype=place.dtype, device=place.device)

    for begin, end in blocks(lanes.steps, place.block):
        live = int((sorted_lanes.steps > begin).sum())
        u = place.tensor(directions(end - begin))
        raw = place.tensor(noise(end - begin))
        step = _Block(u * root, u.norm(dim=1), raw * root if vector else raw)
        here = y[:, :live]
        move = _coefficients(step, points, here, alpha[:live], clip[:live], std[:live], vector)
        drift = _before(step.noise) if vector else None
        push = alpha[:live] * std[:live]
        for index, metric in enumerate((root * root, None)):
            forms[index, :, :live] += _forms(step, here, move, drift, push, targets, metric)
        # sum over the block of x_t, where coefficient s has acted on the steps after s
        later = torch.arange(end - begin - 1, -1, -1, dtype=place.dtype, device=place.device)
        total[:, :live] += (end - begin) * here - step.w.T @ (later[:, None] * move)
        y[:, :live] = here - step.w.T @ move
        if drift is not None:
            total[:, :live] -= drift.sum(dim=0)[:, None] * push
            y[:, :live] -= step.noise.sum(dim=0)[:, None] * push

    steps = place.tensor(sorted_lanes.steps)
    back = np.argsort(order, kind="stable")

    def points_of(columns: Tensor) -> Array:
        return _numpy((columns / root[:, None] + origin[:, None]).T)[back]

    means = _numpy(forms / steps)[:, :, back]
    return Outcome(points_of(y), points_of(total / steps), means[0], means[1] / 2)


def _coefficients(
    step: _Block, points: Tensor, y: Tensor, alpha: Tensor, clip: Tensor, std: Tensor, vector: bool
) -> Tensor:
    """How far each lane moves along each direction of the block, shape (K, lanes): y <- y - c_t w_t."""
    w = step.w
    count, n = w.shape[0], points.shape[0]
    ordered = _sort_rows(w @ points.T)
    prefix = torch.cat([ordered.new_zeros(count, 1), ordered.cumsum(dim=1)], dim=1)
    gram = w @ w.T
    own = w @ y
    if vector:
        own = own - (w * _before(step.noise)).sum(dim=1)[:, None] * (alpha * std)
    move = torch.zeros((count, y.shape[1]), dtype=w.dtype, device=w.device)
    bound = clip / step.norms[:, None] if vector else clip.expand(count, -1)
    for t in range(count):
        a = own[t] - gram[t, :t] @ move[:t]
        c = bound[t]
        above = torch.searchsorted(ordered[t], a - c)
        below = torch.searchsorted(ordered[t], a + c, right=True)
        inside = (below - above) * a - (prefix[t][below] - prefix[t][above])
        mean = ((above + below - n) * c + inside) / n
        move[t] = alpha * (mean if vector else mean + std * step.noise[t])
    return move


def _forms(
    step: _Block,
    y: Tensor,
    move: Tensor,
    drift: Tensor | None,
    push: Tensor,
    targets: Sequence[Tensor],
    metric: Tensor | None,
) -> Tensor:
    """Sum over the block's iterates of (y_t - c)^T M (y_t - c), M = diag(metric), for each target c.

    y_t = y - sum_{s<t} move_s w_s - push drift_t, so each form is that of y, a linear part in y - c, and the
    form of the displacement, whose own direction part grows by 2 move_t sum_{s<t} (..) + move_t^2 (..).
    """
    scaled = step.w if metric is None else step.w * metric
    gram = scaled @ step.w.T
    count = len(gram)
    cross = gram.tril(-1) @ move
    growth = move * (2 * cross + gram.diagonal()[:, None] * move)
    later = torch.arange(count - 1, -1, -1, dtype=move.dtype, device=move.device)[:, None]
    displacement = (later * growth).sum(dim=0)
    if drift is not None:
        heavy = drift if metric is None else drift * metric
        displacement = displacement + push * (
            2 * (((heavy @ step.w.T).tril(-1) @ move).sum(dim=0)) + push * (heavy * drift).sum()
        )
    forms = []
    for target in targets:
        offset = y - target[:, None]
        linear = (later * move * (scaled @ offset)).sum(dim=0)
        if drift is not None:
            linear = linear + push * (heavy.sum(dim=0) @ offset)
        square = offset * offset if metric is None else metric[:, None] * offset * offset
        forms.append(count * square.sum(dim=0) - 2 * linear + displacement)
    return torch.stack(forms)


def _before(rows: Tensor) -> Tensor:
    """Row t is the sum of the rows before t."""
    return rows.cumsum(dim=0) - rows


def _sort_rows(rows: Tensor) -> Tensor:
    """Each row in ascending order. numpy's vectorised sort is 8 times as fast as torch's on a CPU."""
    if rows.device.type == "cpu":
        return torch.from_numpy(np.sort(rows.numpy(), axis=1))
    return rows.sort(dim=1).values


def _numpy(values: Tensor) -> Array:
    return values.cpu().numpy().astype(np.float64)
