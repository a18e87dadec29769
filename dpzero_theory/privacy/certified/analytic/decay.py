"""Bounds on |chi(t')| that hold for all t' >= t, where chi is the characteristic function of the tilted privacy loss.

With them `contour` bounds the part of its integral over t that lies beyond the last node. Derived in derivation.md,
section 4.
"""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.analytic.characteristic import shift_angles
from dpzero_theory.privacy.certified.analytic.quadrature import Contour, decay
from dpzero_theory.privacy.certified.analytic.tilting import Blend, Tilted
from dpzero_theory.privacy.certified.analytic.variation import Variation, variations
from dpzero_theory.privacy.certified.laws.pairs import loss_at

_MASS_SLACK = 1e-6
"""A relative margin that is added to sums of masses and densities; their rounding errors are far smaller."""
_SHARE_ERROR = 1e-9
"""A bound on the relative error of the share that a kind of release has of the tilted law."""
_LEAST_SHARE = 1e-300
"""A share below this is replaced by this, which only raises the bound."""
_LEAST_VARIANCE = 1e-300
"""A variance of the total loss below this is replaced by this, so that nothing is divided by 0."""
_TILTED_ERROR = 1e-10
"""A bound on the absolute error of any sum of tilted masses; all of them sum to 1."""
_PHASE = 1.0
"""The bound of `_spread` uses only losses L, L' whose difference in phase, t |L - L'|, is at most this, in radians."""
_FIRST, _LAST, _COUNT = 0.5, 1e13, 400
"""The smallest and the largest t at which bounds are computed, in units of 1 over the standard deviation of the tilted
total loss, and the number of these t, which are geometrically spaced."""


class Decay:
    """Bounds on the log of |chi(t')| for all t' >= t, where chi is the characteristic function of the tilted total
    loss.

    chi is the product of the chi_j^{T_j} of the pairs j in `blends`, each released T_j times and tilted by `tau`, and
    of one factor for the `gdp`-GDP mechanism. Where releases are of one of several kinds, chi_j is the mean over the
    kinds, and so |chi_j| is at most the mean of their moduli. The bounds do not rise with t.
    """

    def __init__(self, blends: Sequence[Blend], tau: float, gdp: float) -> None:
        self.blends = blends
        self.parts = [part for whole in blends for part in whole.kinds]
        self.tau = tau
        self.gdp = gdp
        scale = math.sqrt(max(math.fsum(p.steps * p.variance for p in blends) + gdp**2, _LEAST_VARIANCE))
        self.t: Array = np.geomspace(_FIRST / scale, _LAST / scale, _COUNT)

    @cached_property
    def _variations(self) -> list[list[Variation]]:
        """For each pair, the variation of the density of its loss on each branch."""
        return [variations(part.law, self.tau) for part in self.parts]

    @cached_property
    def _sizes(self) -> list[tuple[float, float]]:
        """For each part (a dominating pair of laws) two upper bounds on its loss L after tilting by e^{tau L}.

        The first is on the probability of the loss 0, the second on the total variation of the density of all other
        losses. From these it follows how fast the characteristic function falls.
        """
        return [
            (
                part.law.pair.atom * math.exp(-part.cumulant) * (1 + _MASS_SLACK),
                math.fsum(_whole(v, part.cumulant) for v in branches),
            )
            for part, branches in zip(self.parts, self._variations, strict=True)
        ]

    @cached_property
    def coarse(self) -> Array:
        """The bound on the log of the absolute characteristic function at each of the points `t`, from total
        variations.

        The variations are those of the density of each pair's loss.
        """
        return self._total([1 - np.minimum(atom + whole / self.t, 1.0) ** 2 for atom, whole in self._sizes])

    @cached_property
    def fine(self) -> Array:
        """A bound on the log of the absolute characteristic function at each of the points `t`, at most `coarse`; it
        takes longer.

        It uses the density of each pair's loss on intervals, and the variance of the loss.
        """
        found = []
        for part, branches in zip(self.parts, self._variations, strict=True):
            kept = _kept(part, branches, self.t)
            found.append(np.maximum(1 - (1 - kept) ** 2, _spread(part, self.tau, self.t)))
        return np.minimum(self._total(found), self.coarse)

    def _total(self, gaps: Sequence[Array]) -> Array:
        """The bound on the log of the absolute characteristic function chi of the total loss at each of the points `t`.

        gaps: for each of `parts`, with characteristic function chi_j, lower bounds on 1 - |chi_j|^2. An entry holds
        from its point to the next one, the last entry for all t beyond.
        """
        total: Array = -(self.gdp**2) * self.t**2 / 2
        each = iter(gaps)
        for part in self.blends:
            fall = np.zeros(len(self.t))  # a lower bound on 1 - |chi_j|
            for share in part.shares:
                gap = np.clip(next(each), 0.0, 1.0)
                fall += share * (1 - _SHARE_ERROR) * gap / (1 + np.sqrt(1 - gap))
            gap = fall * (2 - fall)
            least = np.minimum.accumulate(np.clip(gap, 0.0, 1 - 1e-300)[::-1])[::-1]
            # A bound at a larger t gives one at a smaller t: 1 - |chi(2 t)|^2 <= 4 (1 - |chi(t)|^2) for every
            # characteristic function chi.
            for k in range(1, 24):
                at = np.searchsorted(self.t, self.t * 2.0**k, side="right") - 1
                best = np.maximum(least, least[at] / 4.0**k)
                least = best
            with np.errstate(divide="ignore"):
                total = total + part.steps * 0.5 * np.log1p(-least)
        return total

    def shifted(self, t: Array) -> Array:
        """The bound on the log of the absolute characteristic function at each `t`, by integrals along lines of complex
        outputs.

        It takes longer than `fine`, and for few releases it is far smaller.
        """
        total: Array = -(self.gdp**2) * t**2 / 2
        sizes = iter(self._sizes)
        for several in self.blends:
            logs = []
            for share, part in zip(several.shares, several.kinds, strict=True):
                pair, (atom, whole) = part.law.pair, next(sizes)
                log_chi = np.zeros(len(t))
                if len(pair.branches) == 1 and not pair.partial:
                    least = decay(pair, self.tau, shift_angles(pair), t).min(axis=0)
                    log_chi = np.minimum(least - part.cumulant + 1e-9, 0)
                with np.errstate(divide="ignore"):
                    logs.append(math.log(max(share, _LEAST_SHARE)) + np.minimum(log_chi, np.log(atom + whole / t)))
            total = total + several.steps * np.minimum(np.logaddexp.reduce(logs) + _SHARE_ERROR, 0.0)
        return total


def _whole(variation: Variation, cumulant: float) -> float:
    """An upper bound on the total variation of the density of the tilted loss, over one whole branch of a pair.

    variation: the bounds between neighbouring outputs. cumulant: the log of the tilted law's moment.
    """
    ends = variation.f[0] + variation.f[-1]
    size = (float(np.sum(variation.cells)) + ends) * (1 + _MASS_SLACK)
    return math.exp(min(variation.top - cumulant + math.log(size), 600.0))


def _kept(part: Tilted, branches: Sequence[Variation], t: Array) -> Array:
    """For each t a lower bound on 1 - |chi(t')| that holds for all t' >= t.

    chi is the characteristic function of the loss of one release under the tilted law `part`. The bound is the sum of
    P(S) - V(S)/t over disjoint intervals S of outputs, with P the tilted mass and V the variation of the density on S;
    the intervals are the best of some candidates. branches: the variation on each branch of the pair.
    """
    total = np.zeros(len(t))
    first = 0
    for variation, (low, _) in zip(branches, part.law.panels, strict=True):
        size = 16 * len(low)
        mass = part.weights[first : first + size].reshape(-1, 16).sum(axis=1)
        first += size
        # The densities' factor e^{top - cumulant} is applied in two parts, so that no huge number multiplies one that
        # underflowed.
        scale = math.exp(min(variation.top - part.cumulant, 0.0)) * (1 + _MASS_SLACK)
        log_scale = max(variation.top - part.cumulant, 0.0)
        at = np.searchsorted(variation.x, low)
        f, rest = variation.f * scale, np.append(np.cumsum(variation.cells[::-1])[::-1], 0.0) * scale
        above = rest[at] + f[at] + f[-1]
        below = rest[0] * (1 + _TILTED_ERROR) - rest[at] + f[at] + f[0]
        mass_above = np.cumsum(mass[::-1])[::-1]
        mass_below = mass_above[0] - mass_above
        peak = int(np.argmax(f[at]))

        def best(masses: Array, sizes: Array, log_scale: float = log_scale) -> Array:
            with np.errstate(divide="ignore"):
                sizes = np.exp(np.minimum(np.log(sizes) + log_scale, 600.0))
            return np.asarray(np.max(masses - _TILTED_ERROR - sizes / t[:, None], axis=1, initial=0.0))

        both = best(mass_above[peak:], above[peak:]) + best(mass_below[: peak + 1], below[: peak + 1])
        total += np.maximum(both, best(mass_above, above))
    return np.minimum(total, 1.0)


def _spread(part: Tilted, tau: float, t: Array) -> Array:
    """For each t a lower bound on 1 - |chi(t')|^2 for t' between t and the next one; for the last t it is 0.

    chi is the characteristic function of the loss L of one release under the law `part`, which is tilted by `tau`. The
    bound is t'^2 P(S)^2 Var(L | S) (1 - y^2/12) for a set S of losses around the median, where P(S) is its tilted mass
    and y is t' times the width of S.
    """
    s = part.law.pair.noise
    law = part.law.refined(min(s, s * s) / 8)
    if math.exp(min(law.quadrature_error(Contour(tau)) - part.cumulant, 0.0)) > _TILTED_ERROR:
        return np.zeros(len(t))
    mass = np.exp(law.log_mass + tau * law.loss - part.cumulant)
    low, high, cells = [], [], []
    first = 0
    for branch, (left, right) in zip(law.pair.branches, law.panels, strict=True):
        ends = [loss_at(law.pair, branch, edge) for edge in (left, right)]
        low.append(np.minimum(*ends))
        high.append(np.maximum(*ends))
        size = 16 * len(left)
        cells.append(mass[first : first + size].reshape(-1, 16).sum(axis=1))
        first += size
    if law.pair.atom > 0:
        low.append(np.zeros(1))
        high.append(np.zeros(1))
        cells.append(mass[first:])
    lowest, highest, weight = (np.concatenate(each) for each in (low, high, cells))
    order = np.argsort(lowest)
    half = int(np.searchsorted(np.cumsum(weight[order]), 0.5 * float(np.sum(weight))))
    centre = float(lowest[order][min(half, len(order) - 1)])
    order = np.argsort(np.maximum(np.abs(lowest - centre), np.abs(highest - centre)))
    lowest, highest, weight = (
        each[order] - shift for each, shift in ((lowest, centre), (highest, centre), (weight, 0))
    )
    middle, radius = (lowest + highest) / 2, (highest - lowest) / 2
    total = np.cumsum(weight)
    square = total * np.cumsum(weight * middle**2)
    variance = np.maximum(square - np.cumsum(weight * middle) ** 2 - 1e-9 * square, 0.0)
    blurred = np.maximum(np.sqrt(variance) - np.sqrt(total * np.cumsum(weight * radius**2)), 0.0)
    bend = np.maximum.accumulate((1 - _MASS_SLACK) ** 2 * (1 - _PHASE**2 / 12) * blurred**2)
    width = np.maximum.accumulate(highest) - np.minimum.accumulate(lowest)
    within = np.searchsorted(width * (1 + _MASS_SLACK), _PHASE / t[1:], side="right") - 1
    return np.append(np.where(within >= 0, t[:-1] ** 2 * bend[within], 0.0), 0.0)
