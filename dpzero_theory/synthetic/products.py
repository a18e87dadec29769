"""What the zeroth-order methods on the quadratic need of d-dimensional vectors: a few inner products.

In the coordinates y = A^(1/2) (x - center) a lane moves by y_{t+1} = y_t - c_t w_t - p z_t: along the direction
w_t = A^(1/2) u_t by its own coefficient, and along the noise z_t, shared by all lanes, by p = alpha sigma (with K
directions a step it moves along one after the other, t counts directions, and iterates are every K-th point). So

    y_t = y_0 - sum_{s<t} c_s w_s - p N_t,   N_t = sum_{s<t} z_s,

and the differences w_t^T (y_t - y_i), and every quadratic form of y_t, follow from inner products of w, N, y_0 and
the data. They are sums over coordinates: `Products` can be made of blocks of coordinates and added.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpzero_theory.synthetic.clipping import ClippedMean


@dataclass(frozen=True)
class Form:
    """Inner products in one metric M for the form (y - c)^T M (y - c) of S directions and L starting points.

    square (L,): (y_0 - c)^T M (y_0 - c); linear (S, L): w_t^T M (y_0 - c); gram (S, S): w_t^T M w_s. With vector
    noise drift_linear (S + 1, L): N_t^T M (y_0 - c), drift_cross (S + 1, S): N_t^T M w_s, and drift_square
    (S + 1,): N_t^T M N_t; otherwise None.
    """

    square: Tensor
    linear: Tensor
    gram: Tensor
    drift_linear: Tensor | None = None
    drift_cross: Tensor | None = None
    drift_square: Tensor | None = None


@dataclass(frozen=True)
class Products:
    """Everything S directions need: data (S, n): w_t^T y_i; gram (S, S): w_t^T w_s; own (S, L): w_t^T y_0;
    own_drift (S,): w_t^T N_t, or None without vector noise; and one `Form` per measured form."""

    data: Tensor
    gram: Tensor
    own: Tensor
    own_drift: Tensor | None
    forms: tuple[Form, ...]

    def tensors(self) -> list[Tensor]:
        """All of them, in a fixed order."""
        parts = (self, *self.forms)
        return [value for part in parts for value in vars(part).values() if isinstance(value, Tensor)]

    def __iadd__(self, other: "Products") -> "Products":
        """Add, in place, the products of other coordinates."""
        for mine, more in zip(self.tensors(), other.tensors(), strict=True):
            mine += more
        return self


def products(
    w: Tensor, points: Tensor, y: Tensor, noise: Tensor | None, targets: Sequence[tuple[Tensor, Tensor | None]]
) -> Products:
    """The products of some coordinates.

    Args:
        w: directions, shape (S, d); points: y_i, shape (n, d); y: starting points as columns, shape (d, L).
        noise: z_t, shape (S, d), or None.
        targets: (c, diagonal of M or None for the identity) of each form, shape (d,).
    """
    drift = None if noise is None else torch.cat([torch.zeros_like(noise[:1]), noise.cumsum(dim=0)])
    return Products(
        data=w @ points.T,
        gram=w @ w.T,
        own=w @ y,
        own_drift=None if drift is None else (w * drift[:-1]).sum(dim=1),
        forms=tuple(_form(w, y, drift, center, metric) for center, metric in targets),
    )


def _form(w: Tensor, y: Tensor, drift: Tensor | None, center: Tensor, metric: Tensor | None) -> Form:
    offset = y - center[:, None]
    heavy = offset if metric is None else metric[:, None] * offset
    scaled = w if metric is None else w * metric
    form = Form((heavy * offset).sum(dim=0), w @ heavy, scaled @ w.T)
    if drift is None:
        return form
    square = (drift * drift if metric is None else metric * drift * drift).sum(dim=1)
    return Form(form.square, form.linear, form.gram, drift @ heavy, drift @ scaled.T, square)


def coefficients(
    given: Products,
    alpha: Tensor,
    clip: Tensor,
    std: Tensor,
    norms: Tensor | None,
    noise: Tensor | None,
    loop: Callable[..., Tensor] | None = None,
    directions_per_step: int = 1,
) -> Tensor:
    """How far each lane moves along each direction, shape (S, L).

    Args:
        given: products of these S directions.
        alpha, clip, std: step size, clip and noise standard deviation of each lane, shape (L,).
        norms: ||u_t||, shape (S,), where clip bounds ||difference u_t|| (Algorithm 1), else None.
        noise: standard scalar noise, shape (S,), where noise is scalar (Algorithm 2), else None.
        loop: what runs `step_loop`, if not itself: see `Captured`.
        directions_per_step: K, which divides S. More than one are Algorithm 2's, and clip bounds a sample's K
            differences in norm.
    """
    if directions_per_step > 1:
        assert noise is not None
        return _joint_loop(given, alpha, clip, noise[:, None] * std, directions_per_step)
    ordered = _sort_rows(given.data)
    prefix = torch.cat([ordered.new_zeros(len(ordered), 1), ordered.cumsum(dim=1)], dim=1)
    own = given.own if given.own_drift is None else given.own - given.own_drift[:, None] * (alpha * std)
    own = own.expand(-1, len(alpha))
    limit = clip.expand_as(own) if norms is None else clip / norms[:, None]
    shift = torch.zeros_like(own) if noise is None else noise[:, None] * std
    return (loop or step_loop)(ordered, prefix, own, given.gram, alpha, limit, shift)


def step_loop(
    ordered: Tensor, prefix: Tensor, own: Tensor, gram: Tensor, alpha: Tensor, limit: Tensor, shift: Tensor
) -> Tensor:
    """The S steps one after the other: each lane moves by alpha (clipped mean + shift), shape (S, L).

    ordered: sorted rows of data, shape (S, n), and prefix their sums, shape (S, n + 1); own, limit (clip of the scalar)
    and shift: shape (S, L); alpha: shape (L,).
    """
    n = ordered.shape[1]
    move = torch.zeros_like(own)
    for t in range(len(own)):
        a, c = own[t] - gram[t, :t] @ move[:t], limit[t]
        above = torch.searchsorted(ordered[t], a - c)
        below = torch.searchsorted(ordered[t], a + c, right=True)
        inside = (below - above) * a - (prefix[t][below] - prefix[t][above])
        mean = ((above + below - n) * c + inside) / n
        move[t] = alpha * (mean + shift[t])
    return move


def _joint_loop(given: Products, alpha: Tensor, clip: Tensor, shift: Tensor, directions_per_step: int) -> Tensor:
    """As `step_loop`, by alpha/K (clipped mean + shift) along each of the K directions of a step."""
    move = torch.zeros_like(shift)
    for t in range(0, len(shift), directions_per_step):
        step = slice(t, t + directions_per_step)
        here = given.own[step] - given.gram[step, :t] @ move[:t]
        mean, _ = ClippedMean(given.data[step].T, here.dtype)(here.expand(-1, len(alpha)), clip)
        move[step] = alpha / directions_per_step * (mean + shift[step])
    return move


def form_path(form: Form, move: Tensor, push: Tensor) -> Tensor:
    """The form at y_0, ..., y_S for each lane, shape (S + 1, L); push is p = alpha sigma, shape (L,)."""
    change = move * (2 * (form.gram.tril(-1) @ move) + form.gram.diagonal()[:, None] * move - 2 * form.linear)
    path = form.square + torch.cat([torch.zeros_like(change[:1]), change.cumsum(dim=0)])
    if form.drift_cross is not None and form.drift_linear is not None and form.drift_square is not None:
        cross = form.drift_cross.tril(-1) @ move - form.drift_linear
        path = path + push * (2 * cross + push * form.drift_square[:, None])
    return path


def _sort_rows(rows: Tensor) -> Tensor:
    """Each row in ascending order. numpy's vectorised sort is 8 times as fast as torch's on a CPU."""
    if rows.device.type == "cpu":
        return torch.from_numpy(np.sort(rows.numpy(), axis=1))
    return rows.sort(dim=1).values
