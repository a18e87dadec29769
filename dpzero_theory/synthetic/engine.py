"""Zeroth-order sweeps on the quadratic: thousands of runs for little more than one matrix product.

In the coordinates y = A^(1/2) (x - center) the quadratic is f(x; x_i) = ||y - y_i||^2/2, a direction u
becomes w = A^(1/2) u, and the two-point difference is w^T (y - y_i), exactly and for every smoothing. So for
a block of steps

1. one matrix product w_t^T y_i gives the data's part of every difference of every lane;
2. a sort of it, with prefix sums, gives every lane's clipped mean by two binary searches: the samples whose
   difference is above C, and those below -C, are the ends of the sorted list;
3. lanes move along the w_t (and along the shared noise), so their own part w_t^T y follows from inner
   products of the directions, and no lane's iterate is formed inside the block.

With K directions a step a sample's K differences are clipped jointly in norm, and instead of 2 the norms of all samples
and lanes come from one product of K numbers each (`clipping`).

Quadratic forms of every iterate, such as the squared gradient norm, follow from the same inner products.
Equal to `dpzero_theory.optim.reference` up to rounding: the tests hold it to 1e-9.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.synthetic.captured import Captured
from dpzero_theory.synthetic.lanes import Draw, Lanes, blocks
from dpzero_theory.synthetic.place import Place, checked_start, to_numpy
from dpzero_theory.synthetic.problems import Quadratic
from dpzero_theory.synthetic.products import coefficients, form_path, products, step_loop


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

    @classmethod
    def of(cls, last: Tensor, total: Tensor, forms: Tensor, scale: Tensor, origin: Tensor, lanes: Lanes) -> Self:
        """From x_T and the sums over t of x_t and of both forms, the longest lanes first, x as scale (x - origin)."""
        ordered, back = lanes.longest_first()
        steps = last.new_tensor(ordered.steps)
        end, average = (to_numpy((y / scale[:, None] + origin[:, None]).T)[back] for y in (last, total / steps))
        means = to_numpy(forms / steps)[..., back]
        return cls(end, average, means[0], means[1] / 2)


def run(
    problem: Quadratic,
    x0: Array,
    lanes: Lanes,
    *,
    vector: bool,
    directions: Draw,
    noise: Draw,
    directions_per_step: int = 1,
    centers: Sequence[Array] = (),
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    block: int = 128,
) -> Outcome:
    """Run Algorithm 2, or with `vector` Algorithm 1, on every lane, all with the same directions and standard noise.

    The step is that of `optim.reference`, x - (alpha/K) sum_k (M_k + sigma z_k) u_k.

    Args:
        problem: the quadratic loss; x0: shape (d,), every lane's start.
        vector: clip bounds ||difference u||, and noise rows are in R^d.
        directions: stream of u, rows of length d, K for each step (public; a seed is fine, see `lanes.directions_of`).
        noise: stream of standard normal scalars, K for each step, or rows, which each lane multiplies by its noise_std.
            The noise of a release must be private; a seeded stream is for synthetic data, and then nothing is private.
        directions_per_step: K >= 1, whose differences are clipped jointly; 1 with `vector`.
        centers: where `Outcome` measures after the problem's own minimiser; shape (d,) each.
        block: directions per matrix product, at least K. dtype, device: of the computation, on torch.
    """
    several = check.integer("directions_per_step", directions_per_step, at_most=1 if vector else 2**16)
    place = Place(dtype, device)
    start = checked_start(x0, problem.d)
    ordered, _ = lanes.longest_first()
    root = place(np.sqrt(problem.spectrum))
    origin = place(problem.center)
    points = place(problem.points)
    alpha, clip, std = (place(a) for a in (ordered.step_size, ordered.clip, ordered.noise_std))
    targets = [root * (place(c) - origin) for c in (problem.center, *centers)]
    y = (root * (place(start) - origin))[:, None].repeat(1, len(lanes))
    total = torch.zeros_like(y)
    forms = torch.zeros((2 * len(targets), len(lanes)), dtype=place.dtype, device=place.device)

    loop = Captured(step_loop)
    measured = [(target, metric) for metric in (root * root, None) for target in targets]
    for begin, end in blocks(lanes.steps, max(block // several, 1)):
        live = int((ordered.steps > begin).sum())
        count = (end - begin) * several
        u, raw = place(directions(count)), place(noise(count))
        w, z, here = u * root, raw * root if vector else None, y[:, :live]
        given = products(w, points, here, z, measured)
        move = coefficients(
            given,
            alpha[:live],
            clip[:live],
            std[:live],
            u.norm(dim=1) if vector else None,
            None if vector else raw,
            loop,
            several,
        )
        push = alpha[:live] * std[:live]
        for index, form in enumerate(given.forms):
            forms[index, :live] += form_path(form, move, push)[:-1:several].sum(dim=0)
        # the sum of x_t over the block, in which a step's coefficients act on the steps after it
        later = torch.arange(end - begin - 1, -1, -1, dtype=place.dtype, device=place.device)
        later = later.repeat_interleave(several)[:, None]
        total[:, :live] += (end - begin) * here - w.T @ (later * move)
        y[:, :live] = here - w.T @ move
        if z is not None:
            total[:, :live] -= (later * z).sum(dim=0)[:, None] * push
            y[:, :live] -= z.sum(dim=0)[:, None] * push

    forms = forms.view(2, len(targets), len(lanes))
    return Outcome.of(y, total, forms, root, origin, lanes)


dpzero = partial(run, vector=False)
"""Algorithm 2: scalar differences are clipped, the noise is a scalar."""
dpgd_0th = partial(run, vector=True)
"""Algorithm 1."""
