"""The dtype and the device of a computation: conversions of arrays to tensors there, and back."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dpzero_theory.check import Array


@dataclass(frozen=True)
class Place:
    """The `dtype` and the `device` of a torch computation.

    Called with an array or a tensor, the object returns its values as a tensor of this dtype on this device.
    """

    dtype: torch.dtype
    device: str

    def __call__(self, values: NDArray[np.generic] | torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(values, dtype=self.dtype, device=self.device)


def to_numpy(values: torch.Tensor) -> Array:
    """Return the values of a tensor as a NumPy array of float64."""
    return values.cpu().numpy().astype(np.float64)
