"""Corollaries 1, 2 and 3 of the paper: the PL setting (appendix app:pl), with bounds on E[F_S(x_T) - F_S^*].

All three are for full batches, the replace-one relation and the last iterate. Let n be the number of samples, d the
dimension, r the effective rank, ell the smoothness, mu_PL the constant of the PL inequality, kappa = ell/mu_PL the
condition number, and v = sqrt(log(e + epsilon/delta))/epsilon the noise level that (epsilon, delta)-DP asks for. The
number of steps of each corollary is proportional to log X, where X is n^2/(kappa d^3 v^2), n^2/(kappa r d^2 v^2) and
n^2/(kappa r v^2) for Corollaries 1, 2 and 3. So X must exceed 1, a side condition that the paper does not state.
`results.RESULTS` shows each formula in words.

Each function takes the problem's constants and `gdp`, the mu > 0 of Gaussian DP of the whole run, and returns a
`Prescription`. ValueError is raised for another gdp. PreconditionError is raised if the problem has no pl, for X <= 1,
and for a result outside the range of float64.
"""

import math

from dpzero_theory import check
from dpzero_theory.theory import inequalities
from dpzero_theory.theory.inequalities import Inequality
from dpzero_theory.theory.problem import Guarantee, Prescription, Problem
from dpzero_theory.theory.theorems import guard_float_results, noise_level, positive_log, prescription


def _horizon(problem: Problem, spread: float, id: str, condition: str) -> float:
    """log X, to which a corollary's number of steps is proportional, where X = n^2/(kappa * spread). X <= 1 raises
    PreconditionError.

    problem: the constants, with the condition number kappa = ell/mu_PL. spread: d^3 v^2, r d^2 v^2 or r v^2 for
        Corollary 1, 2 or 3, where v is the noise level. id: the corollary's name. condition: kappa spread/v^2 as a
        formula. Only the error's text uses the last two.
    """
    x = problem.n**2 / (problem.condition_number * spread)
    return positive_log(x, f"{id} requires n^2 epsilon^2 > {condition} log(e + epsilon/delta), a ratio above 1")


def _dpgd_0th(
    inequality: Inequality,
    *,
    id: str,
    condition: str,
    step_size: float,
    growth: float,
    spread: float,
    smoothing: float,
) -> Prescription:
    """The prescription of Corollary 1 or 2 (Algorithm 1), whose formulas differ only in these arguments.

    inequality: that of the corollary's proof, which holds the problem and the privacy. id: the corollary's name.
    condition: the text "kappa d^3" or "kappa r d^2" for the error raised if X <= 1. step_size: alpha. growth: the
    factor of the number of steps, d or r + 2. spread: d^3 v^2 or r d^2 v^2, where v is the noise level.
    smoothing: lambda.
    """
    p = inequality.problem
    kappa = p.condition_number
    log = _horizon(p, spread, id, condition)
    return prescription(
        inequality,
        Guarantee.SUBOPTIMALITY,
        id=id,
        algorithm="dpgd-0th",
        step_size=step_size,
        T=8 * kappa * growth * log,
        smoothing=smoothing,
        clip=p.lipschitz * p.d,
        bound=(p.smoothness * p.gap + 64 * p.lipschitz**2 * kappa * log + 2 * p.lipschitz**2)
        * spread
        * kappa
        / (p.smoothness * p.n**2),
    )


@guard_float_results
def corollary_1(problem: Problem, gdp: float) -> Prescription:
    """The parameters and the bound of Corollary 1 (cor:pl-d): Algorithm 1 under Assumptions asp:smooth and asp:pl.

    The number of steps is 8 kappa d log X with X = n^2/(kappa d^3 v^2), where kappa = ell/mu_PL is the condition number
    and v = sqrt(log(e + epsilon/delta))/epsilon. PreconditionError is raised for X <= 1. Of the problem it uses n, d,
    lipschitz, smoothness, gap and pl; gdp is the mu > 0 of Gaussian DP of the whole run.
    """
    p, v = problem, noise_level(gdp)
    return _dpgd_0th(
        inequalities.dpgd_0th(p, gdp),
        id="corollary-1",
        condition="kappa d^3",
        step_size=1 / (4 * p.smoothness * p.d),
        growth=p.d,
        spread=float(p.d) ** 3 * v**2,
        smoothing=2 * p.lipschitz / p.smoothness * v / p.n,
    )


@guard_float_results
def corollary_2(problem: Problem, gdp: float) -> Prescription:
    """The parameters and the bound of Corollary 2 (cor:pl-d-rank): Algorithm 1 under Assumptions asp:rank and asp:pl.

    The number of steps is 8 kappa (r + 2) log X with X = n^2/(kappa r d^2 v^2), where kappa = ell/mu_PL is the
    condition number and v = sqrt(log(e + epsilon/delta))/epsilon. PreconditionError is raised for X <= 1. Of the
    problem it uses n, d, r, lipschitz, smoothness, gap and pl; gdp is the mu > 0 of Gaussian DP of the whole run.
    """
    p, v = problem, noise_level(gdp)
    return _dpgd_0th(
        inequalities.dpgd_0th_rank(p, gdp),
        id="corollary-2",
        condition="kappa r d^2",
        step_size=1 / (4 * p.smoothness * (p.r + 2)),
        growth=p.r + 2,
        spread=p.r * float(p.d) ** 2 * v**2,
        smoothing=2 * p.lipschitz / (p.smoothness * math.sqrt(p.d)) * math.sqrt(p.r) * v / p.n,
    )


@guard_float_results
def corollary_3(problem: Problem, gdp: float) -> Prescription:
    """The parameters and the bound of Corollary 3 (cor:pl-free): Algorithm 2 under Assumptions asp:rank and asp:pl.

    It assumes that |F_S(x_t)| and |F_S^*| are at most B, which is `loss_bound`. The number of steps is
    8 kappa (r + 2) log X with X = n^2/(kappa r v^2), where kappa = ell/mu_PL is the condition number and v =
    sqrt(log(e + epsilon/delta))/epsilon. The clip is L-tilde/2, where the paper's L-tilde is 8 L times the square root
    of another logarithm. Of the problem it uses everything but sample_rank; gdp is the mu > 0 of Gaussian DP of the
    whole run. PreconditionError is raised for X <= 1, for gap > 2 B, which |F_S(x_0)|, |F_S^*| <= B exclude, and if the
    logarithm in L-tilde is not positive.
    """
    p, v = problem, noise_level(gdp)
    kappa = p.condition_number
    check.precondition(
        p.gap <= 2 * p.loss_bound,
        f"gap must be at most 2 loss_bound for corollary-3; got gap = {p.gap:g}, loss_bound = {p.loss_bound:g}",
    )
    spread = p.r * v**2
    log = _horizon(p, spread, "corollary-3", "kappa r")
    dimension = p.d + (8 * p.smoothness * (p.r + 2) + p.smoothness / kappa) * p.loss_bound / p.lipschitz**2
    argument = 32 * math.sqrt(2 * math.pi) * kappa * float(p.n) ** 3 * (p.r + 2) * dimension / spread
    log_tilde = positive_log(argument, "corollary-3 requires the argument of the logarithm in L-tilde to be above 1")
    lipschitz_tilde = 8 * p.lipschitz * math.sqrt(log_tilde)
    return prescription(
        inequalities.dpzero(p, gdp),
        Guarantee.SUBOPTIMALITY,
        id="corollary-3",
        algorithm="dpzero",
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
