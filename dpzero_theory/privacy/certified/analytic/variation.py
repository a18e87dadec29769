"""Bounds on the total variation of the density of the privacy loss L under the measure P e^{tau L}, tilt tau > 0.

The less the density varies, the faster its characteristic function decays; `decay` uses these bounds. They are derived
in derivation.md, section 4a.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.analytic.quadrature import LossLaw
from dpzero_theory.privacy.certified.laws.arithmetic import LOG_SQRT_2PI
from dpzero_theory.privacy.certified.laws.pairs import Branch

_LOWEST = -690.0
"""Densities below e^-690 times the largest one are replaced by e^-690 times it, so that none, and no bound on its
variation, underflows to 0."""


@dataclass(frozen=True)
class Variation:
    """The density of the privacy loss L on one branch of a pair, under the measure P e^{tau L} with a tilt tau, and
    bounds on the density's total variation.

    x: outputs on the branch; before the first and beyond the last one the density is monotone or 0.
    top: the log of a factor that f and cells are without, so that they do not overflow.
    f: the density at each x is e^{top} f.
    cells: e^{top} cells bounds the variation of the density between neighbouring x.
    """

    x: Array
    top: float
    f: Array
    cells: Array


def variations(law: LossLaw, tau: float) -> list[Variation]:
    """For each branch of the pair, the density of the loss L at outputs x under the measure P e^{tau L}, and bounds on
    its variation between neighbouring x.

    A branch (`Branch`) is a part of the line of outputs on which L has one formula. The x are the lower end of each
    quadrature panel on it, three equally spaced points inside the panel, and the ends. Where the density certainly
    rises or certainly falls from one x to the next, the variation is the difference of its two values; elsewhere a peak
    between them is bounded by a bound on the derivative of the log density. law: has the pair and the panels. tau: the
    tilt.
    """
    return [
        _on_branch(law, branch, low, high, tau)
        for branch, (low, high) in zip(law.pair.branches, law.panels, strict=True)
    ]


def _on_branch(law: LossLaw, branch: Branch, low: Array, high: Array, tau: float) -> Variation:
    pair, s = law.pair, law.pair.noise
    a, b = branch.a + branch.a_slope * tau, branch.b_slope * tau
    # Outside [first, last] the density is monotone, because the derivative of its log has the sign of -x there.
    first = branch.start if branch.start > -math.inf else min(low[0], min(a, 0.0) - 1)
    last = max(high[-1], max(a, 0.0) - b + 1) if branch.stop == math.inf else branch.stop
    steps = np.arange(4) / 4
    inner = (low[:, None] + (high - low)[:, None] * steps).ravel()
    x = np.unique(np.concatenate([[first], inner, [high[-1], last]]))
    log_a = pair.log_mixture(x)
    rise = pair.posterior(x, log_a)
    rise_low, rise_high = rise[:-1], rise[1:]
    gain_low, gain_high = np.minimum(a * rise_low, a * rise_high), np.maximum(a * rise_low, a * rise_high)
    log_f = -x * x / (2 * s * s) - LOG_SQRT_2PI + math.log(s) + a * log_a
    if b == 0:
        log_f = log_f - pair.log_posterior(x, log_a)
        drag_low, drag_high = 1 - rise_high, 1 - rise_low
    else:
        log_b = pair.log_mixture(-x)
        fall = pair.posterior(-x, log_b)
        fall_low, fall_high = fall[1:], fall[:-1]
        log_f = log_f + b * log_b - np.logaddexp(pair.log_posterior(x, log_a), pair.log_posterior(-x, log_b))
        gain_low, gain_high = gain_low - b * fall_low, gain_high - b * fall_high
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            tilt = np.stack([rise_low - fall_high, rise_high - fall_low])
            scale = np.stack([1 / (rise_low + fall_low) - 1, 1 / (rise_high + fall_high) - 1])
            corners = np.clip(tilt[:, None] * scale[None, :], -1.0, 1.0)
        # Where both posterior probabilities underflow, the ratio in `corners` is only known to be between -1 and 1.
        drag_low = np.nan_to_num(corners, nan=-1.0).min(axis=(0, 1))
        drag_high = np.nan_to_num(corners, nan=1.0).max(axis=(0, 1))
    slope_low = (-x[1:] + gain_low - drag_high) / s**2
    slope_high = (-x[:-1] + gain_high - drag_low) / s**2
    width = np.diff(x)
    top = float(np.max(log_f))
    f = np.exp(np.maximum(log_f - top, _LOWEST))
    certain = (slope_low >= 0) | (slope_high <= 0)
    with np.errstate(over="ignore", invalid="ignore"):
        rising = log_f[:-1] - top + np.maximum(slope_high, 0.0) * width
        falling = log_f[1:] - top + np.maximum(-slope_low, 0.0) * width
    inside = np.exp(np.minimum(np.minimum(rising, falling), 600.0))
    cells = np.where(certain, np.abs(np.diff(f)), np.maximum(2 * inside - f[:-1] - f[1:], np.abs(np.diff(f))))
    return Variation(x, top, f, cells + 4 * math.exp(_LOWEST))
