"""Computes inner products of vectors in R^d, from which all runs of zeroth-order algorithms on a quadratic loss follow.

In the coordinates y = A^(1/2) (x - center), where A is the matrix of the loss and center its minimiser, a run moves by
y_{t+1} = y_t - c_t w_t - p z_t: along the direction w_t = A^(1/2) u_t by its own coefficient c_t, and along the noise
z_t, which all runs share, by p, its step size times the standard deviation of its noise. (With K directions in a step,
a run moves along one after the other, t counts directions, and every K-th y_t is an iterate.) So

    y_t = y_0 - sum_{s<t} c_s w_s - p N_t,   N_t = sum_{s<t} z_s,

and the differences w_t^T (y_t - y_i) for samples y_i, and every quadratic form of y_t, follow from inner products of
the w, N, y_0 and y_i. The products of w with the samples are the same for all runs, and are most of the work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from dpzero_theory.check import Array
from dpzero_theory.synthetic.clipping import ClippedMean


@dataclass(frozen=True)
class Start:
    """Inner products a^T M b, for one diagonal (d, d) matrix M, of S directions w_t, L starting points y_0 and summed
    noise.

    N_t is the sum of the noise vectors of the first t directions. The fields whose names begin with "drift" are None if
    the noise of a direction is a number and not a vector.

    Attributes:
        square: y_0^T M y_0, shape (L,).
        linear: w_t^T M y_0, shape (S, L).
        drift_own: N_t^T M w_t, shape (S,).
        drift_linear: N_t^T M y_0, shape (S + 1, L).
        drift_cross: N_t^T M w_s, shape (S + 1, S).
        drift_square: N_t^T M N_t, shape (S + 1,).
    """

    square: Tensor
    linear: Tensor
    drift_own: Tensor | None = None
    drift_linear: Tensor | None = None
    drift_cross: Tensor | None = None
    drift_square: Tensor | None = None

    def own(self, push: Tensor) -> Tensor:
        """Return w_t^T M (y_0 - p N_t) for all S directions w_t and L runs, shape (S, L).

        The object holds inner products with one matrix M, of these w_t, each run's starting point y_0, and the sums N_t
        of the first t noise vectors (0 if the noise is a number). p = `push`, shape (L,), is each run's step size times
        the standard deviation of its noise.
        """
        if self.drift_own is None:
            return self.linear.expand(-1, len(push))
        return self.linear - self.drift_own[:, None] * push

    def path(self, gram: Tensor, move: Tensor, push: Tensor) -> Tensor:
        """Return y_t^T M y_t for t = 0, ..., S, shape (S + 1, L), where y_t is the point of each of L runs after t
        directions.

        A run moves from y_t to y_t - c_t w_t - p z_t along the direction w_t and the noise vector z_t (0 if the noise
        is a number). The object holds inner products with one matrix M, of the y_0, the w_t and the sums of the z_t.

        Args:
            gram: w_t^T M w_s, shape (S, S).
            move: the coefficients c_t, shape (S, L).
            push: p, each run's step size times the standard deviation of its noise, shape (L,).
        """
        change = move * (2 * (gram.tril(-1) @ move) + gram.diagonal()[:, None] * move - 2 * self.linear)
        path = self.square + torch.cat([torch.zeros_like(change[:1]), _running_sum(change)])
        if self.drift_cross is not None and self.drift_linear is not None and self.drift_square is not None:
            cross = self.drift_cross.tril(-1) @ move - self.drift_linear
            path = path + push * (2 * cross + push * self.drift_square[:, None])
        return path


@dataclass(frozen=True)
class Products:
    """Inner products that give each run's points after S consecutive directions w_t on a quadratic loss with matrix A,
    in coordinates y = A^(1/2) (x - mean of the samples). The runs of a set share their noise.

    Attributes:
        data: w_t^T y_i for the samples y_i, shape (S, n).
        grams: w_t^T M w_s, shape (S, S), for several diagonal matrices M, of which the first is the identity.
        starts: starts[j][m] has the products, with the m-th M, of the j-th set's starting points and summed noise.
    """

    data: Tensor
    grams: tuple[Tensor, ...]
    starts: tuple[tuple[Start, ...], ...]

    @classmethod
    def of(
        cls,
        w: Tensor,
        points: Tensor,
        lanes: Sequence[tuple[Tensor, Tensor | None]],
        metrics: Sequence[Tensor] = (),
    ) -> Self:
        """Compute the inner products of S directions with the samples, with the starting points of runs and with their
        noise.

        All are given in coordinates y = A^(1/2) (x - mean of the samples), with A the matrix of the quadratic loss.

        Args:
            w: the directions w_t, shape (S, d).
            points: the samples y_i, shape (n, d).
            lanes: for each set of runs a pair: its starting points as columns, shape (d, L), and its noise vectors,
                shape (S, d), or None if the noise of a direction is a number.
            metrics: the diagonals, shape (d,), of matrices M for inner products u' M v, beside the identity.
        """
        scaled, starts = [w, *(w * metric for metric in metrics)], list[tuple[Start, ...]]()
        for y, noise in lanes:
            drift = None if noise is None else torch.cat([torch.zeros_like(noise[:1]), _running_sum(noise)])
            heavy = [y, *(metric[:, None] * y for metric in metrics)]
            each = zip(scaled, heavy, (None, *metrics), strict=True)
            starts.append(tuple(_start(one, y, own, drift, metric) for one, own, metric in each))
        return cls(w @ points.T, tuple(one @ w.T for one in scaled), tuple(starts))


def _start(scaled: Tensor, y: Tensor, heavy: Tensor, drift: Tensor | None, metric: Tensor | None) -> Start:
    # `scaled` has the rows M w_t, `y` the starting points as columns, `heavy` is M y, `drift` has the sums of the first
    # 0, 1, ..., S noise vectors as rows (None if noise is a number), and `metric` is M's diagonal or None for I.
    start = Start((heavy * y).sum(dim=0), scaled @ y)
    if drift is None:
        return start
    far = drift if metric is None else drift * metric
    crosses = (scaled * drift[:-1]).sum(dim=1), drift @ heavy, drift @ scaled.T
    return Start(start.square, start.linear, *crosses, (far * drift).sum(dim=1))


def _running_sum(rows: Tensor) -> Tensor:
    if rows.device.type != "cpu":  # CUDA's cumsum, unlike its matrix products, may change its last bits between calls
        return torch.ones((len(rows), len(rows)), dtype=rows.dtype, device=rows.device).tril() @ rows
    return rows.cumsum(dim=0)


def coefficients(
    data: Tensor,
    gram: Tensor,
    own: Tensor,
    alpha: Tensor,
    limit: Tensor,
    shift: Tensor,
    loop: Callable[..., Tensor] | None = None,
    directions_per_step: int = 1,
) -> Tensor:
    """Return how far each of L runs moves along each of S directions w_t: the c_t, shape (S, L), with which a run goes
    from y_0 to y_0 - sum_t c_t w_t, apart from vector noise.

    Points, samples y_i and directions are in coordinates y = A^(1/2) (x - mean of the samples), where A is the matrix
    of the loss. With K directions in a step, c_t is (alpha/K) (m_t + shift), where m_t is the mean over samples of the
    differences w_t^T (y - y_i) at the run's point y before the step, each clipped to [-limit, limit] for K = 1; for K >
    1 the vector of a sample's K differences is clipped to the norm `limit`.

    Args:
        data: w_t^T y_i for the n samples, shape (S, n).
        gram: w_t^T w_s, shape (S, S).
        own: w_t^T y_0 less w_t^T times the run's vector noise before direction t, as `Start.own` returns it, shape (S,
            L); for forward differences plus (lambda/2) ||w_t||^2, where lambda is each run's smoothing.
        alpha: the step sizes, shape (L,).
        limit: the clips of the differences, shape (S, L). For K > 1 the K rows of a step must be the same.
        shift: the noise numbers, shape (S, L); 0 for vector noise.
        loop: a function that does what `step_loop` does, used for K = 1; `step_loop` itself if None.
        directions_per_step: K, which divides S.
    """
    if directions_per_step > 1:
        return _joint_loop(data, gram, own, alpha, limit, shift, directions_per_step)
    ordered = _sort_rows(data)
    return (loop or step_loop)(ordered, _prefix_sums(ordered), own, gram, alpha, limit, shift)


def step_loop(
    ordered: Tensor, prefix: Tensor, own: Tensor, gram: Tensor, alpha: Tensor, limit: Tensor, shift: Tensor
) -> Tensor:
    """Return how far each of L runs moves along each of S directions w_t, with one direction in a step, shape (S, L).

    The entries are the c_t with which a run goes from y_t to y_t - c_t w_t. c_t is alpha times the sum of `shift` and
    the mean over the samples y_i of w_t^T (y_t - y_i), each clipped to [-limit, limit].

    Args:
        ordered: w_t^T y_i for the n samples, each row sorted, shape (S, n).
        prefix: the sums of the first 0, 1, ..., n values of each row of `ordered`, shape (S, n + 1).
        own: w_t^T y for the point y that a run would have before direction t if all c_t were 0, shape (S, L).
        gram: w_t^T w_s, shape (S, S).
        alpha: the step sizes, shape (L,).
        limit, shift: the clips and the noise numbers, shape (S, L).
    """
    # Sums over sorted values give the clipped mean without a look at each value, since clip_c(a - v) is (a + c - v)^+ -
    # (a - c - v)^+ - c, and if k values v_i are below x, sum_i (x - v_i)^+ is k x less the sum of these values.
    move, n = torch.zeros_like(own), ordered.shape[1]
    ends = torch.stack([-limit, limit], dim=1)
    rows = zip(own, gram, limit, ends, ordered, prefix, shift, move, strict=True)
    for t, (mine, inner, clip, both, values, sums, noise, place) in enumerate(rows):
        here = mine - inner[:t] @ move[:t]
        count = torch.searchsorted(values, here + both)
        (below, above), (less, more) = count, sums.take(count)
        inside = (above - below) * here - (more - less)
        mean = ((below + above - n) * clip + inside) / n
        torch.mul(alpha, mean + noise, out=place)
    return move


def _joint_loop(
    data: Tensor, gram: Tensor, own: Tensor, alpha: Tensor, limit: Tensor, shift: Tensor, directions_per_step: int
) -> Tensor:
    # `coefficients` for K > 1: a sample's vector of the K differences of a step is clipped in norm.
    move = torch.zeros_like(shift)
    for t in range(0, len(shift), directions_per_step):
        step = slice(t, t + directions_per_step)
        here = own[step] - gram[step, :t] @ move[:t]
        mean, _ = ClippedMean(data[step].T, here.dtype)(here, limit[t])
        move[step] = alpha / directions_per_step * (mean + shift[step])
    return move


def _sort_rows(rows: Tensor) -> Tensor:
    if rows.device.type != "cpu":
        return rows.sort(dim=1).values
    # On a CPU this is 8 times as fast as torch's sort
    ordered = torch.empty_like(rows)
    for values, place in zip(rows.numpy(), ordered.numpy(), strict=True):
        _sort(values, place)
    return ordered


def _sort(values: Array, place: Array) -> None:
    # The numbers are sorted by 2^16 bins (numpy's radix sort), which leaves few out of order, and then by its timsort.
    # Of 10,000 numbers this is 3 times as fast as numpy's default sort where AVX-512's compressed stores are slow
    # (Zen 4), and about as fast elsewhere.
    low, high = values.min(), values.max()
    bins = ((values - low) / ((high - low) or 1) * (2**16 - 1)).astype(np.uint16)
    values.take(bins.argsort(kind="stable"), out=place, mode="clip")
    place.sort(kind="stable")


def _prefix_sums(rows: Tensor) -> Tensor:
    sums = rows.new_zeros(len(rows), rows.shape[1] + 1)
    if rows.device.type != "cpu":
        sums[:, 1:] = _blocked_sums(rows)
    else:
        torch.cumsum(rows, dim=1, out=sums[:, 1:])
    return sums


def _blocked_sums(rows: Tensor, width: int = 128) -> Tensor:
    # Cumulative sums along each row by products of blocks of `width` columns, which repeat to the last bit. CUDA's
    # cumsum does not.
    count, n = rows.shape
    blocks = torch.nn.functional.pad(rows, (0, -n % width)).view(count, -1, width)
    inside = blocks @ torch.ones((width, width), dtype=rows.dtype, device=rows.device).triu()
    totals = inside[:, :, -1]
    before = totals @ torch.ones((totals.shape[1],) * 2, dtype=rows.dtype, device=rows.device).triu(1)
    return (inside + before[:, :, None]).view(count, -1)[:, :n]
