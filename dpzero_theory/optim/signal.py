"""Whether a run's releases are more than noise, and whether what they say grows smaller, from its folder."""

import math
import os
from typing import NamedTuple

import numpy as np

from dpzero_theory.optim.files.transcript import read


class Signal(NamedTuple):
    """The mean square of a run's released numbers over the variance of their noise; 1 where records add nothing.

    Attributes:
        first, last: the ratio over the first, and over the last, tenth of the steps.
        spread: the standard deviation of `first` and `last` where there is nothing but noise.
        numbers: how many released numbers each of these two has.
        ratio, ratio_spread: the ratio over all steps, and its standard deviation where there is nothing but noise.
    """

    first: float
    last: float
    spread: float
    numbers: int
    ratio: float
    ratio_spread: float


def signal(folder: str | os.PathLike[str]) -> Signal:
    """Return how large the released numbers of a run are beside their noise, at its beginning and at its end.

    A run whose `ratio` is not three `ratio_spread` above 1 cannot be told from one that moves at random. A run that
    learns falls from `first` to `last`; where it does not fall, the step size is too small, or far too large. The
    released numbers are public, so this costs no privacy.

    Args:
        folder: of a run of DPZero, or a Trainer's output folder; the run may go on meanwhile.

    Raises:
        ValueError: a run without noise, of vectors (dpgd-0th), or that has not made a step.
        LedgerError, OSError: a damaged file, or none.
    """
    header, records, _ = read(folder)
    plan = header.plan
    if plan.law is None or not plan.scalars:
        raise ValueError(f"folder must hold a run that releases noisy numbers; got one of {plan.algorithm}")
    if not records:
        raise ValueError(f"folder must hold a run that has made a step; got none in {folder}")
    # A ratio of N numbers has the standard deviation sqrt(2/N) for Gaussian noise and sqrt(5/N) for Laplace noise.
    variance, excess = (2 * plan.scale**2, 5) if plan.law.noise == "laplace" else (plan.scale**2, 2)
    squares = np.array([record.sums for record in records], dtype=np.float64) ** 2 / variance
    tenth = math.ceil(len(squares) / 10)
    first, last = squares[:tenth], squares[-tenth:]
    spread, ratio_spread = math.sqrt(excess / first.size), math.sqrt(excess / squares.size)
    return Signal(float(first.mean()), float(last.mean()), spread, first.size, float(squares.mean()), ratio_spread)
