"""The result of a numerical check of the sharpened theorem, and the rules that these checks share."""

import math
from typing import NamedTuple

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.sphere import DIRECTIONS

STANDARD_ERRORS = 4.5
"""A Monte Carlo comparison may be off by so many standard errors."""
SEED = 20240601
KINDS = (*DIRECTIONS, "frame")
BLOCK = 100_000
"""How many numbers are drawn at a time, so that a block and what is computed from it stay in the processor's cache."""


def draw(kind: str, rng: np.random.Generator, size: int, k: int, d: int) -> Array:
    """Draw `size` matrices U' of k directions, shape (size, k, d)."""
    if kind != "frame":
        return DIRECTIONS[kind].sample(rng, size * k, d).reshape(size, k, d)
    q, r = np.linalg.qr(rng.standard_normal((size, d, k)))
    signs = np.sign(np.diagonal(r, axis1=1, axis2=2))
    frames: Array = math.sqrt(d) * np.swapaxes(q * signs[:, None, :], 1, 2)
    return frames


def clip_jointly(s: Array, clip: float) -> Array:
    """Each sample's K numbers, shape (m, K, n), scaled to norm at most `clip`."""
    norms = np.sqrt(np.einsum("mkn,mkn->mn", s, s))[:, None, :]
    clipped: Array = s * np.minimum(1, clip / np.maximum(norms, 1e-300))
    return clipped


class Checked(NamedTuple):
    """The result of a check: it holds when `measured` <= `threshold`."""

    ok: bool
    measured: float
    threshold: float
    text: str


def within(measured: float, threshold: float, text: str) -> Checked:
    """The result of a check that holds if measured <= threshold; NaN fails."""
    return Checked(bool(measured <= threshold), float(measured), threshold, text)
