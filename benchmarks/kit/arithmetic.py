"""Whose sums these are: libraries add in another order on another processor, and with other threads."""

import hashlib

import numpy as np
import torch

__all__ = ["COMMITTED", "arithmetic"]

COMMITTED = "d84e2c5e0f15"
"""`arithmetic` of the machine that made the committed rows."""


def arithmetic() -> str:
    """A name of the order in which this process adds: products by torch, sums and powers by numpy, of a fixed matrix.

    Where names are equal, the same program gives the same digits; where they differ the last bits may, and what a run
    magnifies does.
    """
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((130, 2000)), rng.standard_normal((2000, 77))
    digest = hashlib.sha256()
    for dtype in (torch.float64, torch.float32):
        x, y = (torch.from_numpy(values).to(dtype) for values in (left, right))
        for part in (x @ y, x @ y[:, 0], y.T @ x[0], y[:, :3].T @ x[:1].T, x.sum(dim=1), x.cumsum(dim=1)):
            digest.update(part.contiguous().numpy().tobytes())
    for values in (left.mean(axis=0), np.einsum("ij,ij->i", left, left), np.abs(left) ** -0.5):
        digest.update(values.tobytes())
    return digest.hexdigest()[:12]
