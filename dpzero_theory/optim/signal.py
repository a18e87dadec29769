"""Whether a run's releases are more than noise, and whether what they say grows smaller, from its folder."""

import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpzero_theory.optim.files.transcript import read


class Signal(NamedTuple):
    """How large a run's released numbers are, beside their noise: in its first steps, in its last ones, and in all.

    first: the mean square of the numbers that the first tenth of the steps released, over the variance of their noise,
    >= 0. It is 1 on average where the records add nothing. Near 1 there is too much noise, or the clip is too large.
    last: the same of the last tenth of the steps. It is below `first` where the gradient has become smaller, as it does
    in a run that learns. Where it is not, the step size is too small, or far too large.
    spread: the standard deviation of `first` and of `last` where there is nothing but noise, > 0.
    numbers: how many released numbers each of these two is over: K ceil(T/10) after T steps, >= 1.
    ratio: the same of all steps. Where there is nothing but noise its standard deviation is `ratio_spread`.
    ratio_spread: about sqrt(10) times smaller than `spread`, > 0.
    """

    first: float
    last: float
    spread: float
    numbers: int
    ratio: float
    ratio_spread: float


def signal(folder: str | os.PathLike[str]) -> Signal:
    """Return how large the released numbers of a run are beside their noise, at its beginning and at its end.

    This is the way to notice that a run learns nothing. With s_tk the noisy sum that step t of T released for its
    direction k of K, v the variance of the noise, and P the first ceil(T/10) steps, the last ones, or all,

        ratio(P) = (1/(|P| K)) sum_{t in P} sum_k s_tk^2/v.

    Where the records add nothing each ratio is 1 with standard deviation sqrt(2/(|P| K)) for Gaussian noise, and
    sqrt(5/(|P| K)) for Laplace noise, whose fourth moment is 6 v^2. A ratio of all steps that is not three of these
    standard deviations above 1 cannot be told from that: the run moves at random. A ratio above 1 does not say that the
    weights move far enough to learn, since it is largest where they do not move at all: that is seen from the fall from
    the first tenth to the last. Where the ratios are above 1, each has a standard deviation of sqrt(2/(|P| K)) times
    itself even if the gradient keeps its size, as the directions are random. The released numbers are public, so that
    this costs no privacy.

    Args:
        folder: the folder of a run of DPZero, which may go on meanwhile. It is only read.

    Raises ValueError for a run without noise, one that releases vectors (dpgd-0th), or one that has not made a step;
    TranscriptError for a damaged transcript; and OSError.
    """
    path = Path(folder) / "transcript.bin"
    header, records = read(path)
    plan = header.plan
    if plan.law is None or not plan.scalars:
        raise ValueError(f"folder must hold a run that releases noisy numbers; got one of {plan.algorithm}")
    if not records:
        raise ValueError(f"folder must hold a run that has made a step; got none in {path}")
    laplace = plan.law.noise == "laplace"
    variance = plan.scale**2 * (2 if laplace else 1)
    squares = np.array([record.sums for record in records], dtype=np.float64) ** 2 / variance
    tenth = math.ceil(len(squares) / 10)
    numbers, excess = squares[:tenth].size, 5 if laplace else 2
    return Signal(
        first=float(np.mean(squares[:tenth])),
        last=float(np.mean(squares[-tenth:])),
        spread=math.sqrt(excess / numbers),
        numbers=numbers,
        ratio=float(np.mean(squares)),
        ratio_spread=math.sqrt(excess / squares.size),
    )
