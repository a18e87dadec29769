"""What it costs to run a private mechanism a random number of times and release the best outcome only.

A run with outcome y and score g(y) is repeated K times, where K is drawn from a law that does not depend on the data.
Only the outcome with the highest score is released, neither K nor the other outcomes (Liu and Talwar 2019; Papernot and
Steinke 2022, whose laws of K these are). A run may include the choice of its settings, at random from a public list.
Its history costs delta(x) at epsilon x.

Statement. Let f(x) = E x^K, m = E K, and let ties be broken by a random number that is part of y. Then the release is
(epsilon, delta)-DP for

    delta = m delta(e),    epsilon = e + (shape + 1) log(e^b + (1/gamma - 1) delta(b)),    any e, b >= 0,

for the truncated negative binomial law with that shape > -1 (1: geometric, 0: logarithmic) and gamma in (0, 1), and

    delta = m delta(e),    epsilon = e + m delta(0)

for the Poisson law (shape infinite; nothing is released where K = 0).

Proof. Let Q be the law of one run's outcome under one data set and Q' under its neighbour, q = Q(g <= g(y)) and q' the
same for Q'. The law of the released outcome is A(y) = Q(y) f'(q), as d(q^K) = K q^(K-1) dq, and A' for the neighbour.
Where f'(q) <= R f'(q'), A(y) - e^epsilon A'(y) <= f'(q) (Q(y) - e^e Q'(y)) for epsilon = e + log R, and f' <= f'(1) =
m: integrated over any set this is at most m delta(e). For the negative binomial law f'(x) is proportional to (1 -
(1-gamma) x)^-(shape+1), and with 1-q' <= e^b (1-q) + delta(b)

    gamma + (1-gamma)(1-q') <= (gamma + (1-gamma)(1-q)) (e^b + (1-gamma) delta(b)/gamma).

For the Poisson law f'(q)/f'(q') = e^(m (q-q')) and q - q' <= delta(0), the total variation distance. For K = 0 the
release is the same for both data sets. The bound in terms of privacy profiles is that of Koskela, Redberg and Wang
(2024).
"""

import math
import random
from dataclasses import dataclass
from functools import cached_property
from typing import Unpack

from scipy.optimize import brentq, minimize_scalar

from dpzero_theory import check
from dpzero_theory.bisection import outward
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrated
from dpzero_theory.privacy.step import Steps, Words, step_of

MOST_RUNS = 1e4
_LEAST_LOG = -700.0
"""The smallest natural logarithm of the parameter gamma of a law of `Runs` that is considered: e^-700 is a float, with
room for products."""
_NOTE = "selection: an upper end; the number of runs and every run but the best stay secret"


@dataclass(frozen=True)
class Runs:
    """The law of the random number K of runs, given by its mean m and a shape.

    mean: m, with 1 < m <= 10^4, or 0 < m <= 10^4 for the Poisson law. shape: above -1 and at most 1000, or infinite; it
    is 1 for the geometric law, 0 for the logarithmic law and infinite for the Poisson law. Near shape -1 a mean needs a
    parameter gamma of about m^(-1/(1 + shape)), which must be at least e^-700. Raises ValueError for numbers outside
    these ranges.
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if self.shape != math.inf:
            check.real("shape", self.shape, above=-1, at_most=1e3)
        check.real("mean", self.mean, above=0.0 if self.shape == math.inf else 1.0, at_most=MOST_RUNS)
        if self.shape != math.inf and _mean(_LEAST_LOG, self.shape) <= self.mean:
            most = _mean(_LEAST_LOG, self.shape)
            raise ValueError(f"mean must be below {most:.6g} with shape {self.shape:g}; got {self.mean!r}")

    @cached_property
    def gamma(self) -> float:
        """The parameter gamma in (0, 1) at which the negative binomial law has the mean `mean`; 0 for the Poisson
        law."""
        if self.shape == math.inf:
            return 0.0
        ends = (_LEAST_LOG, -1e-20)
        log_gamma = brentq(lambda x: _mean(x, self.shape) - self.mean, *ends, xtol=1e-300, rtol=1e-15, maxiter=2000)
        return min(math.exp(float(log_gamma)), math.nextafter(1.0, 0.0))

    def draw(self, source: random.Random) -> int:
        """Draw K, the number of runs, which is 0 or more for the Poisson law and 1 or more otherwise, by inversion of
        its distribution function in float64. The random bits of `source` must be secret."""
        left = source.random()
        if self.shape == math.inf:
            number, mass = 0, math.exp(-self.mean)
        else:
            number, mass = 1, self._first()
        while left >= mass and mass > 0:
            left -= mass
            number += 1
            if self.shape == math.inf:
                mass *= self.mean / number
            else:
                mass *= (1 - self.gamma) * (number - 1 + self.shape) / number
        return number

    def _first(self) -> float:
        """The probability of K = 1, for a law that is not the Poisson law."""
        g = self.gamma
        if self.shape == 0:
            return (1 - g) / -math.log(g)
        return self.shape * (1 - g) / math.expm1(-self.shape * math.log(g))


def _mean(log_gamma: float, shape: float) -> float:
    """The mean (1/gamma - 1) shape/(1 - gamma^shape) of the number of runs, or its limit at shape 0.

    log_gamma: the logarithm of gamma in (0, 1). As gamma rises the mean falls from infinity to 1.
    """
    exponent = shape * log_gamma
    fall = -log_gamma if abs(exponent) < 1e-16 else -math.expm1(exponent) / shape
    return math.expm1(-log_gamma) / fall


def selection_epsilon(history: Steps, delta: float, runs: Runs) -> Bracket:
    """An upper bound on epsilon at delta of releasing the best of a random number of runs, and nothing else of them.

    Args:
        history: the history of one run. If its score is computed from private data, the release of the score is part of
            it.
        delta: 0 < delta < 1, of the whole selection; that of one run is chosen here.
        runs: the law of the number of runs.

    Returns:
        A bracket with value = upper, which is certified; its lower end is 0 and says nothing.

    Raises:
        ValueError: an argument outside its range.
    """
    target = check.real("delta", delta, above=0, below=1)
    least = epsilon_of_history(history, min(target / runs.mean, 0.5)).upper
    if runs.shape == math.inf:
        upper = least + runs.mean * delta_of_history(history, 0.0).upper
        return Bracket(0.0, upper, upper, "selection", (_NOTE,))
    odds = 1 / runs.gamma - 1

    def beyond(b: float) -> float:
        spent = delta_of_history(history, b).upper
        return (runs.shape + 1) * (b + math.log1p(odds * spent * math.exp(-b)))

    best = minimize_scalar(beyond, bounds=(0.0, max(least, 1e-6)), method="bounded", options={"xatol": 1e-3})
    upper = (least + min(float(best.fun), beyond(0.0), beyond(least))) * (1 + 1e-12)
    return Bracket(0.0, upper, upper, "selection", (_NOTE,))


def calibrate_selection(
    runs: Runs, *, target_epsilon: float, target_delta: float, steps: int, **words: Unpack[Words]
) -> Bracket:
    """The noise multiplier of each run with which the best of `runs` is (target_epsilon, target_delta)-DP.

    steps: the number of releases of one run. words: sampling, relation, sample_rate and coordinates of one run, as of
    `step.Words`; its noise is Gaussian on a lattice. It returns a bracket with value = upper, which is certified.
    `lower` is 10^-4 of it smaller; there the upper bound of `selection_epsilon` misses the target, though the exact
    epsilon may meet it. Raises ValueError for an argument outside its range.
    """
    goal = check.real("target_epsilon", target_epsilon, above=0)
    if words.setdefault("mechanism", "discrete-gaussian") != "discrete-gaussian":
        raise ValueError(f"mechanism must be discrete-gaussian for a selection; got {words['mechanism']!r}")
    unit = step_of(1.0, steps, **words)
    least = calibrated(unit, goal, target_delta).value

    def excess(log_noise: float) -> float:
        return math.log(selection_epsilon([unit.with_noise(math.exp(log_noise))], target_delta, runs).upper / goal)

    def meets(log_noise: float) -> bool:
        return excess(log_noise) <= 0

    low = math.log(least)
    high = outward(meets, low + 1.0, 1.0, growth=1)[1]
    root = float(brentq(excess, low, high, xtol=2e-5))
    noise = math.exp(outward(meets, root, 2e-5, growth=1)[1])
    return Bracket(noise * (1 - 1e-4), noise, noise, "selection", (_NOTE,))
