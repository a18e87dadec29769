"""What the checks of the sharpened theorem (`paper_checks.sharp`) share: the form of their result, the drawing of
directions, and joint clipping."""

import math
from typing import NamedTuple

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.sphere import DIRECTIONS

STANDARD_ERRORS = 4.5
"""A sampled mean may be off by this many standard errors, on the wrong side of its bound or around its exact value; if
it is off by more, the check fails."""
SEED = 20240601
KINDS = (*DIRECTIONS, "frame")
EVERY_KIND = (*KINDS, "low-rank", "low-rank:2")
BLOCK = 100_000
"""How many random numbers are drawn at a time. So few of them stay in the processor's cache together with what is
computed from them."""


def draw(kind: str, rng: np.random.Generator, size: int, k: int, d: int) -> Array:
    """Draw k directions in R^d `size` times, shape (size, k, d). `kind` is their law: sphere, gaussian, rademacher,
    frame (k orthogonal vectors of length sqrt(d)), or low-rank:RANK for a matrix of d weights that is as square as d
    allows."""
    if kind.startswith("low-rank"):
        return low_rank(rng, size * k, int(kind.partition(":")[2] or 1), d).reshape(size, k, d)
    if kind != "frame":
        return DIRECTIONS[kind].sample(rng, size * k, d).reshape(size, k, d)
    q, r = np.linalg.qr(rng.standard_normal((size, d, k)))
    signs = np.sign(np.diagonal(r, axis1=1, axis2=2))
    frames: Array = math.sqrt(d) * np.swapaxes(q * signs[:, None, :], 1, 2)
    return frames


def low_rank(rng: np.random.Generator, size: int, rank: int, d: int) -> Array:
    """Draw `size` directions of this rank for one weight matrix, shape (size, d). It has m rows, the largest divisor of
    d up to its root."""
    m = max(i for i in range(1, math.isqrt(d) + 1) if d % i == 0)
    left, right = (rng.choice([-1.0, 1.0], (size, rank, count)) for count in (m, d // m))
    drawn: Array = np.einsum("sjm,sjn->smn", left, right).reshape(size, d) / math.sqrt(rank)
    return drawn


def clip_jointly(s: Array, clip: float) -> Array:
    """Return a copy of `s`, shape (m, K, n) for m draws and n samples, in which the K numbers of each sample in each
    draw are scaled together, so that their Euclidean norm is at most `clip`. Those whose norm is smaller stay as they
    are."""
    norms = np.sqrt(np.einsum("mkn,mkn->mn", s, s))[:, None, :]
    clipped: Array = s * np.minimum(1, clip / np.maximum(norms, 1e-300))
    return clipped


class Checked(NamedTuple):
    """The result of a check: whether it holds, which is when `measured` <= `threshold`, and a text that says what
    was measured."""

    ok: bool
    measured: float
    threshold: float
    text: str


def within(measured: float, threshold: float, text: str) -> Checked:
    """Return the result of a check that holds if measured <= threshold; NaN fails. `text` says what was measured."""
    return Checked(bool(measured <= threshold), float(measured), threshold, text)
