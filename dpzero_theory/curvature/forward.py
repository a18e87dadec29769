"""Estimates gradient norms, the trace and the Frobenius norm of a Hessian from losses alone, without derivatives.

f_i is the loss of sample i, F their mean and A the Hessian of F at x; u and v are independent random directions,
uniform on the sphere of radius sqrt(d). At width h

    u^T grad f_i ~ (f_i(x + h u) - f_i(x - h u))/(2 h),
    u^T A u ~ (F(x + h u) - 2 F(x) + F(x - h u))/h^2,
    u^T A v ~ (F(x + h u + h v) - F(x + h u - h v) - F(x - h u + h v) + F(x - h u - h v))/(4 h^2),

with E[(u^T grad f_i)^2] = ||grad f_i||^2, E[u^T A u] = trace(A) and E[(u^T A v)^2] = ||A||_F^2. The last two have
errors of order h^2 from fourth derivatives, and of order (rounding of F)/h^2; repeating them at h/2 shows how large
these errors are. ||A||_2 cannot be measured so, but the effective rank trace|A|/||A||_2 lies between bounds:

    |trace A|/||A||_F <= trace|A|/||A||_2,   and for A >= 0 also   trace(A)/||A||_2 <= (trace(A)/||A||_F)^2.
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
    """Estimates of the gradients and the Hessian of a mean loss F at a point x in R^d, from losses of n samples near x.

    A is the Hessian of F at x. An `Interval` here has kind "estimate": it does not hold with a known probability.

    Attributes:
        value: F(x).
        gradient_norms: estimates of the norm of the gradient of each sample's loss at x, shape (n,).
        trace: an `Interval` of trace(A): Student's t interval over the random directions for differences at the width
            h, widened to contain the estimate at h/2. h and its coverage are `width` and `level` of `measure_forward`.
        squared_frobenius: an `Interval` of ||A||_F^2, made in the same way. Rounding makes the estimate too large.
        rank: an `Interval` of the effective rank trace|A|/||A||_2, in [1, d]. `low` and `estimate` are |trace
            A|/||A||_F, which is at most this rank. `high` is (trace(A)/||A||_F)^2, which is at least this rank if A is
            positive semidefinite. The estimates of trace(A) and ||A||_F stand in for their values.
        d: the dimension of x.
        evaluations: how many times the losses of all samples were evaluated.
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

        With t the larger absolute end of `trace`, the constants are `d`; smoothness, the root of the upper end of
        `squared_frobenius`; r, t/smoothness cut to [1, d]; lipschitz, the largest of `gradient_norms`; gap, `value` -
        least_loss; and loss_bound, |`value`|. Raises ValueError for another `data`, or a constant that is not above 0.

        Args:
            data: the kind of the samples: "public", "synthetic" or "private".
            least_loss: a lower bound on every sample's loss; it must be below `value`.
        """
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
    """Estimate samples' gradient norms, and trace and Frobenius norm of the mean loss's Hessian, by 12 `directions` + 2
    evaluations of the losses of all samples.

    Args:
        losses: a function of x that returns the losses of all n samples, shape (n,).
        x: the point, shape (d,).
        width: h > 0 in the points x + h u and x - h u, where the direction u has length sqrt(d).
        directions: the number of pairs (u, v) of random directions, at least 2. At h and at h/2 a pair needs the points
            x +- h u and x +- h u +- h v.
        generator: a CPU generator, which draws the directions.
        level: the coverage probability, in (0, 1), of the Student's t intervals from which `trace` and
            `squared_frobenius` are computed.

    Returns:
        The estimates. Their intervals claim no coverage: `Interval.kind` is "estimate" and `Interval.level` is 0.

    Raises:
        ValueError: an argument is outside its range.
        PreconditionError: the estimate of the Frobenius norm is 0.
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
