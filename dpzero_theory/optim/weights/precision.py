"""Updates of half-precision weights that are smaller than the spacing of half-precision numbers.

A weight of 0.05 has neighbours 2e-4 away in bfloat16 and 3e-5 away in float16, so a step of 1e-7 that is added and
rounded to nearest vanishes. There are two ways to round. Each is a function of the weights and the released numbers
alone, so that a replay gives the same bits:

    nearest      x + delta is rounded to the nearest number. This is right for float32 and float64, which always use it
    master       16 more bits are kept beside each weight: the weight is the nearest half-precision number, and the bits
                 say where between its neighbours the value is, in 1/65536 of the spacing. The values are those of
                 float32, but for the last bit just below powers of two (bfloat16) and below 2^-14 (float16)

All operations are products with powers of two, comparisons and single rounded sums, which are the same on every device.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.optim.weights.shards import collected, piece

PRECISIONS = ("nearest", "master")
HALF = {torch.bfloat16: (7, 2.0**-133), torch.float16: (10, 2.0**-24)}
"""For each half-precision type, the number of bits of its significand after the binary point, and the smallest distance
between two of its numbers."""
_EXPONENT = 0x7F800000
"""The bits of a float32 that hold its exponent."""
_PARTS = 65536
"""Into how many equal parts the 16 further bits of a weight divide the distance between two neighbouring half-precision
numbers."""


class Rounding:
    """Adds to weights and rounds the sums in one of two ways.

    Args:
        precision: "nearest", or "master", which keeps 16 further bits beside each half-precision weight.
        held: what this process holds of each parameter.

    Attributes:
        low: the 16 further bits, zero at first, of what this process holds of a parameter, flat, by the parameter's
            index; empty unless the precision is "master" and the parameter is in half precision.

    Raises:
        ValueError: an unknown precision.
    """

    def __init__(self, precision: str, held: Sequence[Tensor]) -> None:
        self.precision = check.choice("precision", precision, PRECISIONS)
        self.low: dict[int, Tensor] = {
            index: torch.zeros(part.numel(), dtype=torch.int16, device=part.device)
            for index, part in enumerate(held)
            if precision == "master" and part.dtype in HALF
        }

    def add_(self, flat: Tensor, index: int, here: slice, delta: Tensor) -> None:
        """Add delta to flat[here], rounded as the precision says.

        Args:
            flat: what this process holds of the parameter with this index, as a vector.
        """
        part, low = flat[here], self.low.get(index)
        if low is None:
            part.add_(delta)
        else:
            value, low[here] = split(join(part, low[here]).add_(delta), flat.dtype)
            part.copy_(value)

    def is_plain(self, index: int) -> bool:
        """Whether the parameter with this index has no further bits: sums are then rounded to nearest."""
        return index not in self.low

    def forget(self) -> None:
        """Set the further bits of the weights to zero, as they are at the start."""
        for low in self.low.values():
            low.zero_()

    def state_dict(self, names: Sequence[str], parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the 16 further bits of half-precision weights by the parameter's name, whole, in host memory.

        The bits of sharded parameters are on rank 0 alone.

        Args:
            names, parameters: the names and tensors of all trainable parameters, in order.
        """
        found = {}
        for index, low in self.low.items():
            of = parameters[index]
            bits = collected(low.view(piece(of)[0].shape).int(), of)  # processes cannot exchange int16
            if bits is not None:
                found[names[index]] = bits.view(-1).to(torch.int16)
        return found

    def load_state_dict(self, state: Mapping[str, Tensor], names: Sequence[str], parameters: Sequence[Tensor]) -> None:
        """Put back the further bits of half-precision weights that `state_dict` returned.

        Args:
            names, parameters: the names and tensors of all trainable parameters, in order.

        Raises:
            ValueError: other names, types or shapes.
        """
        require_names(state, [names[index] for index in self.low])
        for index, low in self.low.items():
            bits, size = state[names[index]], parameters[index].numel()
            if bits.dtype != torch.int16 or bits.shape != (size,):
                raise ValueError(f"state of {names[index]} must be int16 of shape ({size},); got {bits.dtype}")
            origin = piece(parameters[index])[1]
            low.copy_(bits[origin : origin + low.numel()])


def require_names(state: Mapping[str, Tensor], names: Sequence[str]) -> None:
    """Raise ValueError unless the keys of `state`, a mapping from parameters' names, are exactly `names`."""
    if set(state) != set(names):
        raise ValueError(f"state must hold the parameters {sorted(names)}; got {sorted(state)}")


def spacing(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return, for each entry of x, the distance between neighbouring numbers of the half-precision type `dtype` that
    have the same exponent as the entry.

    The distances are powers of two, float32.

    Args:
        x: float32 and finite.
    """
    bits, smallest = HALF[dtype]
    power = (x.view(torch.int32) & _EXPONENT).view(torch.float32)
    return power.mul_(2.0**-bits).clamp_min_(smallest)


def join(weights: Tensor, low: Tensor) -> Tensor:
    """Return weights + (low/65536) times the spacing around each weight, in float32: the values that half-precision
    weights and their 16 further bits `low` (int16, of the same shape) stand for together."""
    wide = weights.float()
    return torch.where(low == 0, wide, wide + low * (spacing(wide, weights.dtype) / _PARTS))


def split(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the weights of type `dtype` and the 16 further bits whose `join` is x to within 2^-16 of the spacing.

    Args:
        x: float32.
        dtype: a half-precision type.
    """
    weights = x.to(dtype)
    wide = weights.float()
    places = (x - wide) / (spacing(wide, dtype) / _PARTS)
    return weights, torch.nan_to_num(places, 0.0).round_().clamp_(-_PARTS / 2, _PARTS / 2 - 1).to(torch.int16)
