"""What a run may claim that is stopped before its plan is complete, perhaps because of what it has released.

Epsilon of the releases made is what a run costs if their number was fixed without looking at them. If the run may stop
because of what it shows, that number is too small: stopping where the releases happen to tell much about a record makes
telling outcomes more likely than delta allows. So a run claims the epsilon of its whole plan, which holds however it is
stopped, since what was not released could have been released and ignored. Two settings change that:

    any       the default: the epsilon of the whole plan
    fixed     whoever runs it promises that the number of steps does not depend on anything that it has released;
              then the epsilon of the releases that are paid for
    looks:M   the epsilon of `stopping_curve`, which is safe to stop at, with a look every M releases

**A curve that is safe to stop at.** Numbers epsilon_1, ..., epsilon_K at the looks n_1 < ... < n_K = T are safe at
delta if for every two neighbouring data sets, every adaptive choice of what the steps ask, every rule by which the run
stops, and every event E, P(E) <= E_Q(e^{epsilon at the stop}; E) + delta. Here P and Q are the laws of all that is
released, and a run that stops between two looks claims the number of the later one. derivation.md, section 9, proves:
let (A_k, B_k) dominate the releases between look k - 1 and look k, and

    V_K(r) = (1 - e^{epsilon_K} r)_+,   V_k(r) = max{(1 - e^{epsilon_k} r)_+, E_{A_{k+1}} V_{k+1}(r dB_{k+1}/dA_{k+1})}.

If E_{A_1} V_1(dB_1/dA_1) <= delta, for both orders of the neighbours, the curve is safe at delta. The curves here are
epsilon_k = epsilon(n_k) + D with the least D that the computation allows: epsilon(n) is what n releases cost if their
number is fixed. With one look that is all of it. Every error is on the private side: losses are put on a grid so that
the new pair dominates the old one, and what is cut off counts as an infinite loss.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Unpack

import numpy as np
from scipy.special import ndtri

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.accountant import cost_epsilon, cost_of, epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.laws.arithmetic import UNIT
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import Law, Span
from dpzero_theory.privacy.step import Step, Words, step_of

ANY, FIXED, LOOKS = "any", "fixed", "looks"
_MEANINGS = {
    ANY: "any: it may stop at any time, also because of what it released; so epsilon of the whole plan is claimed",
    FIXED: "fixed: the number of steps was chosen without looking at what was released; epsilon of those paid for is"
    " claimed",
    LOOKS: "looks:{}: it may stop at any time, also because of what it released; the epsilon that is claimed is that of"
    " a curve that is safe to stop at, with a look every {} steps",
}
SAFE = "a curve that is safe to stop at"
"""The method that a bracket of a claim by planned looks names."""
_MOST_STOPS = 10_000
_CELLS, _MOST_CELLS = 16, 2**13
"""The width of a grid is doubled until it is more than 1/(2 _CELLS) of the standard deviation of the losses and the
grid has at most _MOST_CELLS points."""
_LOST = 1e-5
"""The share of delta that all losses which are cut off, at all convolutions together, count as infinite, or less."""
_INFINITE = 6.0
"""A total loss that is larger than the largest epsilon of a curve by this much counts as infinite."""
_AIMS, _SHORT = 8, 2e-3
"""The noise for a curve is looked for at most so often, until the curve ends below its target by less than the second
number, as a share."""
_TRIES, _ALMOST = 40, 1e-3
"""A search for D ends where delta is below its target by less than the second number, as a share."""


def looks_of(stopping: str) -> int:
    """Return M of "looks:M", and 0 for "any" and "fixed". Raises ValueError for any other word."""
    rule = "stopping must be any, fixed or looks:M, with a look every M releases"
    if not isinstance(stopping, str):
        raise ValueError(f"{rule}; got {check.shown(stopping)}")
    word, colon, every = stopping.partition(":")
    if word in (ANY, FIXED) and not colon:
        return 0
    if word != LOOKS or not every.isdecimal() or not every.isascii() or every.startswith("0"):
        raise ValueError(f"{rule}; got {check.shown(stopping)}")
    return int(every)


def meaning(stopping: str) -> str:
    """Return in words what a run with this setting may do, and what it claims."""
    every = looks_of(stopping)
    return _MEANINGS[stopping.partition(":")[0]].format(every, every)


def counted(spent: int, steps: int, delta: float, stopping: str = ANY) -> int:
    """Return the number of releases whose cost is that of the run, if it was stopped; the arguments are those of
    `claimed`. A run with planned looks may claim less at one delta, by its curve, but it counts with its whole plan."""
    looks_of(stopping)
    # At delta = 0 no loss ever exceeds the epsilon of the releases made, wherever the run stops.
    return spent if stopping == FIXED or not spent or delta == 0 else steps


def claimed(step: Step, spent: int, steps: int, delta: float, stopping: str = ANY) -> Bracket:
    """Return a bracket of the epsilon that a run may claim at `delta`; `upper` is the number to state. With planned
    looks both ends are that number.

    Args:
        step: one release of the run.
        spent: the releases that are paid for, >= 0. Before the first one nothing is claimed, epsilon 0.
        steps: the releases of the whole plan, >= `spent`.
        delta: 0 < delta < 1; 0 is allowed where no noise is Gaussian.
        stopping: how the run may be stopped: "any", "fixed" or "looks:M".

    Raises:
        ValueError: an argument outside its range, or steps for which no curve is known.
    """
    every = looks_of(stopping)
    if every and spent and delta:
        found = stopping_curve(step, steps, every, delta).at(spent)
        return Bracket(found, found, found, SAFE)
    count = counted(spent, steps, delta, stopping)
    return epsilon_of_history(step * count if count else [], delta)


@dataclass(frozen=True)
class StoppingCurve:
    """The epsilons that a run may claim which looks at what it has released and may stop.

    Attributes:
        looks: the numbers of releases n_1 < ... < n_K = T after which it looks.
        epsilons: what may be claimed where it stops at each look, or since the one before it.
        raised: D, by how much these are above the cost of so many releases whose number is fixed.
        delta: of the claim.
    """

    looks: tuple[int, ...]
    epsilons: tuple[float, ...]
    raised: float
    delta: float

    def at(self, spent: int) -> float:
        """Return the epsilon that may be claimed when `spent` releases are paid for, from 0 to T; 0 for none."""
        check.integer("spent", spent, at_least=0, at_most=self.looks[-1])
        return self.epsilons[int(np.searchsorted(self.looks, spent))] if spent else 0.0


@lru_cache(64)
def stopping_curve(step: Step, steps: int, every: int, delta: float) -> StoppingCurve:
    """Return the curve of epsilon that is safe to stop at, with a look after every `every` releases and at the end.

    Args:
        step: one release, with batches that are drawn anew in each step.
        steps: T >= 1, the most releases that are made.
        every: M >= 1; there are at most 10,000 looks.
        delta: 0 < delta < 1, of the claim.

    Raises:
        ValueError: an argument outside its range, steps whose batches follow a schedule, or noise without a law of
            losses.
    """
    check.integer("steps", steps)
    check.real("delta", delta, above=0, below=1)
    every = check.integer("every", every, at_least=max(1, -(-steps // _MOST_STOPS)))
    if every >= steps:
        return StoppingCurve((steps,), (cost_epsilon(cost_of(step * steps), delta, ends="upper").upper,), 0.0, delta)
    looks = (*range(every, steps, every), steps)
    directions, ratio = _directions(step, steps, delta)
    # The probabilities of what is released are within a factor e^ratio of those that are accounted for (section 9).
    target = delta * math.exp(-ratio)
    chains = [_Chain(direction, looks, target) for direction in directions]
    fixed = np.max([chain.fixed for chain in chains], axis=0)
    raised = _least(lambda more: max(chain.value(fixed + more) for chain in chains) / target, 0.1 * float(fixed[-1]))
    epsilons = (fixed + raised + np.max([chain.slips for chain in chains], axis=0) + 2 * ratio) * (1 + 8 * UNIT)
    return StoppingCurve(looks, tuple(np.maximum.accumulate(epsilons).tolist()), raised, delta)


def noise_to_stop(target_epsilon: float, target_delta: float, steps: int, every: int, **words: Unpack[Words]) -> float:
    """Return a noise multiplier with which `stopping_curve` ends at target_epsilon, or a little below it.

    It is larger than what a fixed number of steps needs, by about the share D of epsilon. The arguments are those of
    `stopping_curve` and `calibrate_noise_multiplier`, which say what is raised.
    """
    found, aim = math.inf, target_epsilon
    for _ in range(_AIMS):
        noise = calibrate_noise_multiplier(target_epsilon=aim, target_delta=target_delta, steps=steps, **words).upper
        end = stopping_curve(step_of(noise, **words), steps, every, target_delta).epsilons[-1]
        if end <= target_epsilon:
            found = min(found, noise)
            if end >= target_epsilon * (1 - _SHORT):
                break
        # D shrinks with the aim, so that a whole step down ends a little below the target, and 0.9 of one up too.
        aim += (0.9 if end <= target_epsilon else 1.0) * (target_epsilon - end)
        aim = max(aim, target_epsilon / 100)
    if not found < math.inf:
        raise ValueError(f"stopping must have fewer looks for target_epsilon {target_epsilon!r}; got {every!r} apart")
    return found


def _least(share: Callable[[float], float], start: float) -> float:
    """Return a D >= 0 with share(D) <= 1, and not much less unless D is 0; `share` falls. start: a guess."""
    low, at_low = 0.0, math.log(share(0.0))
    if at_low <= 0:
        return 0.0
    high = max(start, 1e-6)
    while (at_high := math.log(max(share(high), 1e-300))) > 0:
        low, at_low, high = high, at_high, 2 * high
    for _ in range(_TRIES):
        if at_high > -_ALMOST or high - low <= _ALMOST * 1e-3 * high:
            break
        # The chord of a convex function meets 0 where the function is below 0; halving is for where it is not convex.
        at = low + (high - low) * max(at_low / (at_low - at_high), 0.5 if at_high < -1 else 0.0)
        found = math.log(max(share(at), 1e-300))
        if found <= 0:
            high, at_high = at, found
        else:
            low, at_low = at, found
    return high


@dataclass(frozen=True)
class _Law:
    """The loss of some releases on a grid: masses under P at the losses (first + k) width, and of an infinite loss.

    It dominates the releases if every loss is raised by `slip` and every mass by the share `error`. 0 is on the grid.
    """

    width: float
    first: int
    masses: Array
    infinite: float
    slip: float
    error: float

    @property
    def losses(self) -> Array:
        return np.asarray((self.first + np.arange(len(self.masses))) * self.width, dtype=np.float64)

    @property
    def deviation(self) -> float:
        """The standard deviation of the finite losses."""
        mean = float(self.masses @ self.losses)
        return math.sqrt(max(float(self.masses @ (self.losses - mean) ** 2), 0.0))

    def plus(self, other: "_Law", lost: float) -> "_Law":
        """The law of these releases and of `other`, which is on the same grid. Losses that have at most the probability
        `lost` at either end are cut off, on the safe side."""
        masses = np.convolve(self.masses, other.masses)  # sums of numbers >= 0, so that relative errors stay small
        first = self.first + other.first
        low = min(int(np.searchsorted(np.cumsum(masses), lost)), -first)
        high = max(len(masses) - int(np.searchsorted(np.cumsum(masses[::-1]), lost)), 1 - first)
        kept = masses[low:high].copy()
        kept[0] += masses[:low].sum()
        infinite = (self.infinite + other.infinite + float(masses[high:].sum())) * (1 + 1e-9)
        error = self.error + other.error + UNIT * (min(len(self.masses), len(other.masses)) + 4)
        return _Law(self.width, first + low, kept, infinite, self.slip + other.slip, error)

    def coarse(self) -> "_Law":
        """The law on a grid of 2, 4, 8, ... times the width, while there are more points than are needed."""
        if 2 * self.width * _CELLS <= self.deviation or len(self.masses) > _MOST_CELLS:
            return self.on(2 * self.width).coarse()
        return self

    def on(self, width: float) -> "_Law":
        """The law on a grid of a width that is this one times a power of 2. A mass between two points of the new grid
        is split between them so that the masses under P and under Q are kept; so the new law dominates this one."""
        if self.width > 0.75 * width:
            return self
        start, up = self.first // 2, (1 + 4 * UNIT) / (1 + math.exp(-self.width))
        padded = np.pad(self.masses, (self.first - 2 * start, 3))
        count = (len(padded) - 1) // 2
        even, odd = padded[0 : 2 * count : 2], padded[1 : 2 * count : 2]
        masses = even + odd * (1 - up)
        masses[1:] += odd[:-1] * up
        error = self.error + 8 * UNIT
        return _Law(2 * self.width, start, masses, self.infinite, self.slip, error).on(width)


@dataclass(frozen=True)
class _Direction:
    """One order of the neighbours, and how the losses of releases are computed in it.

    pair: of one release; None if releases are plain Gaussian ones, mu-GDP each with mu = `plain`. lost: the probability
    under P that may be cut off at one convolution, or at one end of one release.
    """

    pair: Law | None
    plain: float
    lost: float

    def power(self, count: int, width: float = 0.0) -> _Law:
        """The law of `count` releases, on a grid of this width unless it is 0."""
        if self.pair is None:
            mu = self.plain * math.sqrt(count) * (1 + 4 * UNIT)
            return self._one(Gaussian("remove", 1.0, 1 / mu), width or mu / (2 * _CELLS))
        base, found = self._first(self.pair), None
        while True:
            if count & 1:
                found = base if found is None else found.on(base.width).plus(base.on(found.width), self.lost).coarse()
            count >>= 1
            if not count:
                assert found is not None
                return found.on(width)
            base = base.plus(base, self.lost).coarse()

    def _first(self, pair: Law) -> _Law:
        """One release, on a grid that is fine beside the standard deviation of its losses."""
        most = self._largest(pair)
        found = self._one(pair, most / 128)
        while found.width > found.deviation / _CELLS and found.width > 2 * most / _MOST_CELLS:
            found = self._one(pair, max(found.deviation / (2 * _CELLS), 2 * most / _MOST_CELLS))
        return found.coarse()

    @property
    def _reach(self) -> float:
        """The distance z, in standard deviations of the noise, beyond which outputs are left out."""
        return -float(ndtri(self.lost))

    def _largest(self, pair: Law) -> float:
        """A bound on the absolute losses of the outputs that are not left out."""
        losses, _ = pair.sketch(Span(self._reach, self._reach))
        return float(np.max(np.abs(losses))) * 1.01

    def _one(self, pair: Law, width: float) -> _Law:
        span = Span(self._reach, self._reach)
        found = pair.cells(span, 0.0, width, -self._largest(pair))
        infinite = 4 * self.lost + pair.infinite
        first, end = min(found.first, 0), max(found.first + len(found.upper), 1)
        masses = np.zeros(end - first)
        masses[found.first - first :][: len(found.upper)] = found.upper * math.exp(found.log_scale)
        return _Law(width, first, masses, infinite, found.slip, found.error)


class _Chain:
    """The releases between the looks, one law for each stretch of them, in one order of the neighbours.

    Attributes:
        fixed: for each look epsilon of the releases up to there if their number is fixed. It gives a curve its form and
            need not be exact.
        slips: for each look by how much its epsilon has to be raised because losses are computed in floats.
    """

    def __init__(self, direction: _Direction, looks: Sequence[int], delta: float) -> None:
        block = direction.power(looks[0])
        last = direction.power(looks[-1] - looks[-2], block.width)
        self._blocks = [*[block.on(last.width)] * (len(looks) - 1), last]
        self._width = last.width
        sums = [self._blocks[0]]
        for each in self._blocks[1:]:
            sums.append(sums[-1].plus(each, direction.lost))
        self.fixed = np.maximum.accumulate([_epsilon(each, delta) for each in sums])
        self.slips = np.array([each.slip for each in sums])

    def value(self, epsilons: Array) -> float:
        """An upper bound on E V_1, with V_k as in the module's docstring and the numbers `epsilons` at the looks."""
        most = float(epsilons[-1])
        top, bottom = math.ceil((most + _INFINITE) / self._width), -math.ceil((most / 2 + 1) / self._width)
        losses = np.arange(bottom, top + 1) * self._width
        values, error = np.zeros(len(losses)), 0.0
        for block, epsilon in zip(reversed(self._blocks), reversed(epsilons), strict=True):
            values = np.maximum(values, -np.expm1(epsilon - losses))
            # V rises in the total loss: beyond the grid a smaller one counts as the smallest, a larger one as infinite.
            below, above = np.full(-block.first, values[0]), np.ones(block.first + len(block.masses) - 1)
            going_on = np.convolve(np.concatenate([below, values, above]), block.masses[::-1], "valid")
            values = np.minimum(going_on + block.infinite, 1.0)
            error += block.error + UNIT * (len(block.masses) + 8)
        return float(values[-bottom]) * math.exp(error)


def _epsilon(law: _Law, delta: float) -> float:
    """About the epsilon of the releases of a law at `delta`."""
    losses = law.losses
    above = np.cumsum(law.masses[::-1])[::-1] + law.infinite
    other = np.cumsum((law.masses * np.exp(-losses))[::-1])[::-1]
    # delta(e) = above - e^e other with the sums over the losses larger than e.
    at_losses = np.append(above[1:], law.infinite) - np.exp(losses) * np.append(other[1:], 0.0)
    at = int(np.argmax(at_losses <= delta))
    return max(math.log((above[at] - delta) / other[at]), 0.0) if above[at] > delta else 0.0


def _directions(step: Step, steps: int, delta: float) -> tuple[list[_Direction], float]:
    """How one release is computed in each order of the neighbours, and G >= 0 by whose e^G the probabilities of all
    that is released may differ from those that are computed. Raises ValueError for steps that have no such form."""
    rule = "step must have batches that are drawn anew in each step, and noise with a law of losses, to plan looks"
    release = replace(step, steps=steps)
    cost, lost = release.cost(), _LOST * delta / steps
    laws = list(dict.fromkeys(parts[0][0] for parts in cost.above if len(parts) == 1 and parts[0][1] == steps))
    plain = cost.closed and 0 < cost.squares[0] < math.inf
    if step.sampling.scheduled or cost.apart or any(cost.zcdp) or cost.renyi or not (laws or plain):
        raise ValueError(f"{rule}; got sampling {release.sampling.word} and mechanism {release.mechanism}")
    if plain:
        return [_Direction(None, math.sqrt(cost.squares[0] / steps), lost)], cost.ratio
    return [_Direction(law, 0.0, lost) for law in laws], cost.ratio
