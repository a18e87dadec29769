"""Theorems 1 to 3 and Corollaries 1 to 3 of the DPZero paper: parameters and a bound for a problem and a privacy level.

All six are for runs that use all samples in every step, and for neighbouring data sets that differ in the value of one
sample. A theorem bounds E||grad F_S(x_tau)||^2, where F_S is the mean loss, T the number of steps and x_tau the weights
after a uniformly random number of steps in 0, ..., T - 1. A corollary (appendix app:pl) bounds E[F_S(x_T) - F_S^*]
under the PL inequality. The privacy level enters only as v = 1/(2 sqrt(2) mu), where mu is the parameter of Gaussian
DP; with the paper's mu, v = sqrt(log(e + epsilon/delta))/epsilon.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.theory.noise import noise_std
from dpzero_theory.theory.problem import Guarantee, Prescription, Problem


@dataclass(frozen=True)
class Inequality:
    """The bound in the proof of one theorem or corollary of the DPZero paper, as a function of the parameters of a run.

    Symbols: F_S is the mean loss and F_S^* its infimum; L, ell, d, r, gap, B and mu are the fields `lipschitz`,
    `smoothness`, `d`, `r`, `gap`, `loss_bound` and `pl` of the problem; alpha is the step size, T the number of steps,
    lambda the smoothing, C the clip, sigma the standard deviation of the noise on each number of a step's average, and
    x_tau the weights after a uniformly random number of steps in 0, ..., T - 1. A theorem has, where 2 k ell alpha < 1,

        E||grad F_S(x_tau)||^2 <= 2/(1 - 2 k ell alpha)
            (gap/(alpha T) + ell^2 lambda^2 d^3/4 + ell alpha s sigma^2/2 + (L^2 d + 2 B/alpha) p)

    and a corollary has, with rho = mu alpha (1 - 2 k ell alpha),

        E[F_S(x_T) - F_S^*] <= e^(-rho T) gap
            + (alpha/rho) (ell^2 lambda^2 d^3/4 + ell alpha s sigma^2/2 + (L^2 d + 2 B/alpha) p) + 2 B p

    where (k, s, p) is (d, d, 0) for number 1, Eq. (eq:onestep1); (r + 2, r, 0) for number 2, Eq. (eq:onestep2); and for
    number 3, Eq. (eq:onestep3b), (r + 2, r, 2 sqrt(2 pi) n T exp(-C_0^2/(8 L^2))) with C_0 = C - ell lambda d/2, where
    p bounds the probability that any sample is clipped in any step.

    Attributes:
        problem: the constants.
        gdp: the mu of Gaussian DP that the whole run has.
        growth: k in the inequality, d or r + 2.
        trace: s in the inequality, d or r.
        clips: True for number 3 (Algorithm 2 of the paper), where clipping may shorten a sample's contribution. False
            for numbers 1 and 2 (Algorithm 1), where the clip is too large to do so.
        guarantee: the quantity that is bounded.
        noise: the sigma for one step at clip 1. For T steps at clip C, sigma is C sqrt(T) times as large.
    """

    problem: Problem
    gdp: float
    growth: float
    trace: float
    clips: bool
    guarantee: Guarantee
    noise: float

    @classmethod
    def of(cls, id: str, problem: Problem, gdp: float) -> Self:
        """Make the inequality of a theorem or corollary. Raises ValueError unless gdp > 0.

        Args:
            id: "theorem-1", "theorem-2", "theorem-3", "corollary-1", "corollary-2" or "corollary-3" (not checked).
            problem: the constants.
            gdp: the mu of Gaussian DP that the whole run has.
        """
        growth, trace = (problem.d, problem.d) if id.endswith("-1") else (problem.r + 2, problem.r)
        guarantee = Guarantee.SUBOPTIMALITY if id.startswith("corollary") else Guarantee.GRADIENT
        noise = float(noise_std(gdp, 1, 1.0, problem.n, "replace-one"))
        return cls(problem, gdp, growth, trace, id.endswith("-3"), guarantee, noise)

    def bound(
        self,
        step_size: ArrayLike,
        T: ArrayLike,
        smoothing: ArrayLike,
        clip: ArrayLike,
        threshold: ArrayLike | None = None,
    ) -> Array:
        """Return the bound on the quantity `guarantee` at given parameters of a run.

        Raises PreconditionError if `guarantee` is SUBOPTIMALITY and the problem has no `pl`.

        Args:
            step_size: the step size alpha; it is admissible if 2 growth smoothness alpha < 1, for the attribute
                `growth` and the problem's `smoothness`.
            T: the number of steps, any real number > 0.
            smoothing: lambda >= 0 in finite differences with losses at x + lambda u.
            clip: the clip C; if `clips` is False, it is admissible if C >= lipschitz d, with the problem's `lipschitz`
                and `d`.
            threshold: C_0 in the inequality, used only if `clips` is True; it is admissible if 0 < C_0 <= C -
                smoothness lambda d/2. None stands for the largest admissible value.

        Returns:
            An array of the bounds, broadcast over the arguments; infinite where a parameter is not admissible.
        """
        p, gradient = self.problem, self.guarantee is Guarantee.GRADIENT
        pl = math.nan if gradient else p.smoothness / p.condition_number
        alpha, t, lam, c = (np.asarray(x, dtype=float) for x in (step_size, T, smoothing, clip))
        with np.errstate(all="ignore"):
            progress = 1 - 2 * self.growth * p.smoothness * alpha
            variance = t * (c * self.noise) ** 2
            error = (p.smoothness * lam) ** 2 * float(p.d) ** 3 / 4
            error = error + p.smoothness * alpha * self.trace * variance / 2
            clipping, admissible = np.zeros(()), (progress > 0) & (alpha > 0)
            if self.clips:
                largest = c - p.smoothness * lam * p.d / 2
                c0 = largest if threshold is None else np.asarray(threshold, dtype=float)
                ratio = c0 / p.lipschitz
                # Lemma lm:sphere (ii), summed over n samples and T steps, bounds the probability that any step clips.
                clipping = 2 * math.sqrt(2 * math.pi) * p.n * t * np.exp(-ratio * ratio / 8)
                error = error + (p.lipschitz**2 * p.d + 2 * p.loss_bound / alpha) * clipping
                admissible = admissible & (c0 > 0) & (c0 <= largest * (1 + 1e-12))
            else:
                admissible = admissible & (c >= p.lipschitz * p.d)
            if gradient:
                value = 2 / progress * (p.gap / (alpha * t) + error)
            else:
                contraction = np.exp(-pl * progress * alpha * t)
                value = contraction * p.gap + error / (pl * progress) + 2 * p.loss_bound * clipping
        return np.where(admissible & ~np.isnan(value), value, math.inf)


_ABOVE_1 = "the argument of the logarithm in L-tilde to be above 1"


class _Displayed(NamedTuple):
    step_size: float  # alpha
    T: float  # the number of steps, not rounded
    smoothing: float  # lambda
    clip: float  # C
    bound: float


def _log_ratio(problem: Problem, spread: float, id: str, condition: str) -> float:
    # Returns log X of a corollary, X = n^2/(kappa `spread`) and kappa = ell/mu_PL: its number of steps is proportional
    # to it. `spread` is d^3 v^2, r d^2 v^2 or r v^2. Error messages name the corollary, `id`, and `condition`, kappa
    # spread/v^2 as text, for v = 1/(2 sqrt(2) mu) at mu-GDP.
    x = problem.n**2 / (problem.condition_number * spread)
    rule = f"n^2 epsilon^2 > {condition} log(e + epsilon/delta), a ratio above 1"
    check.precondition(1 < x < math.inf, f"{id} requires {rule}; it is {x:g}")
    return math.log(x)


# Each function down to _corollary_3 returns what the paper states for a run with mu-GDP, where v = 1/(2 sqrt(2) mu).
def _theorem_1(p: Problem, v: float) -> _Displayed:
    # The paper's thm:d-dependent, for its Algorithm 1 under Assumption asp:smooth
    rate = math.sqrt(p.d) * v / p.n
    return _Displayed(
        step_size=1 / (4 * p.smoothness * p.d),
        T=p.n / (math.sqrt(p.d) * v),
        smoothing=4 * p.lipschitz / (p.smoothness * p.d) * math.sqrt(rate),
        clip=p.lipschitz * p.d,
        bound=16 * (p.gap * p.smoothness + 2 * p.lipschitz**2) * p.d * rate,
    )


def _theorem_2(p: Problem, v: float) -> _Displayed:
    # The paper's thm:d-dependent-rank, for its Algorithm 1 under Assumption asp:rank
    rate = math.sqrt(p.r) * v / p.n
    return _Displayed(
        step_size=1 / (4 * p.smoothness * (p.r + 2)),
        T=p.n * (p.r + 2) / (p.d * math.sqrt(p.r) * v),
        smoothing=4 * p.lipschitz / (p.smoothness * p.d) * math.sqrt(rate),
        clip=p.lipschitz * p.d,
        bound=16 * (p.gap * p.smoothness + 2 * p.lipschitz**2) * p.d * rate,
    )


def _theorem_3(p: Problem, v: float) -> _Displayed:
    # The paper's thm:d-free, for its Algorithm 2 under Assumption asp:rank and |F_S| <= B. Its L-tilde is L times the
    # root of a logarithm, which must be positive and finite.
    rate = math.sqrt(p.r) * v / p.n
    dimension = p.d + 8 * p.smoothness * p.loss_bound * (p.r + 2) / p.lipschitz**2
    argument = 2 * math.sqrt(2 * math.pi) * p.n * (p.r + 2) * dimension / rate**2
    check.precondition(1 < argument < math.inf, f"theorem-3 requires {_ABOVE_1}; it is {argument:g}")
    lipschitz_tilde = p.lipschitz * math.sqrt(math.log(argument))
    return _Displayed(
        step_size=1 / (4 * p.smoothness * (p.r + 2)),
        T=p.n * (p.r + 2) / (4 * math.sqrt(p.r) * v),
        smoothing=min(4 * (2 - math.sqrt(2)) * lipschitz_tilde, p.lipschitz / math.sqrt(p.d) * math.sqrt(rate))
        / (p.smoothness * p.d),
        clip=4 * lipschitz_tilde,
        bound=(64 * (p.gap * p.smoothness + lipschitz_tilde**2) + 2 * p.lipschitz**2) * rate,
    )


def _corollary_1(p: Problem, v: float) -> _Displayed:
    # The paper's cor:pl-d, for its Algorithm 1 under Assumptions asp:smooth and asp:pl
    spread = float(p.d) ** 3 * v**2
    step_size, smoothing = 1 / (4 * p.smoothness * p.d), 2 * p.lipschitz / p.smoothness * v / p.n
    return _corollary_1_or_2(p, step_size, p.d, spread, smoothing, _log_ratio(p, spread, "corollary-1", "kappa d^3"))


def _corollary_2(p: Problem, v: float) -> _Displayed:
    # The paper's cor:pl-d-rank, for its Algorithm 1 under Assumptions asp:rank and asp:pl
    spread, step_size = p.r * float(p.d) ** 2 * v**2, 1 / (4 * p.smoothness * (p.r + 2))
    smoothing = 2 * p.lipschitz / (p.smoothness * math.sqrt(p.d)) * math.sqrt(p.r) * v / p.n
    return _corollary_1_or_2(
        p, step_size, p.r + 2, spread, smoothing, _log_ratio(p, spread, "corollary-2", "kappa r d^2")
    )


def _corollary_1_or_2(
    p: Problem, step_size: float, growth: float, spread: float, smoothing: float, log: float
) -> _Displayed:
    # For Corollaries 1 and 2: growth is d or r + 2, spread d^3 v^2 or r d^2 v^2 with v = 1/(2 sqrt(2) mu) at mu-GDP,
    # and log what `_log_ratio` returns.
    kappa = p.condition_number
    return _Displayed(
        step_size=step_size,
        T=8 * kappa * growth * log,
        smoothing=smoothing,
        clip=p.lipschitz * p.d,
        bound=(p.smoothness * p.gap + 64 * p.lipschitz**2 * kappa * log + 2 * p.lipschitz**2)
        * spread
        * kappa
        / (p.smoothness * p.n**2),
    )


def _corollary_3(p: Problem, v: float) -> _Displayed:
    # The paper's cor:pl-free, for its Algorithm 2 under Assumptions asp:rank and asp:pl. |F_S(x_t)| <= B and |F_S^*| <=
    # B exclude gap > 2 B. Its L-tilde is 8 L times the root of a logarithm, which must be positive and finite.
    kappa = p.condition_number
    check.precondition(
        p.gap <= 2 * p.loss_bound,
        f"gap must be at most 2 loss_bound for corollary-3; got gap = {p.gap:g}, loss_bound = {p.loss_bound:g}",
    )
    spread = p.r * v**2
    log = _log_ratio(p, spread, "corollary-3", "kappa r")
    dimension = p.d + (8 * p.smoothness * (p.r + 2) + p.smoothness / kappa) * p.loss_bound / p.lipschitz**2
    argument = 32 * math.sqrt(2 * math.pi) * kappa * float(p.n) ** 3 * (p.r + 2) * dimension / spread
    check.precondition(1 < argument < math.inf, f"corollary-3 requires {_ABOVE_1}; it is {argument:g}")
    lipschitz_tilde = 8 * p.lipschitz * math.sqrt(math.log(argument))
    return _Displayed(
        step_size=1 / (4 * p.smoothness * (p.r + 2)),
        T=8 * kappa * (p.r + 2) * log,
        smoothing=min((2 - math.sqrt(2)) * lipschitz_tilde, 4 * p.lipschitz / math.sqrt(p.d) * math.sqrt(p.r) * v / p.n)
        / (2 * p.smoothness * p.d),
        clip=lipschitz_tilde / 2,
        bound=(p.smoothness * p.gap + log * (p.lipschitz**2 + 16 * lipschitz_tilde**2 * kappa) + 2 * p.lipschitz**2)
        * spread
        * kappa
        / (p.smoothness * p.n**2),
    )


_FORMULAS: Mapping[str, Callable[[Problem, float], _Displayed]] = {
    "theorem-1": _theorem_1,
    "theorem-2": _theorem_2,
    "theorem-3": _theorem_3,
    "corollary-1": _corollary_1,
    "corollary-2": _corollary_2,
    "corollary-3": _corollary_3,
}


def displayed(id: str, problem: Problem, gdp: float) -> Prescription:
    """Return the parameters and the bound that a theorem or corollary of the DPZero paper states.

    `Prescription.T` is the paper's number of steps, not rounded. `Prescription.steps` is the integer below or above T
    (at least 1) with the smaller `bound_at_steps`; the noise and `evaluations` are for this number of steps.

    Args:
        id: "theorem-1", "theorem-2", "theorem-3", "corollary-1", "corollary-2" or "corollary-3".
        problem: the constants; a corollary needs `pl`.
        gdp: the mu > 0 of Gaussian DP that the whole run is to have.

    Raises:
        ValueError: gdp is not a finite number above 0.
        PreconditionError: the problem does not meet an assumption, or T is above 1e18.
    """
    v = 1 / (2 * math.sqrt(2) * check.real("gdp", gdp, above=0))
    shown = _FORMULAS[id](problem, v)
    check.precondition(0 < shown.T <= 1e18, f"{id} requires 0 < T <= 1e18; got T = {shown.T:g}")
    inequality = Inequality.of(id, problem, gdp)
    bounds = {
        steps: float(inequality.bound(shown.step_size, steps, shown.smoothing, shown.clip))
        for steps in (max(1, math.floor(shown.T)), max(1, math.ceil(shown.T)))
    }
    steps = min(bounds, key=bounds.__getitem__)
    trivial = problem.lipschitz**2  # By the paper's Remark rmk:bound no squared gradient is larger.
    if inequality.guarantee is Guarantee.SUBOPTIMALITY:
        trivial = trivial * problem.condition_number / (2 * problem.smoothness)
    few = f"T = {shown.T:.3g} is below 1: one step is prescribed"
    worse = f"`bound` is for T = {shown.T:.4g}; the steps to run guarantee {bounds[steps]:.4g}, which is larger"
    return Prescription(
        **shown._asdict(),
        id=id,
        guarantee=inequality.guarantee,
        algorithm="dpzero" if inequality.clips else "dpgd-0th",
        n=problem.n,
        gdp=gdp,
        steps=steps,
        noise_std=float(noise_std(gdp, steps, shown.clip, problem.n, "replace-one")),
        bound_at_steps=bounds[steps],
        trivial_bound=trivial,
        evaluations=problem.n * steps,
        # Tables show four digits, so that a smaller difference is not seen.
        notes=(few,) * (shown.T < 1) + (worse,) * (bounds[steps] > 1.0005 * shown.bound),
    )
