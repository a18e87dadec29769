"""From the losses of a micro-batch to numbers that can be summed, each record on its own."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpzero_theory.check import Array
from dpzero_theory.optim.step.estimator import clip_jointly
from dpzero_theory.privacy.lattice import Lattice

Sums = NDArray[Any]
"""Sums of contributions, int64 where they are integers, float64 elsewhere."""

_SHRINK = 1e-12
"""The share of itself by which the clip is shrunk before differences are rounded to integers. It is more than the
relative rounding error of a norm in float64, and less than one of the integers."""


def per_record(losses: object, batch: int) -> torch.Tensor:
    """Return a copy of the losses of a batch in float64, shape (batch,), on their device. batch: how many records.

    Raises ValueError for anything but a float32 or float64 tensor of shape (batch,): a loss that is reduced over
    records could only be clipped for the batch, which bounds no record, and half precision cannot show a difference.
    """
    if not isinstance(losses, torch.Tensor) or losses.shape != (batch,):
        found = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise ValueError(f"losses must be a tensor of shape (batch,) = ({batch},), one loss per record; got {found}")
    if losses.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"losses must be float32 or float64, also of a module in half precision; got {losses.dtype}")
    with torch.no_grad():  # `detach` would also drop the losses' forward derivatives
        return losses.to(torch.float64, copy=True)


def to_lattice(lattice: Lattice, rows: Array) -> NDArray[np.int64]:
    """Clip each row to L2 norm C and return it rounded to integers, so that its norm is at most `levels`.

    lattice: has the clip C, and `levels`, the integer that stands for C. rows: any numbers, shape (batch, K).

        K = 1      rounded to the nearest integer; NaN becomes 0, and +-inf becomes +-levels (`Lattice.round`)
        K > 1      rounded toward zero; NaN entries become 0; of a row with infinite entries only their signs are kept

    For K > 1 the clip is shrunk by 1e-12. That is more than rounding can add to a norm for K <= 1000, so that the bound
    holds in exact arithmetic.
    """
    if rows.shape[1] == 1:
        return lattice.round(rows[:, 0])[:, None]
    clipped = clip_jointly(rows, lattice.clip)
    return np.trunc(clipped / lattice.clip * (lattice.levels * (1 - _SHRINK))).astype(np.int64)
