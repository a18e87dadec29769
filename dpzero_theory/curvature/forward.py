"""Estimates the constants from losses alone, for models too large to differentiate, by differences along directions.

f_i is the loss of sample i, F their mean and A the Hessian of F at x; u and v are independent random directions of
length sqrt(d). At width h

    u^T grad f_i ~ (f_i(x + h u) - f_i(x - h u))/(2 h),
    u^T A u ~ (F(x + h u) - 2 F(x) + F(x - h u))/h^2,
    u^T A v ~ (F(x + h u + h v) - F(x + h u - h v) - F(x - h u + h v) + F(x - h u - h v))/(4 h^2),

with E[(u^T grad f_i)^2] = ||grad f_i||^2, E[u^T A u] = tr(A) and E[(u^T A v)^2] = ||A||_F^2. The last two differences
have errors of order h^2 from fourth derivatives and of order (rounding of F)/h^2; repeating them at h/2 shows how large
these errors are. A power method cannot run on such numbers, so ||A||_2 is not measured. But ||A||_F^2/tr|A| <= ||A||_2
<= ||A||_F, and therefore

    |tr A|/||A||_F <= tr|A|/||A||_2,   and for A >= 0 also   tr(A)/||A||_2 <= (tr(A)/||A||_F)^2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.curvature.intervals import Interval, quantiles
from dpzero_theory.curvature.lanczos import random_start
from dpzero_theory.problem_file import ProblemFile


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Estimates of the gradients and the Hessian of a mean loss F at a point x, from differences of losses near x.

    The losses of n samples are evaluated at points x +- h u for random directions u, uniform on the sphere of radius
    sqrt(d), so that E[u u^T] is the identity.

    Attributes:
        value: F(x).
        gradient_norms: estimates of the norm of the gradient of each sample's loss at x, shape (n,): root mean squares,
            over the directions u, of its slope along u.
        trace: an `Interval` of tr(A), where A is the (d, d) Hessian of F at x: the estimate at the width h, and a t
            interval over the directions, widened to hold the estimate at h/2; its kind is "estimate" and its level 0.
        squared_frobenius: the same of ||A||_F^2 = tr(A^2); rounding biases it upward, since errors are squared.
        rank: two estimates about the effective rank tr|A|/||A||_2, without a probability (kind "estimate", level 0).
            `low` and `estimate` are |tr A|/||A||_F, a lower bound on it, and `high` is (tr(A)/||A||_F)^2, an upper
            bound if A is positive semidefinite, each with the estimates in place of tr A and ||A||_F, cut to [1, d].
        d: the dimension of x.
        evaluations: how often the losses of all samples were evaluated.
    """

    value: float
    gradient_norms: NDArray[np.float64]
    trace: Interval
    squared_frobenius: Interval
    rank: Interval
    d: int
    evaluations: int

    def problem_file(self, data: str, least_loss: float = 0.0) -> ProblemFile:
        """Return the problem file that `dpzero_theory.params` reads, with constants from these estimates.

        They are d; smoothness, the root of the upper end of ||A||_F^2; r, the larger |end| of tr(A) over it, cut to
        [1, d]; lipschitz, the largest gradient norm; gap, F(x) - least_loss; and loss_bound, |F(x)|. Raises ValueError
        for another `data`, or a constant that is not above 0.

        Args:
            data: what the samples are, as the file says it: "public", "synthetic" or "private".
            least_loss: a lower bound on every loss, below F(x).
        """
        # The theorems need tr|A| for r. Losses alone show |tr A|, which is less if A is indefinite; a caveat says so.
        smoothness = math.sqrt(self.squared_frobenius.high)  # since the Frobenius norm is at least the spectral norm
        trace = max(abs(self.trace.low), abs(self.trace.high))
        return ProblemFile(
            constants={
                "d": self.d,
                "r": min(max(trace / smoothness, 1.0), float(self.d)),
                "lipschitz": float(self.gradient_norms.max()),
                "smoothness": smoothness,
                "gap": self.value - least_loss,
                "loss_bound": abs(self.value),
            },
            caveats=(
                "estimates, not bounds: all constants come from differences of losses along random directions at one "
                f"point and {len(self.gradient_norms)} samples",
                "ell is an estimate of the Frobenius norm of Hess F, above its spectral norm; Hessians of single "
                "samples were not measured and may be larger",
                "r is |tr(Hess F)|/ell; where the Hessian is indefinite the theorems need tr|Hess F|, which is larger",
                f"gap is F(x0) - {least_loss:g}, an upper bound because no loss is lower than that",
                "loss_bound is |F| at the start, not along the private run",
            ),
            data=data,
            measurements={
                "gradient_norms": quantiles(self.gradient_norms, (0.5, 0.9, 0.99, 1.0)),
                "trace": self.trace.as_dict(),
                "squared_frobenius": self.squared_frobenius.as_dict(),
                "effective_rank": self.rank.as_dict(),
                "evaluations": self.evaluations,
            },
        )


def measure_forward(
    losses: Callable[[Tensor], Tensor],
    x: Tensor,
    width: float,
    directions: int,
    generator: torch.Generator,
    level: float = 0.95,
) -> Differences:
    """Estimate the gradient norm of each sample's loss, and trace and Frobenius norm of the mean loss's Hessian, from
    losses alone: those of all samples, 12 times for each pair of random directions, and twice more.

    Args:
        losses: a function of x that returns the losses of all n samples, shape (n,).
        x: the point, shape (d,).
        width: how far from x losses are evaluated, as a multiple of a direction of length sqrt(d); positive.
        directions: the number of pairs of random directions, at least 2.
        generator: a CPU generator, which draws the directions.
        level: the coverage probability, in (0, 1), of the t intervals, before they are widened (see `Differences`).

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: the estimate of the Hessian's Frobenius norm at this width is 0.
    """
    h, count = check.real("width", width, above=0), check.integer("directions", directions, at_least=2)

    def value(at: Tensor) -> float:
        return float(losses(at).double().mean())

    center = value(x)
    second: dict[float, list[float]] = {h: [], h / 2: []}
    mixed: dict[float, list[float]] = {h: [], h / 2: []}
    squares = torch.zeros_like(losses(x), dtype=torch.float64)
    for _ in range(count):
        u, v = (math.sqrt(len(x)) * random_start(len(x), generator, x) for _ in range(2))
        for w in (h, h / 2):
            plus, minus = losses(x + w * u).double(), losses(x - w * u).double()
            second[w].append((float(plus.mean()) - 2 * center + float(minus.mean())) / w**2)
            same = value(x + w * (u + v)) + value(x - w * (u + v))
            other = value(x + w * (u - v)) + value(x - w * (u - v))
            mixed[w].append(((same - other) / (4 * w**2)) ** 2)
        squares += ((plus - minus) / h) ** 2 / count
    trace = _widened(Interval.of_mean(second[h], level), sum(second[h / 2]) / count)
    square = _widened(Interval.of_mean(mixed[h], level), sum(mixed[h / 2]) / count)
    check.precondition(square.estimate > 0, "the curvature must be visible: the differences at this width are all 0")
    ratio = abs(trace.estimate) / math.sqrt(square.estimate)
    low, high = (min(max(bound, 1.0), float(len(x))) for bound in (ratio, ratio * ratio))
    return Differences(
        value=center,
        gradient_norms=squares.sqrt().cpu().numpy(),
        trace=trace,
        squared_frobenius=square,
        rank=Interval(low, low, high, "estimate", 0.0),
        d=len(x),
        evaluations=2 + 12 * count,
    )


def _widened(interval: Interval, other: float) -> Interval:
    return Interval(min(interval.low, other), interval.estimate, max(interval.high, other), "estimate", 0.0)
