"""The dtype and the device of a computation: conversions of arrays to tensors there, and back.

`whole_products` changes a setting of the process for the length of its block.
"""

from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def whole_products() -> Iterator[None]:
    """A context manager in whose block float32 matrix products are computed in full float32.

    TF32 or bfloat16, which a process may allow, would leave about three digits. The process's setting is put back.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def to_numpy(values: torch.Tensor) -> Array:
    """Return the values of a tensor as a NumPy array of float64."""
    return values.cpu().numpy().astype(np.float64)
