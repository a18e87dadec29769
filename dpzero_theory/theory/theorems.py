"""Theorems 1, 2 and 3 of the paper: from a problem and a privacy level, the prescribed parameters and the bound.

All three are for full batches and the replace-one relation. Every bound is on E||grad F_S(x_tau)||^2, with tau uniform
on 0, ..., T - 1, where T is the number of steps. In the formulas v = sqrt(log(e + epsilon/delta))/epsilon is the noise
level, computed as 1/(2 sqrt(2) mu) by `noise_level`; everything else is as displayed in the paper. `results.RESULTS`
shows each formula in words.

Each function takes the problem's constants and `gdp`, the mu > 0 of Gaussian DP of the whole run, and returns a
`Prescription`. ValueError is raised for another gdp, and PreconditionError for a result outside the range of float64.
"""

import math

from dpzero_theory.theory import inequalities
from dpzero_theory.theory.closed_form import guard_float_results, noise_level, positive_log, prescription
from dpzero_theory.theory.problem import Guarantee, Prescription, Problem


@guard_float_results
def theorem_1(problem: Problem, gdp: float) -> Prescription:
    """The parameters and the bound (Eq. eq:d-dependent) of Theorem 1 (thm:d-dependent): Algorithm 1.

    It holds under Assumption asp:smooth. Of the problem it uses n, d, lipschitz, smoothness and gap; gdp is the mu > 0
    of Gaussian DP of the whole run.

    Raises:
        ValueError: a gdp that is no finite number above 0.
        PreconditionError: T above 1e18, or a result outside the range of float64.
    """
    p, v = problem, noise_level(gdp)
    rate = math.sqrt(p.d) * v / p.n
    return prescription(
        inequalities.dpgd_0th(p, gdp),
        Guarantee.GRADIENT,
        id="theorem-1",
        algorithm="dpgd-0th",
        step_size=1 / (4 * p.smoothness * p.d),
        T=p.n / (math.sqrt(p.d) * v),
        smoothing=4 * p.lipschitz / (p.smoothness * p.d) * math.sqrt(rate),
        clip=p.lipschitz * p.d,
        bound=16 * (p.gap * p.smoothness + 2 * p.lipschitz**2) * p.d * rate,
    )


@guard_float_results
def theorem_2(problem: Problem, gdp: float) -> Prescription:
    """The parameters and the bound (Eq. eq:d-dependent-rank) of Theorem 2 (thm:d-dependent-rank): Algorithm 1.

    It holds under Assumption asp:rank. Of the problem it uses n, d, r, lipschitz, smoothness and gap; gdp is the mu > 0
    of Gaussian DP of the whole run.

    Raises:
        ValueError: a gdp that is no finite number above 0.
        PreconditionError: T above 1e18, or a result outside the range of float64.
    """
    p, v = problem, noise_level(gdp)
    rate = math.sqrt(p.r) * v / p.n
    return prescription(
        inequalities.dpgd_0th_rank(p, gdp),
        Guarantee.GRADIENT,
        id="theorem-2",
        algorithm="dpgd-0th",
        step_size=1 / (4 * p.smoothness * (p.r + 2)),
        T=p.n * (p.r + 2) / (p.d * math.sqrt(p.r) * v),
        smoothing=4 * p.lipschitz / (p.smoothness * p.d) * math.sqrt(rate),
        clip=p.lipschitz * p.d,
        bound=16 * (p.gap * p.smoothness + 2 * p.lipschitz**2) * p.d * rate,
    )


@guard_float_results
def theorem_3(problem: Problem, gdp: float) -> Prescription:
    """The parameters and the bound (Eq. eq:d-free) of Theorem 3 (thm:d-free): Algorithm 2 under Assumption asp:rank.

    It assumes that |F_S(x_t)| is at most B, which is `loss_bound`. The clip is 4 L-tilde, where the paper's L-tilde is
    L times the square root of a logarithm. Of the problem it uses everything but pl and sample_rank; gdp is the mu > 0
    of Gaussian DP of the whole run. PreconditionError is raised if that logarithm is not positive.
    """
    p, v = problem, noise_level(gdp)
    rate = math.sqrt(p.r) * v / p.n
    dimension = p.d + 8 * p.smoothness * p.loss_bound * (p.r + 2) / p.lipschitz**2
    argument = 2 * math.sqrt(2 * math.pi) * p.n * (p.r + 2) * dimension / rate**2
    log = positive_log(argument, "theorem-3 requires the argument of the logarithm in L-tilde to be above 1")
    lipschitz_tilde = p.lipschitz * math.sqrt(log)
    return prescription(
        inequalities.dpzero(p, gdp),
        Guarantee.GRADIENT,
        id="theorem-3",
        algorithm="dpzero",
        step_size=1 / (4 * p.smoothness * (p.r + 2)),
        T=p.n * (p.r + 2) / (4 * math.sqrt(p.r) * v),
        smoothing=min(4 * (2 - math.sqrt(2)) * lipschitz_tilde, p.lipschitz / math.sqrt(p.d) * math.sqrt(rate))
        / (p.smoothness * p.d),
        clip=4 * lipschitz_tilde,
        bound=(64 * (p.gap * p.smoothness + lipschitz_tilde**2) + 2 * p.lipschitz**2) * rate,
    )
