"""Updates of half-precision weights that are smaller than the spacing of half-precision numbers.

A weight of 0.05 has neighbours 2e-4 away in bfloat16 and 3e-5 away in float16; a step of 1e-7 added and rounded to
nearest vanishes. Three answers, each a function of the weights and the released scalars alone, so that a replay gives
the same bits:

    nearest      x + delta, rounded once. Right for float32 and float64, which always use it
    stochastic   x + delta rounded up or down at random, right on average: no memory, but each step adds noise of
                 variance |delta| spacing, which buries updates of 1e-7. The random bits are public, from the run's
                 words, so a direction's number must not be used twice
    master       16 more bits a weight, kept beside it: the weight is the nearest half-precision number, the bits say
                 where between its neighbours the value is, in 1/65536 of the spacing: float32 values, but for the
                 last bit just below powers of two (bfloat16) and below 2^-14 (float16)

All operations are products with powers of two, comparisons and single rounded sums: the same on every device.
"""

import torch
from torch import Tensor

PRECISIONS = ("nearest", "stochastic", "master")
HALF = {torch.bfloat16: (7, 2.0**-133), torch.float16: (10, 2.0**-24)}
"""Bits of the significand after the point, and the smallest spacing."""
_EXPONENT = 0x7F800000
_PARTS = 65536


def spacing(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance between the numbers of `dtype` in the binade of each x (float32): a power of two. x: finite."""
    bits, smallest = HALF[dtype]
    power = (x.view(torch.int32) & _EXPONENT).view(torch.float32)
    return power.mul_(2.0**-bits).clamp_min_(smallest)


def round_stochastically(x: Tensor, dtype: torch.dtype, fields: Tensor) -> Tensor:
    """x (float32) to `dtype`: up with the probability of its place between the neighbours, to 2^-17; else down.

    fields: uniform integers in [0, 65536) of x's shape. Numbers of `dtype`, infinities and NaN stay as they are.
    """
    step = spacing(x, dtype)
    place = x / step
    down = place.floor()
    up = (place - down) * _PARTS > fields + 0.5
    return torch.where(torch.isfinite(x), (down + up) * step, x).to(dtype)


def join(weights: Tensor, low: Tensor) -> Tensor:
    """The float32 value of half-precision weights and their 16 further bits (int16)."""
    wide = weights.float()
    return torch.where(low == 0, wide, wide + low * (spacing(wide, weights.dtype) / _PARTS))


def split(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(weights, low) of float32 values: `join` of them is x to within 2^-16 of the spacing, nearly always x itself."""
    weights = x.to(dtype)
    wide = weights.float()
    places = (x - wide) / (spacing(wide, dtype) / _PARTS)
    return weights, torch.nan_to_num(places, 0.0).round_().clamp_(-_PARTS / 2, _PARTS / 2 - 1).to(torch.int16)
