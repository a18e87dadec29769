"""The device and the precision of a computation: conversions to it and from it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dpzero_theory import check
from dpzero_theory.check import Array


@dataclass(frozen=True)
class Place:
    """The dtype and the device of a computation on torch. Called with an array, it returns the tensor there."""

    dtype: torch.dtype
    device: str

    def __call__(self, values: NDArray[np.generic] | torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(values, dtype=self.dtype, device=self.device)


@contextmanager
def whole_products() -> Iterator[None]:
    """In this block products of float32 are computed in float32, whatever the process allows: TF32 and bfloat16 leave
    three digits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def to_numpy(values: torch.Tensor) -> Array:
    """The values on the host, in float64."""
    return values.cpu().numpy().astype(np.float64)


def checked_start(x0: Array, d: int) -> Array:
    """x0, in float64. Raises ValueError for another shape than (d,), or values that are not finite."""
    start = check.real_array("x0", x0)
    if start.shape != (d,):
        raise ValueError(f"x0 must have shape (d,) = ({d},); got {start.shape}")
    return start
