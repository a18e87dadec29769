"""The paper's displayed statements, and the bounds of its proofs before parameters are substituted, transcribed for
sympy.

Nothing here is imported from the library, which is compared with these formulas. `K` stands for log(e + epsilon/delta)
wherever a formula is manipulated; `value` puts the logarithm back. Each `Statement` is what the paper prints in a
theorem or corollary; each `unsubstituted_*` is the last line of the proof before the parameters go in.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import sympy as sp

n, d, r, L, ell, gap, B, eps, mu, K = sp.symbols("n d r L ell gap B eps mu K", positive=True)
alpha, T, lam, C, C0, sigma = sp.symbols("alpha T lambda C C_0 sigma", positive=True)
kappa = ell / mu
_HALF = sp.Rational(1, 2)


@dataclass(frozen=True)
class Statement:
    """A theorem or corollary as the paper displays it; `id` is thm1 to thm3 or cor1 to cor3.

    Attributes:
        alpha, T, C: step size, number of steps and clip.
        lam: the entries of the minimum that is the largest smoothing lambda.
        bound: the right-hand side of its inequality.
        order: the expression of which the number n T of zeroth-order gradients is said to be O(.).
        log_argument: the argument of a logarithm that must be above 1 for the display to make sense.
        tail_argument: the argument of the logarithm in L-tilde.
    """

    id: str
    alpha: sp.Expr
    T: sp.Expr
    lam: tuple[sp.Expr, ...]
    C: sp.Expr
    bound: sp.Expr
    order: sp.Expr
    log_argument: sp.Expr | None = None
    tail_argument: sp.Expr | None = None


_ARG_3 = 2 * sp.sqrt(2 * sp.pi) * n**3 * eps**2 * (r + 2) * (d + 8 * ell * B * (r + 2) / L**2) / (r * K)
_L_TILDE_3 = L * sp.sqrt(sp.log(_ARG_3))
_ARG_C3 = (32 * sp.sqrt(2 * sp.pi) * kappa * n**3 * eps**2 * (r + 2) * (d + (8 * ell * (r + 2) + mu) * B / L**2)) / (
    r * K
)
_L_TILDE_C3 = 8 * L * sp.sqrt(sp.log(_ARG_C3))
_LOG_1 = sp.log(n**2 * eps**2 / (kappa * d**3 * K))
_LOG_2 = sp.log(n**2 * eps**2 / (kappa * r * d**2 * K))
_LOG_3 = sp.log(n**2 * eps**2 / (kappa * r * K))

THEOREMS = (
    Statement(
        "thm1",
        alpha=1 / (4 * ell * d),
        T=n * eps / sp.sqrt(d * K),
        lam=(4 * L / (ell * d) * (sp.sqrt(d * K) / (n * eps)) ** _HALF,),
        C=L * d,
        bound=16 * (gap * ell + 2 * L**2) * d * sp.sqrt(d * K) / (n * eps),
        order=n**2 / sp.sqrt(d),
    ),
    Statement(
        "thm2",
        alpha=1 / (4 * ell * (r + 2)),
        T=n * (r + 2) * eps / (d * sp.sqrt(r * K)),
        lam=(4 * L / (ell * d) * (sp.sqrt(r * K) / (n * eps)) ** _HALF,),
        C=L * d,
        bound=16 * (gap * ell + 2 * L**2) * d * sp.sqrt(r * K) / (n * eps),
        order=n**2 * sp.sqrt(r) / d,
    ),
    Statement(
        "thm3",
        alpha=1 / (4 * ell * (r + 2)),
        T=n * (r + 2) * eps / (4 * sp.sqrt(r * K)),
        lam=(
            4 * (2 - sp.sqrt(2)) * _L_TILDE_3 / (ell * d),
            L / sp.sqrt(d) * (sp.sqrt(r * K) / (n * eps)) ** _HALF / (ell * d),
        ),
        C=4 * _L_TILDE_3,
        bound=(64 * (gap * ell + _L_TILDE_3**2) + 2 * L**2) * sp.sqrt(r * K) / (n * eps),
        order=n**2 * sp.sqrt(r),
        log_argument=_ARG_3,
        tail_argument=_ARG_3,
    ),
)

COROLLARIES = (
    Statement(
        "cor1",
        alpha=1 / (4 * ell * d),
        T=8 * kappa * d * _LOG_1,
        lam=(2 * L / ell * sp.sqrt(K) / (n * eps),),
        C=L * d,
        bound=(ell * gap + 64 * L**2 * kappa * _LOG_1 + 2 * L**2) * d**3 * K / (mu * n**2 * eps**2),
        order=n * d * kappa * _LOG_1,
        log_argument=n**2 * eps**2 / (kappa * d**3 * K),
    ),
    Statement(
        "cor2",
        alpha=1 / (4 * ell * (r + 2)),
        T=8 * kappa * (r + 2) * _LOG_2,
        lam=(2 * L / (ell * sp.sqrt(d)) * sp.sqrt(r * K) / (n * eps),),
        C=L * d,
        bound=(ell * gap + 64 * L**2 * kappa * _LOG_2 + 2 * L**2) * r * d**2 * K / (mu * n**2 * eps**2),
        order=n * r * kappa * _LOG_2,
        log_argument=n**2 * eps**2 / (kappa * r * d**2 * K),
    ),
    Statement(
        "cor3",
        alpha=1 / (4 * ell * (r + 2)),
        T=8 * kappa * (r + 2) * _LOG_3,
        lam=(
            (2 - sp.sqrt(2)) * _L_TILDE_C3 / (2 * ell * d),
            4 * L / sp.sqrt(d) * sp.sqrt(r * K) / (n * eps) / (2 * ell * d),
        ),
        C=_L_TILDE_C3 / 2,
        bound=(ell * gap + _LOG_3 * (L**2 + 16 * _L_TILDE_C3**2 * kappa) + 2 * L**2) * (r * K / (mu * n**2 * eps**2)),
        order=n * r * kappa * _LOG_3,
        log_argument=n**2 * eps**2 / (kappa * r * K),
        tail_argument=_ARG_C3,
    ),
)

STATEMENTS = {s.id: s for s in THEOREMS + COROLLARIES}

noise = 4 * C * sp.sqrt(2 * T * K) / (n * eps)
"""The standard deviation sigma of the noise in the paper's Algorithms 1 and 2."""

lemma_deviation = 2 * sp.sqrt(2 * K) / eps
"""The noise's standard deviation over sqrt(T) Delta in the paper's composition lemma (lm:composition), where Delta
is the sensitivity of each of T releases."""


def tail_probability() -> sp.Expr:
    """Return the union bound in the proof of Theorem 3 on the probability that some sample is clipped in the run. It is
    a function of n, T, L and C_0, the clip without the term for the finite difference's error."""
    return 2 * sp.sqrt(2 * sp.pi) * n * T * sp.exp(-(C0**2) / (8 * L**2))


def unsubstituted(id: str) -> sp.Expr:
    """Return the bound of the theorem or corollary `id` as a function of (alpha, T, lambda, C, C_0): the last line of
    its proof before the parameters are put in.

    For theorems the step size already is the one that makes 1 - 2 k ell alpha = 1/2 (k = d or r + 2). For
    corollaries the geometric series has been summed.
    """
    k = {"thm1": d, "cor1": d}.get(id, r)
    sigma2 = noise**2
    clipping = tail_probability() if id in ("thm3", "cor3") else sp.Integer(0)
    if id.startswith("thm"):
        progress = 4 * gap / (alpha * T)
        return (
            progress + 2 * ell * alpha * k * sigma2 + ell**2 * d**3 * lam**2 + (4 * L**2 * d + 8 * B / alpha) * clipping
        )
    floor = ell**2 * lam**2 * d**3 / (2 * mu) + ell * alpha * k * sigma2 / mu
    event = (2 * L**2 * d + 4 * B / alpha + 2 * B * mu) / mu * clipping
    return sp.exp(-mu * alpha * T / 2) * gap + floor + event


def same(a: sp.Expr, b: sp.Expr) -> bool:
    """Return whether sympy finds two expressions in positive symbols equal. False may also mean that it does not find
    out."""
    ratio = sp.powsimp(sp.expand_power_base(sp.together(a - b), force=True), force=True)
    return bool(ratio == 0 or sp.simplify(ratio) == 0)


def dpgd_bound() -> sp.Expr:
    """Return a bound on DP-GD's E|grad F|^2 from the same kind of proof as Theorem 3's: 2 gap/(alpha T) + ell alpha
    r sigma^2 at the best alpha T.

    It follows from E F(x+) <= F - alpha(1 - ell alpha/2)|grad F|^2 + (alpha^2/2) tr(H) sigma^2 with C = L, so 1 - ell
    alpha/2 >= 1/2 and sigma^2 = 32 L^2 T K/(n eps)^2; the result is 2 sqrt(64 gap ell L^2 r K)/(n eps).
    """
    product = sp.Symbol("p", positive=True)
    total = 2 * gap / product + ell * r * 32 * L**2 * product * K / (n * eps) ** 2
    best = sp.sqrt(sp.solve(sp.diff(total, product), product**2)[0])
    return sp.simplify(total.subs(product, best))


SYNTHETIC: Mapping[str, float] = {
    "n": 10_000,
    "d": 2000,
    "r": sum(1 / i for i in range(1, 2001)),
    "L": 1,
    "ell": 1,
    "gap": 1,
    "B": 1,
    "eps": 2,
    "delta": 1e-6,
    "mu": 0.5,
}
"""The paper's synthetic setting, mode (c) at d = 2,000, with unit constants where the paper gives none."""


def value(expression: sp.Expr, point: Mapping[str, float]) -> float:
    """Return the value of an expression at `point`, which has numbers for n, d, r, L, ell, gap, B, eps, delta and mu,
    as far as they occur (eps and delta always), and for alpha, T, lambda, C and C_0 if they occur. K becomes log(e +
    eps/delta)."""
    numbers = {**point, "K": math.log(math.e + point["eps"] / point["delta"])}
    names, function = _compiled(expression)
    return float(function(*(np.float64(numbers[name]) for name in names)))


@cache
def _compiled(expression: sp.Expr) -> tuple[list[str], Callable[..., float]]:
    symbols = sorted(expression.free_symbols, key=str)
    return [str(s) for s in symbols], sp.lambdify(symbols, expression, "numpy")


def paper_points(count: int = 6, seed: int = 5) -> list[dict[str, float]]:
    """Return `count` random settings, without round numbers, in which every theorem and corollary applies (all their
    logarithms are positive). Each has numbers for the constants n, d, r, L, ell, gap, B, eps, delta and mu."""
    rng = np.random.default_rng(seed)
    points = []
    for _ in range(count):
        size, bound = int(rng.integers(30, 400)), float(rng.uniform(0.5, 9))
        points.append(
            {
                "n": int(rng.integers(3 * 10**7, 10**9)),
                "d": size,
                "r": float(rng.uniform(1.1, 0.9 * size)),
                "L": float(rng.uniform(0.3, 3)),
                "ell": float(rng.uniform(0.5, 4)),
                "gap": bound * float(rng.uniform(0.1, 1.9)),
                "B": bound,
                "eps": float(rng.uniform(0.3, 8)),
                "delta": float(10 ** rng.uniform(-8, -3)),
                "mu": float(rng.uniform(0.05, 0.4)),
            }
        )
    return points
