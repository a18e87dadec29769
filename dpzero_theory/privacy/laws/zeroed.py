"""Fixed-size batches, zero-out: finite pairs that bound one release, one that dominates it and one that it dominates.

With probability 1 - q the batch is a set W of records without the one in question. Otherwise that record takes the
place of one of the records in W, whose contribution is y. Under zero-out the record contributes u in one data set and 0
in the other. Lengths are in units of the clip, s is the noise, and the line is moved so that y is at 0. At the worst
data y and u are opposite, so that u is at 2 and a contribution of 0 is at 1:

    P = (1-q) N(0, s^2) + q N(2, s^2),      Q = (1-q) N(0, s^2) + q N(1, s^2).

At every ratio a >= 1 the divergence max over A of P(A) - a Q(A) of this pair is the largest over all data. The largest
divergence in the other direction is that of the pair `remove` (module `gaussian`). A pair with both of these
divergences dominates; and as data attain (P, Q) at every step, the probabilities of its events bound from below.
"""

from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.finite import FinitePair, Profile, region
from dpzero_theory.privacy.laws.gaussian import Gaussian

LEAST_ZEROED = 0.05
"""The least s, the noise in units of the clip, that is accounted for. There two means one clip apart are 20 standard
deviations apart, so that the noise hides nothing."""
MOST_ZEROED = 2.0**40
"""The largest s/q, the noise over the clip divided by the sample rate, that is accounted for. With more noise
neighbouring outputs have the same loss as 64-bit floats."""
_OUTPUT_SPACING, _FARTHEST_OUTPUT = 0.03, 15.0
"""The spacing of the outputs at which divergences are computed, and the distance of the last one from the mean, both in
standard deviations of the noise."""
_LOSS_SPACING = 0.05
"""About the largest step of the loss from one of these outputs to the next. Where the noise is small the loss is steep,
and the outputs are closer than `_OUTPUT_SPACING` for this."""
_ERROR_OF_SUM = 2e-12
"""A bound on the rounding error of a computed divergence, as a share of the sum of the probabilities in it. Those are
of outputs up to 35 standard deviations from a mean, with losses of up to 500."""
_ERROR_OF_EVENT = 1e-13
"""A bound on the absolute rounding error of the probabilities of events in `_intervals`."""
_LEAST_EVENT = 1e-3
"""The least probability under P of the events that bound the direction (Q, P) from below; for less probable ones the
relative rounding error is too large."""


def _beyond(x: Array, mean: float, s: float) -> Array:
    """The probability that N(mean, s^2) is above x."""
    return np.asarray(ndtr((mean - x) / s))


def _largest(loss: Array, x: Array, q: float, s: float, *, up: float, down: float) -> Array:
    """Upper bounds on P(A) - e^loss Q(A) for the events A = (x, infinity), one for each x with its loss.

    P = (1-q) N(0, s^2) + q N(up, s^2), and Q has `down` in the place of `up`.
    """
    a, still, used, other = np.exp(loss), *(_beyond(x, mean, s) for mean in (0.0, up, down))
    made = (q * used, (1 - q) * np.expm1(loss) * still, q * a * other)
    return np.asarray(made[0] - made[1] - made[2] + _ERROR_OF_SUM * sum(made))


def _intervals(x: Array, loss: Array, q: float, s: float) -> tuple[Array, Array]:
    """The probabilities under Q and under P of events {loss <= l}, for some l <= 0, the largest l first.

    x: outputs in rising order.
    loss: the losses at x, which fall to a least one and rise again, so that each event is an interval around it.
    q, s: the sample rate and the noise over the clip.
    """
    least = int(np.argmin(loss))
    left = np.interp(loss[least:], loss[: least + 1][::-1], x[: least + 1][::-1])
    p, q_ = (
        (1 - q) * (ndtr(x[least:] / s) - ndtr(left / s)) + q * (ndtr((x[least:] - mean) / s) - ndtr((left - mean) / s))
        for mean in (2.0, 1.0)
    )
    enough = p > _LEAST_EVENT
    return q_[enough][::-1], p[enough][::-1]


@lru_cache(maxsize=32)
def zeroed_pairs(noise: float, sample_rate: float) -> tuple[FinitePair, FinitePair]:
    """Two results, each with a finite pair of laws that dominates one release with fixed-size batches under zero-out,
    and one that it dominates.

    The first is for (P, Q), where P is the law of the output with the record, and Q that where the record counts as
    zero; the second is for (Q, P).

    noise: s, the standard deviation of the noise over the clip, at least `LEAST_ZEROED`.
    sample_rate: q in (0, 1), the share of the records that a batch has.
    """
    s, q = noise, sample_rate
    near, far = Gaussian("remove", q, s), Gaussian("remove", q, s / 2)

    def loss(x: Array) -> Array:
        return far.log_mixture(x / 2) - near.log_mixture(x)

    spacing = s * min(_OUTPUT_SPACING, _LOSS_SPACING * s)
    x = np.arange(1.5, 2 + _FARTHEST_OUTPUT * s, spacing)
    rising = np.append(0.0, loss(x[1:]))
    p, q_ = ((1 - q) * _beyond(x, 0.0, s) + q * _beyond(x, mean, s) for mean in (2.0, 1.0))
    forward = Profile(rising, _largest(rising, x, q, s, up=2.0, down=1.0), p, q_, 0.0, _ERROR_OF_SUM)

    y = np.arange(0.5, 1 + _FARTHEST_OUTPUT * s, spacing)
    rising = np.append(0.0, near.log_mixture(y[1:]))
    before = np.arange(1.5, -_FARTHEST_OUTPUT * s, -spacing)[::-1]
    back = _intervals(before, loss(before), q, s)
    backward = Profile(rising, _largest(rising, y, q, s, up=1.0, down=0.0), *back, 0.0, _ERROR_OF_EVENT / _LEAST_EVENT)
    return region(forward, backward), region(backward, forward)
