"""`Place`, which converts arrays to tensors of one dtype on one device, and a conversion back to NumPy."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dpzero_theory.check import Array


@dataclass(frozen=True)
class Place:
    """A dtype and a device. Called with an array or a tensor, the object returns its values as a tensor with both."""

    dtype: torch.dtype
    device: str

    def __call__(self, values: NDArray[np.generic] | torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(values, dtype=self.dtype, device=self.device)


def to_numpy(values: torch.Tensor) -> Array:
    """Return the values of a tensor as a float64 NumPy array."""
    return values.cpu().numpy().astype(np.float64)
