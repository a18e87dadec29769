"""Fixed-size batches, zero-out: one release by its testing region, as finite pairs above and below it.

The batch is W with probability 1 - q, else the record takes the place of one of W's, whose contribution is y; the
record contributes u, or nothing. In clips and with y moved to 0, at the worst data u = 2 and nothing is at 1: the pair

    P = (1-q) N(0, s^2) + q N(2, s^2),      Q = (1-q) N(0, s^2) + q N(1, s^2),

whose divergence is the largest of all at every ratio >= 1. Of (Q, P) that of `remove` is. Both profiles together
dominate, and events of the pair above, which data attain at every step, are below. Derivation.md, section 15.
"""

from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.laws.finite import FinitePair, Profile, region
from dpzero_theory.privacy.certified.laws.pairs import Pair

LEAST_NOISE = 0.05
_SPACING, _FINE, _REACH = 0.03, 0.05, 15.0
"""Of the outputs, and how far they go, in standard deviations; spacing of large losses."""
_ROUNDING = 1e-13
"""Error of a divergence, over the probabilities it is made of, with room."""
_EVENT = 1e-3
"""The least probability of an event on the side of small losses."""


def _beyond(x: Array, mean: float, s: float) -> Array:
    return np.asarray(ndtr((mean - x) / s))


def _largest(loss: Array, x: Array, q: float, s: float, *, up: float, down: float) -> Array:
    """From above: P(A) - a Q(A), a = e^loss, of A = (x, inf), P = (1-q) N(0) + q N(up), Q the same of `down`."""
    a, still, used, other = np.exp(loss), *(_beyond(x, mean, s) for mean in (0.0, up, down))
    made = (q * used, (1 - q) * np.expm1(loss) * still, q * a * other)
    return np.asarray(made[0] - made[1] - made[2] + _ROUNDING * sum(made))


def _intervals(x: Array, loss: Array, q: float, s: float) -> tuple[Array, Array]:
    """(Q, P) of events around the least loss, x rising to where it is 0: each where it is at most some value, the
    largest first."""
    least = int(np.argmin(loss))
    left = np.interp(loss[least:], loss[: least + 1][::-1], x[: least + 1][::-1])
    p, q_ = (
        (1 - q) * (ndtr(x[least:] / s) - ndtr(left / s)) + q * (ndtr((x[least:] - mean) / s) - ndtr((left - mean) / s))
        for mean in (2.0, 1.0)
    )
    enough = p > _EVENT
    return q_[enough][::-1], p[enough][::-1]


@lru_cache(maxsize=32)
def zeroed_pairs(noise: float, sample_rate: float) -> tuple[FinitePair, FinitePair]:
    """The pairs (P, Q) and (Q, P) of one release, P with the record.

    noise: s of the module, at least `LEAST_NOISE`. sample_rate: q in (0, 1).
    """
    s, q = noise, sample_rate
    near, far = Pair("remove", q, s), Pair("remove", q, s / 2)

    def loss(x: Array) -> Array:
        return far.log_mixture(x / 2) - near.log_mixture(x)

    spacing = s * min(_SPACING, _FINE * s)
    x = np.arange(1.5, 2 + _REACH * s, spacing)
    rising = np.append(0.0, loss(x[1:]))
    p, q_ = ((1 - q) * _beyond(x, 0.0, s) + q * _beyond(x, mean, s) for mean in (2.0, 1.0))
    forward = Profile(rising, _largest(rising, x, q, s, up=2.0, down=1.0), p, q_, 0.0, _ROUNDING)

    y = np.arange(0.5, 1 + _REACH * s, spacing)
    rising = np.append(0.0, near.log_mixture(y[1:]))
    before = np.arange(1.5, -_REACH * s, -spacing)[::-1]
    back = _intervals(before, loss(before), q, s)
    backward = Profile(rising, _largest(rising, y, q, s, up=1.0, down=0.0), *back, 0.0, _ROUNDING / _EVENT)
    return region(forward, backward), region(backward, forward)
