"""Whether a run's releases are more than noise, from its folder."""

import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpzero_theory.optim.files.transcript import read


class Signal(NamedTuple):
    """How large a run's released numbers are, beside their noise.

    ratio: the mean square of the released numbers over the variance of their noise, >= 0. It is 1 on average where the
    records add nothing, and larger where their differences agree on directions.
    spread: the standard deviation of the ratio where there is nothing but noise, > 0.
    numbers: how many released numbers the ratio is over: K for each step that was made, >= 1.
    """

    ratio: float
    spread: float
    numbers: int


def signal(folder: str | os.PathLike[str]) -> Signal:
    """Return how large the released numbers of a run are, beside their noise: the way to notice that it learns nothing.

    With s_tk the noisy sum that step t of T released for its direction k of K, and v the variance of the noise,

        ratio = (1/(T K)) sum_t sum_k s_tk^2/v.

    Where the records add nothing the ratio is 1 with standard deviation sqrt(2/(T K)) for Gaussian noise, and
    sqrt(5/(T K)) for Laplace noise, whose fourth moment is 6 v^2. A ratio that is not three of these standard
    deviations above 1 cannot be told from that: the run moves at random. The released numbers are public, so that this
    costs no privacy.

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
    sums = np.array([record.sums for record in records], dtype=np.float64)
    laplace = plan.law.noise == "laplace"
    variance = plan.scale**2 * (2 if laplace else 1)
    return Signal(float(np.mean(sums**2) / variance), math.sqrt((5 if laplace else 2) / sums.size), int(sums.size))
