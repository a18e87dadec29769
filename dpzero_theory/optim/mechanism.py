"""From the losses of a micro-batch to the numbers that are summed, and from the sum to what is released.

**Sensitivity.** A record enters only through its own K differences (the losses must not mix records). They are mapped
to integers, jointly and each record on its own: clipped to L2 norm C and rounded to the lattice C/levels so that the
integer vector has norm at most `levels`, whatever the losses are:

    K = 1      nearest lattice point; NaN is 0, +-inf is +-levels            (`Lattice.round`)
    K > 1      toward zero; NaN entries are 0; a record with infinite entries keeps only their signs, clipped

So adding or removing a record moves the sum by at most `levels`, replacing one by at most 2 levels, and the sum over
micro-batches and processes is exact. Noise is added once to the whole sum, never to a part.

In floating point the bits of a record's loss can depend on the shape of the micro-batch that it is computed in, which
is a property of the kernels: with one record in a micro-batch there is nothing else that they could depend on.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dpzero_theory.check import integer
from dpzero_theory.optim.estimator import clip_scalars, clip_vectors
from dpzero_theory.optim.module import Weights
from dpzero_theory.optim.plan import Plan
from dpzero_theory.privacy.lattice import Lattice
from dpzero_theory.privacy.noise import NoiseSource

__all__ = ["LatticeSum", "Mechanism", "ScalarSum", "Sums", "add_noise_", "per_record", "round_jointly"]

Array = NDArray[np.float64]
Sums = NDArray[Any]
"""int64 on a lattice, float64 elsewhere."""

_BLOCK = 1 << 17  # coordinates of vector noise at a time
_SHRINK = 1e-12  # more than the rounding of a clip in float64, less than any lattice can show


def per_record(losses: object, batch: int) -> Array:
    """The losses of a batch as float64 numbers of their own, shape (batch,).

    Raises ValueError for anything but a float32 or float64 tensor of shape (batch,): a loss that is reduced over
    records could only be clipped for the batch, which bounds no record, and half precision cannot show a difference.
    """
    if not isinstance(losses, torch.Tensor) or losses.shape != (batch,):
        found = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise ValueError(f"losses must be a tensor of shape (batch,) = ({batch},), one loss per record; got {found}")
    if losses.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"losses must be float32 or float64, also of a module in half precision; got {losses.dtype}")
    values: Array = losses.detach().to("cpu", torch.float64, copy=True).numpy()
    return values


def round_jointly(lattice: Lattice, rows: Array) -> NDArray[np.int64]:
    """Clip each row to L2 norm C and round it toward zero, in lattice units: integer rows of norm <= levels.

    rows: (batch, K) numbers; for those that are not finite see the module. The clip is shrunk by 1e-12, more than
    what rounding can add to a norm for K <= 1000, so that the bound holds in exact arithmetic.
    """
    infinite = np.isinf(rows)
    rows = np.where(np.isnan(rows), 0.0, rows)
    rows = np.where(infinite.any(axis=1, keepdims=True), np.where(infinite, np.sign(rows), 0.0) * lattice.clip, rows)
    clipped = clip_vectors(rows, lattice.clip)
    return np.trunc(clipped / lattice.clip * (lattice.levels * (1 - _SHRINK))).astype(np.int64)


class Mechanism(Protocol):
    """What a step asks for."""

    @property
    def private(self) -> bool:
        """Whether a release is protected by noise that nobody can draw again."""

    def contributions(self, differences: Array) -> Sums:
        """The sum over records of a micro-batch, shape (batch, K) -> (K,)."""

    def release(self, total: Sums) -> Sums:
        """What is released of the sum over the whole batch, shape (K,); once per step."""


class LatticeSum:
    """Clipped integers and discrete noise: DPZero."""

    def __init__(self, plan: Plan, noise: NoiseSource) -> None:
        self.private = noise.private
        self._lattice = Lattice(plan.clip, plan.levels)
        self._draw = noise.discrete_gaussian if plan.noise == "gaussian" else noise.discrete_laplace
        self._scale = integer("scale", plan.scale)

    def contributions(self, differences: Array) -> Sums:
        if differences.shape[1] == 1:
            rows = self._lattice.round(differences[:, 0])[:, None]
        else:
            rows = round_jointly(self._lattice, differences)
        total: Sums = rows.sum(axis=0)
        return total

    def release(self, total: Sums) -> Sums:
        return total + self._draw(self._scale, total.shape)


class ScalarSum:
    """Sums in float64 without noise of their own.

    clip: of each difference; infinite for MeZO, where only values that are not finite are mapped (to 0).
    """

    private = False

    def __init__(self, clip: float) -> None:
        self._clip = clip

    def contributions(self, differences: Array) -> Sums:
        if self._clip == np.inf:
            values = np.where(np.isfinite(differences), differences, 0.0)
        else:
            values = clip_scalars(differences, self._clip)
        total: Sums = values.sum(axis=0)
        return total

    def release(self, total: Sums) -> Sums:
        return total


def add_noise_(weights: Weights, factor: float, draw: Callable[[int], Array]) -> None:
    """x <- x + factor z, `draw(count)` giving the next coordinates of z in float64: Algorithm 1's vector noise.

    A block of coordinates at a time; weights in float32 or float64, contiguous.
    """
    with torch.no_grad():
        for size, (held, origin) in zip(weights.sizes, weights.pieces(), strict=True):
            flat = held.view(-1)
            for start in range(0, size, _BLOCK):
                noise = torch.from_numpy(draw(min(_BLOCK, size - start)))
                first, last = max(start, origin), min(start + len(noise), origin + len(flat))
                if first < last:
                    block = flat[first - origin : last - origin]
                    block.add_(noise[first - start : last - start].to(block), alpha=factor)
