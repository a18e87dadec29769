"""The paper's displayed formulas in mpmath, transcribed from the text: the oracle of the tests of `theory`.

Nothing here is imported from the library. In every formula of the paper privacy enters through
v = sqrt(log(e + epsilon/delta))/epsilon alone; with the exact calibration v = 1/(2 sqrt(2) mu).
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mpmath import mp, mpf

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


# These functions are the theorems as displayed. Each returns None where its logarithms are not positive.


def theorem_1(case: Case, v: Real) -> Numbers | None:
    """Returns the numbers of Theorem thm:d-dependent and eq:d-dependent for `case`; v is that of `paper_v`."""
    n, d, _, L, ell, gap, _, _ = case.letters()
    return {
        "step_size": 1 / (4 * ell * d),
        "T": n / (mp.sqrt(d) * v),
        "smoothing": 4 * L / (ell * d) * mp.sqrt(mp.sqrt(d) * v / n),
        "clip": L * d,
        "bound": 16 * (gap * ell + 2 * L**2) * d * mp.sqrt(d) * v / n,
    }


def theorem_2(case: Case, v: Real) -> Numbers | None:
    """Returns the numbers of Theorem thm:d-dependent-rank and eq:d-dependent-rank for `case`.

    The number v is that of `paper_v`.
    """
    n, d, r, L, ell, gap, _, _ = case.letters()
    return {
        "step_size": 1 / (4 * ell * (r + 2)),
        "T": n * (r + 2) / (d * mp.sqrt(r) * v),
        "smoothing": 4 * L / (ell * d) * mp.sqrt(mp.sqrt(r) * v / n),
        "clip": L * d,
        "bound": 16 * (gap * ell + 2 * L**2) * d * mp.sqrt(r) * v / n,
    }


def theorem_3(case: Case, v: Real) -> Numbers | None:
    """Returns the numbers of Theorem thm:d-free and eq:d-free for `case`; v is that of `paper_v`."""
    n, d, r, L, ell, gap, B, _ = case.letters()
    argument = 2 * mp.sqrt(2 * mp.pi) * n**3 * (r + 2) * (d + 8 * ell * B * (r + 2) / L**2) / (r * v**2)
    if argument <= 1:
        return None
    tilde = L * mp.sqrt(mp.log(argument))
    return {
        "step_size": 1 / (4 * ell * (r + 2)),
        "T": n * (r + 2) / (4 * mp.sqrt(r) * v),
        "smoothing": 1 / (ell * d) * min(4 * (2 - mp.sqrt(2)) * tilde, L / mp.sqrt(d) * mp.sqrt(mp.sqrt(r) * v / n)),
        "clip": 4 * tilde,
        "bound": (64 * (gap * ell + tilde**2) + 2 * L**2) * mp.sqrt(r) * v / n,
    }


def corollary_1(case: Case, v: Real) -> Numbers | None:
    """Returns the numbers of Corollary cor:pl-d for `case`; v is that of `paper_v`."""
    n, d, _, L, ell, gap, _, mu = case.letters()
    kappa = ell / mu
    x = n**2 / (kappa * d**3 * v**2)
    if x <= 1:
        return None
    return {
        "step_size": 1 / (4 * ell * d),
        "T": 8 * kappa * d * mp.log(x),
        "smoothing": 2 * L / ell * v / n,
        "clip": L * d,
        "bound": (ell * gap + 64 * L**2 * kappa * mp.log(x) + 2 * L**2) * d**3 * v**2 / (mu * n**2),
    }


def corollary_2(case: Case, v: Real) -> Numbers | None:
    """Returns the numbers of Corollary cor:pl-d-rank for `case`; v is that of `paper_v`."""
    n, d, r, L, ell, gap, _, mu = case.letters()
    kappa = ell / mu
    x = n**2 / (kappa * r * d**2 * v**2)
    if x <= 1:
        return None
    return {
        "step_size": 1 / (4 * ell * (r + 2)),
        "T": 8 * kappa * (r + 2) * mp.log(x),
        "smoothing": 2 * L / (ell * mp.sqrt(d)) * mp.sqrt(r) * v / n,
        "clip": L * d,
        "bound": (ell * gap + 64 * L**2 * kappa * mp.log(x) + 2 * L**2) * r * d**2 * v**2 / (mu * n**2),
    }


def corollary_3(case: Case, v: Real) -> Numbers | None:
    """Returns the numbers of Corollary cor:pl-free for `case`; v is that of `paper_v`.

    They are None also where |F(x_0)| <= B and |F*| <= B exclude the gap.
    """
    n, d, r, L, ell, gap, B, mu = case.letters()
    kappa = ell / mu
    x = n**2 / (kappa * r * v**2)
    argument = 32 * mp.sqrt(2 * mp.pi) * kappa * n**3 * (r + 2) * (d + (8 * ell * (r + 2) + mu) * B / L**2)
    argument = argument / (r * v**2)
    if x <= 1 or argument <= 1 or gap > 2 * B:
        return None
    tilde = mp.sqrt(64 * L**2 * mp.log(argument))
    return {
        "step_size": 1 / (4 * ell * (r + 2)),
        "T": 8 * kappa * (r + 2) * mp.log(x),
        "smoothing": 1 / (2 * ell * d) * min((2 - mp.sqrt(2)) * tilde, 4 * L / mp.sqrt(d) * mp.sqrt(r) * v / n),
        "clip": tilde / 2,
        "bound": (ell * gap + mp.log(x) * (L**2 + 16 * tilde**2 * kappa) + 2 * L**2) * r * v**2 / (mu * n**2),
    }


# These functions are the last lines of the proofs before alpha, T, lambda, C and C_0 are plugged in; their noise is
# that of T steps at v.


def _clipping(case: Case, T: Real, c0: Real) -> Real:
    """Returns the bound on the probability that some clip acts, 2 sqrt(2 pi) n T exp(-C_0^2/(8 L^2)).

    It is that of P(Q-bar) in the appendix app:d-free; C_0 is `c0`.
    """
    n, _, _, L, *_ = case.letters()
    return 2 * mp.sqrt(2 * mp.pi) * n * T * mp.exp(-(c0**2) / (8 * L**2))


def unsubstituted_1(case: Case, v: Real, alpha: Real, T: Real, lam: Real, C: Real, c0: Real) -> Real:
    """Returns the bound of the proof of Theorem thm:d-dependent before the parameters are plugged in.

    It is eq:onestep1 with 2 ell alpha <= 1, summed over t and divided by T. v is that of `paper_v`, lam is lambda; the
    threshold c0 is not used.
    """
    n, d, _, _, ell, gap, _, _ = case.letters()
    variance = (4 * C * v / n) ** 2 * 2 * T
    step = alpha * (1 - 2 * d * ell * alpha) / 2
    return (gap / T + ell**2 / 8 * alpha * 2 * lam**2 * d**3 + ell / 2 * alpha**2 * d * variance) / step


def unsubstituted_2(case: Case, v: Real, alpha: Real, T: Real, lam: Real, C: Real, c0: Real) -> Real:
    """Returns the bound of the proof of Theorem thm:d-dependent-rank before the parameters are plugged in.

    It is eq:onestep2 with 2 r ell alpha <= d, summed over t and divided by T. v is that of `paper_v`, lam is lambda;
    the threshold c0 is not used.
    """
    n, d, r, _, ell, gap, _, _ = case.letters()
    variance = (4 * C * v / n) ** 2 * 2 * T
    step = alpha * (1 - 2 * (r + 2) * ell * alpha) / 2
    return (gap / T + ell**2 * alpha * lam**2 * d**2 * (d + d) / 8 + ell * alpha**2 * r * variance / 2) / step


def unsubstituted_3(case: Case, v: Real, alpha: Real, T: Real, lam: Real, C: Real, c0: Real) -> Real:
    """Returns the bound of the proof of Theorem thm:d-free before the parameters are plugged in.

    It is eq:onestep3 and eq:onestep3b with 2 r ell alpha <= d, summed over t and divided by T. v is that of `paper_v`,
    lam is lambda, and c0 is the threshold C_0.
    """
    n, d, r, L, ell, gap, B, _ = case.letters()
    variance = (4 * C * v / n) ** 2 * 2 * T
    step = alpha * (1 - 2 * (r + 2) * ell * alpha) / 2
    smooth = ell**2 * alpha * (d + d) * lam**2 * d**2 / 8
    fail = (alpha * L**2 * d + 2 * B) * _clipping(case, T, c0)
    return (gap / T + ell * alpha**2 * r * variance / 2 + smooth + fail) / step


def _geometric(case: Case, alpha: Real, growth: Real, T: Real, per_step: Real) -> Real:
    """Returns the bound on e_T from the recursion e_{t+1} <= (1 - rho) e_t + per_step, with e_0 the gap.

    It uses (1 - rho)^T <= exp(-rho T) and bounds the geometric sum by 1/rho, where rho = mu alpha (1 - 2 growth ell
    alpha).
    """
    _, _, _, _, ell, gap, _, mu = case.letters()
    rho = mu * alpha * (1 - 2 * growth * ell * alpha)
    return mp.exp(-rho * T) * gap + per_step / rho


def unsubstituted_c1(case: Case, v: Real, alpha: Real, T: Real, lam: Real, C: Real, c0: Real) -> Real:
    """Returns the bound of the proof of Corollary cor:pl-d at any step size alpha.

    No parameters are plugged in.

    v is that of `paper_v`, lam is lambda; the threshold c0 is not used.
    """
    n, d, _, _, ell, *_ = case.letters()
    variance = (4 * C * v / n) ** 2 * 2 * T
    per_step = alpha / 4 * ell**2 * lam**2 * d**3 + ell / 2 * alpha**2 * d * variance
    return _geometric(case, alpha, d, T, per_step)


def unsubstituted_c2(case: Case, v: Real, alpha: Real, T: Real, lam: Real, C: Real, c0: Real) -> Real:
    """Returns the bound of the proof of Corollary cor:pl-d-rank at any step size alpha.

    No parameters are plugged in.

    v is that of `paper_v`, lam is lambda; the threshold c0 is not used.
    """
    n, d, r, _, ell, *_ = case.letters()
    variance = (4 * C * v / n) ** 2 * 2 * T
    per_step = alpha / 4 * ell**2 * lam**2 * d**3 + ell / 2 * alpha**2 * r * variance
    return _geometric(case, alpha, r + 2, T, per_step)


def unsubstituted_c3(case: Case, v: Real, alpha: Real, T: Real, lam: Real, C: Real, c0: Real) -> Real:
    """Returns the bound of the proof of Corollary cor:pl-free at any step size alpha.

    No parameters are plugged in.

    v is that of `paper_v`, lam is lambda, and c0 is the threshold C_0.
    """
    n, d, r, L, ell, _, B, _ = case.letters()
    variance = (4 * C * v / n) ** 2 * 2 * T
    fail = _clipping(case, T, c0)
    per_step = alpha / 4 * ell**2 * lam**2 * d**3 + ell / 2 * alpha**2 * r * variance
    per_step += (L**2 * d * alpha + 2 * B) * fail
    return _geometric(case, alpha, r + 2, T, per_step) + 2 * B * fail


STATEMENTS: dict[str, Callable[[Case, Real], Numbers | None]] = {
    "theorem-1": theorem_1,
    "theorem-2": theorem_2,
    "theorem-3": theorem_3,
    "corollary-1": corollary_1,
    "corollary-2": corollary_2,
    "corollary-3": corollary_3,
}

UNSUBSTITUTED: dict[str, Callable[..., Real]] = {
    "theorem-1": unsubstituted_1,
    "theorem-2": unsubstituted_2,
    "theorem-3": unsubstituted_3,
    "corollary-1": unsubstituted_c1,
    "corollary-2": unsubstituted_c2,
    "corollary-3": unsubstituted_c3,
}


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
