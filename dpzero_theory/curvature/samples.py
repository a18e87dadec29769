"""Measures the Hessians of single samples' losses: their largest norm, and the root mean square of trace|Hessian|.

The norm enters `Problem.smoothness`, and the root mean square `Problem.sample_rank`. For a Hessian A, trace|A| is the
sum of the absolute eigenvalues; it is the smallest trace of a matrix H with -H <= A <= H.
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
    """What was measured of the Hessians of single samples' losses.

    Attributes:
        norm: the largest, over the samples drawn, of the upper ends of the intervals for ||Hessian||_2.
        trace: an `Interval` of the root mean square, over all samples, of the sum of a Hessian's absolute eigenvalues,
            by Student's t from the samples drawn; its `level` is the one given to `measure_samples`.
        count: the number of samples drawn.
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
    """Measure the largest ||Hessian||_2 and the root mean square trace|Hessian| of single samples' losses at weights x.

    Distinct samples are drawn at random. `Samples.trace.high` tends to be too large; `Samples.trace.low` may be too.

    Args:
        objective: the losses of at least 2 samples.
        x: the weights, shape (d,).
        generator: a CPU generator, which draws the samples and the directions.
        count: the number of samples, at least 2; all are taken if there are fewer.
        effort: how many products with each sample's Hessian to spend.
        level: the coverage probability, in (0, 1), of Student's t interval in `Samples.trace`, and the probability with
            which one Hessian's spectral norm is at most the upper end measured for it.

    Raises:
        ValueError: there are fewer than 2 samples, or a product with a Hessian is not finite.
        PreconditionError: a Hessian is zero.
    """
    # `Spectrum.bracket` of sample i ends in a number T with E[T] >= tr|Hess f_i|, so the mean of T^2 over samples is in
    # expectation at least the mean square of the traces.
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
