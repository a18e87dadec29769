"""The paper's formulas in mpmath: the oracle of the tests of `theory`.

Its statements are those that `paper_checks.formulas` transcribes from the text; nothing is imported from the library.
In every formula of the paper privacy enters through v = sqrt(log(e + epsilon/delta))/epsilon alone; with the exact
calibration v = 1/(2 sqrt(2) mu).
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import sympy
from mpmath import mp, mpf

from paper_checks import formulas

mp.dps = 40

Real = Any
Numbers = dict[str, Real]


@dataclass(frozen=True)
class Case:
    """One random input of the paper's formulas: the problem's constants and the privacy parameters.

    They are floats and ints.
    """

    n: int
    d: int
    r: float
    lipschitz: float
    smoothness: float
    gap: float
    loss_bound: float
    pl: float
    epsilon: float
    delta: float

    def letters(self) -> tuple[Real, ...]:
        """Returns n, d, r, L, ell, F(x0) - F*, B and mu (of the PL inequality) as mpmath numbers."""
        fields = (self.n, self.d, self.r, self.lipschitz, self.smoothness, self.gap, self.loss_bound, self.pl)
        return tuple(mpf(value) for value in fields)

    def problem(self) -> dict[str, Any]:
        """Returns the problem's constants as keyword arguments of `Problem`."""
        names = ("n", "d", "r", "lipschitz", "smoothness", "gap", "loss_bound", "pl")
        return {name: getattr(self, name) for name in names}


def paper_v(case: Case) -> Real:
    """Returns v = sqrt(log(e + epsilon/delta))/epsilon, by which privacy enters the paper's formulas."""
    eps, delta = mpf(case.epsilon), mpf(case.delta)
    return mp.sqrt(mp.log(mp.e + eps / delta)) / eps


def paper_sigma(clip: Real, steps: Real, n: int, case: Case) -> Real:
    """Returns the paper's sigma = 4 C sqrt(2 T log(e + epsilon/delta))/(n epsilon), line 3 of Algorithms 1 and 2.

    C is `clip`, T is `steps`, and epsilon and delta are those of `case`.
    """
    eps, delta = mpf(case.epsilon), mpf(case.delta)
    return 4 * clip * mp.sqrt(2 * steps * mp.log(mp.e + eps / delta)) / (n * eps)


def gaussian_delta(epsilon: Real, gdp: Real) -> Real:
    """Returns delta(epsilon; mu) of mu-GDP (Balle and Wang, Theorem 8).

    It is Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2), where mu is `gdp`.
    """
    eps, m = mpf(epsilon), mpf(gdp)
    return mp.ncdf(-eps / m + m / 2) - mp.exp(eps) * mp.ncdf(-eps / m - m / 2)


def bisect(below: Callable[[Real], bool], low: Real, high: Real, digits: int = 25) -> Real:
    """Returns the point of [low, high] where the condition `below` turns from true to false, to `digits` digits.

    The search bisects the logarithm, then the number itself.
    """
    low, high = mpf(low), mpf(high)
    while high > 2 * low:
        middle = mp.sqrt(low * high)
        low, high = (middle, high) if below(middle) else (low, middle)
    while high - low > low * mpf(10) ** -digits:
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


def exact_gdp(epsilon: float, delta: float) -> Real:
    """Returns the mu of mu-GDP at which delta(epsilon; mu) = delta, by bisection and then Newton's method.

    The derivative of delta in mu is phi(a), with a = epsilon/mu - mu/2.
    """
    eps, target = mpf(epsilon), mpf(delta)
    gdp = bisect(lambda m: gaussian_delta(eps, m) < target, mpf(10) ** -12, mpf(10) ** 6, digits=3)
    for _ in range(60):
        value = gaussian_delta(eps, gdp)
        step = value / mp.npdf(eps / gdp - gdp / 2) * mp.log(value / target)
        gdp -= step
        if abs(step) < gdp * mpf(10) ** -28:
            return gdp
    raise ArithmeticError(f"no root for epsilon = {epsilon}, delta = {delta}")


def _displayed(id: str) -> Callable[[Case, Real], Numbers | None]:
    """Returns the theorem or corollary as displayed: its numbers for a case and the v of `paper_v`.

    They are None where its logarithms are not positive, and where |F(x_0)| <= B and |F*| <= B exclude the gap.
    """
    shown = formulas.STATEMENTS[id[:-2].replace("theorem", "thm").replace("corollary", "cor") + id[-1]]
    symbols = (*(formulas.n, formulas.d, formulas.r, formulas.L, formulas.ell, formulas.gap, formulas.B, formulas.mu),
               formulas.eps, formulas.K)  # fmt: skip

    def at(expression: Any) -> Callable[..., Real]:
        found: Callable[..., Real] = sympy.lambdify(symbols, expression, "mpmath")
        return found

    above_one = [at(argument) for argument in (shown.log_argument, shown.tail_argument) if argument is not None]
    smoothing = [at(entry) for entry in shown.lam]
    numbers = {"step_size": at(shown.alpha), "T": at(shown.T), "clip": at(shown.C), "bound": at(shown.bound)}

    def values(case: Case, v: Real) -> Numbers | None:
        letters = (*case.letters(), mpf(1), v**2)  # the formulas have epsilon and K in K/epsilon^2 = v^2 only
        if any(argument(*letters) <= 1 for argument in above_one) or (
            id == "corollary-3" and case.gap > 2 * case.loss_bound
        ):
            return None
        return {name: value(*letters) for name, value in numbers.items()} | {
            "smoothing": min(entry(*letters) for entry in smoothing)
        }

    return values


def _unsubstituted(id: str, case: Case, v: Real, alpha: Real, T: Real, lam: Real, C: Real, c0: Real) -> Real:
    """Returns the bound of a proof before alpha, T, lambda, C and C_0 are plugged in, at any step size alpha.

    It is eq:onestep1, eq:onestep2 (with 2 r ell alpha <= d), or eq:onestep3 and eq:onestep3b. For a theorem it is
    summed over t and divided by T; for a corollary the recursion e_{t+1} <= (1 - rho) e_t + per_step is solved with
    (1 - rho)^T <= exp(-rho T). The noise is that of T steps at v. Where the clip is that of Algorithm 2, some clip acts
    with a probability of at most 2 sqrt(2 pi) n T exp(-C_0^2/(8 L^2)), P(Q-bar) in the appendix app:d-free.
    """
    n, d, r, L, ell, gap, B, mu = case.letters()
    rank, growth = (d, d) if id in ("theorem-1", "corollary-1") else (r, r + 2)
    variance = (4 * C * v / n) ** 2 * 2 * T
    fail = 2 * mp.sqrt(2 * mp.pi) * n * T * mp.exp(-(c0**2) / (8 * L**2)) if id.endswith("-3") else 0
    progress = alpha * (1 - 2 * growth * ell * alpha)
    per_step = ell**2 * alpha * lam**2 * d**3 / 4 + ell * alpha**2 * rank * variance / 2
    per_step += (alpha * L**2 * d + 2 * B) * fail
    if id.startswith("theorem"):
        return (gap / T + per_step) / (progress / 2)
    return mp.exp(-mu * progress * T) * gap + per_step / (mu * progress) + 2 * B * fail


IDS = ("theorem-1", "theorem-2", "theorem-3", "corollary-1", "corollary-2", "corollary-3")
STATEMENTS = {id: _displayed(id) for id in IDS}
UNSUBSTITUTED: dict[str, Callable[..., Real]] = {id: partial(_unsubstituted, id) for id in IDS}


def largest_threshold(case: Case, lam: Real, C: Real) -> Real:
    """Returns the largest threshold C_0 that the proof of Theorem thm:d-free allows at the clip C.

    It is C - ell lambda d/2, since C >= C_0 + ell lambda d/2 is required; lam is lambda.
    """
    return C - mpf(case.smoothness) * lam * case.d / 2


def cases(seed: int) -> Iterator[Case]:
    """Yields random inputs, log-uniform over wide ranges; a quarter of them has r = 1 or r = d."""
    draw = random.Random(seed)

    def log(low: float, high: float) -> float:
        return float(10 ** draw.uniform(low, high))

    while True:
        d = round(log(0, 8))
        rank = draw.random()
        smoothness = log(-3, 3)
        yield Case(
            n=round(log(1, 9)),
            d=d,
            r=1.0 if rank < 0.125 else float(d) if rank < 0.25 else min(float(d), max(1.0, d ** draw.random())),
            lipschitz=log(-3, 3),
            smoothness=smoothness,
            gap=log(-3, 3),
            loss_bound=log(-3, 3),
            pl=smoothness / log(0, 6),
            epsilon=log(-3, 1.699),
            delta=log(-12, -0.523),
        )


def admissible(id: str, count: int, seed: int) -> list[tuple[Case, Real, Numbers]]:
    """Returns the first `count` random inputs to which the result called `id` applies.

    Each comes with the paper's v and the numbers of the result. `seed` selects the random inputs.
    """
    found: list[tuple[Case, Real, Numbers]] = []
    for case in cases(seed):
        v = paper_v(case)
        numbers = STATEMENTS[id](case, v)
        if numbers is not None:
            found.append((case, v, numbers))
        if len(found) == count:
            return found
    raise AssertionError("unreachable")
