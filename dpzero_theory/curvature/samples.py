"""Measures Hessians of single samples' losses f_i: the largest norm, and the root mean square of tr|Hess f_i|.

The norm enters the smoothness ell, and the root mean square the `sample_rank` of `theory.problem.Problem`.

tr|Hess f_i(x)| is the smallest trace of an H_i with -H_i <= Hess f_i(x) <= H_i. A mean over samples, unlike a maximum,
can be measured on a few of them.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from dpzero_theory.curvature.intervals import Interval
from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.spectrum import Effort, measure_spectrum


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What was measured of the Hessians of single samples' losses f_i.

    Attributes:
        norm: the largest upper end of the intervals of ||Hess f_i|| for the samples drawn.
        trace: a t interval, from the samples drawn, for the root mean square of tr|Hess f_i| over all samples.
        count: how many samples were drawn.
    """

    norm: float
    trace: Interval
    count: int


def measure_samples(
    objective: Objective,
    x: torch.Tensor,
    generator: torch.Generator,
    count: int,
    effort: Effort,
    level: float,
) -> Samples:
    """Measure the Hessians of single samples' losses f_i at the weights x, for distinct samples drawn at random.

    The upper end of the interval for the root mean square of tr|Hess f_i| errs on the safe side; the lower end is no
    bound.

    Args:
        objective: the losses of at least 2 samples.
        x: the weights, shape (d,).
        generator: a CPU generator, which draws the samples and directions.
        count: how many samples, at least 2; all of them if the objective has fewer.
        effort: how many Hessian products are spent on each sample, as `spectrum.Effort`.
        level: the coverage probability of the interval of the trace, and of each norm.

    Raises:
        ValueError: fewer than 2 samples, or a product of a Hessian with a vector that is not finite.
        PreconditionError: a Hessian that is zero.
    """
    # The upper end of one sample's bracket is a number T with E[T | i] >= tr|Hess f_i|, so E[T^2] is at least the mean
    # square of the traces
    chosen = torch.randperm(objective.n, generator=generator)[:count].tolist()
    spectra = [measure_spectrum(objective.sample_hessian(x, index), generator, effort, level) for index in chosen]
    low, middle, high = np.square(np.maximum([spectrum.bracket for spectrum in spectra], 0.0)).T
    square = Interval.of_mean(middle, level, lows=low, highs=high)
    ends = [math.sqrt(max(end, 0.0)) for end in (square.low, square.estimate, square.high)]
    return Samples(
        norm=max(spectrum.norm.high for spectrum in spectra),
        trace=Interval(ends[0], ends[1], ends[2], square.kind, square.level),
        count=len(spectra),
    )
