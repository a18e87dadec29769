"""From the losses of a micro-batch to numbers that can be summed, each record on its own.

In floating point the bits of a record's loss can depend on the shape of the micro-batch that it is computed in, which
is a property of the kernels: with one record in a micro-batch there is nothing else that they could depend on.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpzero_theory.check import Array
from dpzero_theory.optim.step.estimator import clip_jointly
from dpzero_theory.privacy.lattice import Lattice

Sums = NDArray[Any]
"""int64 on a lattice, float64 elsewhere."""

_SHRINK = 1e-12  # more than the rounding of a clip in float64, less than any lattice can show


def per_record(losses: object, batch: int) -> torch.Tensor:
    """The losses of a batch as float64 numbers of their own, shape (batch,), where they are.

    Raises ValueError for anything but a float32 or float64 tensor of shape (batch,): a loss that is reduced over
    records could only be clipped for the batch, which bounds no record, and half precision cannot show a difference.
    """
    if not isinstance(losses, torch.Tensor) or losses.shape != (batch,):
        found = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise ValueError(f"losses must be a tensor of shape (batch,) = ({batch},), one loss per record; got {found}")
    if losses.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"losses must be float32 or float64, also of a module in half precision; got {losses.dtype}")
    return losses.detach().to(torch.float64, copy=True)


def to_lattice(lattice: Lattice, rows: Array) -> NDArray[np.int64]:
    """Clip each row to L2 norm C and round it to the lattice: integer rows of norm at most `levels`.

    rows: (batch, K) numbers, whatever they are.

        K = 1      nearest lattice point; NaN is 0, +-inf is +-levels            (`Lattice.round`)
        K > 1      toward zero; NaN entries are 0; a row with infinite entries keeps only their signs, clipped

    For K > 1 the clip is shrunk by 1e-12, more than what rounding can add to a norm for K <= 1000, so that the bound
    holds in exact arithmetic.
    """
    if rows.shape[1] == 1:
        return lattice.round(rows[:, 0])[:, None]
    clipped = clip_jointly(rows, lattice.clip)
    return np.trunc(clipped / lattice.clip * (lattice.levels * (1 - _SHRINK))).astype(np.int64)
