"""The inequalities of the paper's proofs before alpha, T, lambda and C are substituted; each is written once, here.

alpha is the step size, T the number of steps, lambda the smoothing, C the clip and sigma the noise. B is the bound on
|F_S| along the run, mu that of the PL inequality, and gap = F_S(x_0) - F_S^*. Summing the one-step inequality of a
proof over t = 0, ..., T - 1 gives, for every admissible (alpha, T, lambda, C),

    E||grad F_S(x_tau)||^2 <= 2/(1 - 2 k ell alpha)
        (gap/(alpha T) + ell^2 lambda^2 d^3/4 + ell alpha s sigma^2/2 + (L^2 d + 2 B/alpha) p)

and under the PL inequality, with the contraction rho = mu alpha (1 - 2 k ell alpha),

    E[F_S(x_T) - F_S^*] <= e^(-rho T) gap
        + (alpha/rho) (ell^2 lambda^2 d^3/4 + ell alpha s sigma^2/2 + (L^2 d + 2 B/alpha) p) + 2 B p

where (k, s, p) is (d, d, 0) for Theorem 1, Eq. (eq:onestep1); (r + 2, r, 0) for Theorem 2, Eq. (eq:onestep2); and (r +
2, r, P(clipping ever happens)) for Theorem 3, Eq. (eq:onestep3b). The proofs bound the smoothing terms ell^2 lambda^2
d^2 (d + 2 s ell alpha)/8 by ell^2 lambda^2 d^3/4, which 2 k ell alpha < 1 allows, and so do these functions. sigma is
the noise for T releases at mu-GDP under replace-one. With the parameters of a theorem each inequality equals the
theorem's displayed right-hand side exactly.

Parameters may be arrays, which broadcast. Inadmissible points have an infinite bound, so that a search can skip them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzero_theory.check import Array
from dpzero_theory.privacy.gaussian import noise_std
from dpzero_theory.theory.problem import Guarantee, Problem


@dataclass(frozen=True)
class Inequality:
    """The inequality of one proof for a problem at mu-GDP, as a function of the parameters.

    Attributes:
        problem: the constants.
        gdp: mu of the whole run.
        growth: k in the factor 1 - 2 k ell alpha: d for Theorem 1, r + 2 for Theorems 2 and 3.
        trace: s in the noise's term ell alpha s sigma^2/2, d or r. It comes from E[z' H z] = s ell sigma^2 or less,
            where z is the noise and H bounds the Hessian.
        clips: whether clipping may happen (Algorithm 2), or C = L d rules it out (Algorithm 1).
    """

    problem: Problem
    gdp: float
    growth: float
    trace: float
    clips: bool

    @cached_property
    def _noise(self) -> float:
        """The noise sigma on the average of n samples with which one release at clip 1 has the privacy `gdp`."""
        return float(noise_std(self.gdp, 1, 1.0, self.problem.n, "replace-one"))

    def of(self, guarantee: Guarantee) -> Callable[..., Array]:
        """The method that computes the bound on the quantity that `guarantee` names: `gradient`, or `last_iterate` for
        the suboptimality."""
        return self.gradient if guarantee is Guarantee.GRADIENT else self.last_iterate

    def gradient(
        self,
        step_size: ArrayLike,
        T: ArrayLike,
        smoothing: ArrayLike,
        clip: ArrayLike,
        threshold: ArrayLike | None = None,
    ) -> Array:
        """The bound on E||grad F_S(x_tau)||^2, with tau uniform on 0, ..., T - 1.

        step_size is alpha, T the number of steps, smoothing lambda, clip C and threshold the C_0 of the proof of
        Theorem 3. Their ranges are those that `last_iterate` states. The bound is infinite where one is inadmissible.
        """
        alpha, t = np.asarray(step_size, dtype=float), np.asarray(T, dtype=float)
        with np.errstate(all="ignore"):
            progress, error, _, admissible = self._terms(alpha, t, smoothing, clip, threshold)
            value = 2 / progress * (self.problem.gap / (alpha * t) + error)
        return np.where(admissible & ~np.isnan(value), value, math.inf)

    def last_iterate(
        self,
        step_size: ArrayLike,
        T: ArrayLike,
        smoothing: ArrayLike,
        clip: ArrayLike,
        threshold: ArrayLike | None = None,
    ) -> Array:
        """The bound on E[F_S(x_T) - F_S^*] under the PL inequality.

        Args:
            step_size: alpha, admissible where 2 k ell alpha < 1.
            T: the number of steps, any positive real.
            smoothing: lambda >= 0.
            clip: C; for Algorithm 1, whose proof rules clipping out, admissible where C >= L d.
            threshold: C_0 of the proof of Theorem 3, admissible where 0 < C_0 <= C - ell lambda d/2, and by default the
                largest such value. Clipping at step t needs |u_t' grad f_i| >= C_0 for some sample i.

        Returns:
            The bound, infinite where a parameter is inadmissible.

        Raises:
            PreconditionError: the problem has no `pl`.
        """
        p = self.problem
        pl = p.smoothness / p.condition_number
        alpha, t = np.asarray(step_size, dtype=float), np.asarray(T, dtype=float)
        with np.errstate(all="ignore"):
            progress, error, clipping, admissible = self._terms(alpha, t, smoothing, clip, threshold)
            contraction = np.exp(-pl * progress * alpha * t)
            value = contraction * p.gap + error / (pl * progress) + 2 * p.loss_bound * clipping
        return np.where(admissible & ~np.isnan(value), value, math.inf)

    def _terms(
        self, alpha: Array, t: Array, smoothing: ArrayLike, clip: ArrayLike, threshold: ArrayLike | None
    ) -> tuple[Array, Array, Array, NDArray[np.bool_]]:
        """The terms of the module's two formulas at the step size alpha, t steps, smoothing, clip and threshold.

        Returns four values, which are 1 - 2 k ell alpha; the sum ell^2 lambda^2 d^3/4 + ell alpha s sigma^2/2 + (L^2 d
        + 2 B/alpha) p; p, an upper bound on the probability that clipping ever happens; and, as booleans, which points
        are admissible.
        """
        p = self.problem
        smoothing, clip = np.asarray(smoothing, dtype=float), np.asarray(clip, dtype=float)
        progress = 1 - 2 * self.growth * p.smoothness * alpha
        variance = t * (clip * self._noise) ** 2
        error = (p.smoothness * smoothing) ** 2 * float(p.d) ** 3 / 4
        error = error + p.smoothness * alpha * self.trace * variance / 2
        largest = clip - p.smoothness * smoothing * p.d / 2
        if not self.clips:
            return progress, error, np.zeros(()), (progress > 0) & (alpha > 0) & (clip >= p.lipschitz * p.d)
        c0 = largest if threshold is None else np.asarray(threshold, dtype=float)
        clipping = clipping_probability(p, t, c0)
        error = error + (p.lipschitz**2 * p.d + 2 * p.loss_bound / alpha) * clipping
        admissible = (progress > 0) & (alpha > 0) & (c0 > 0) & (c0 <= largest * (1 + 1e-12))
        return progress, error, clipping, admissible


def clipping_probability(problem: Problem, T: ArrayLike, threshold: ArrayLike) -> Array:
    """The paper's union bound on the probability that clipping ever happens, 2 sqrt(2 pi) n T exp(-C_0^2/(8 L^2)).

    It is in the proof of Theorem 3 (appendix app:d-free), by the paper's Lemma lm:sphere (ii) for each of n samples and
    T steps. L is the problem's `lipschitz` and C_0 > 0 is `threshold`: clipping at a step needs |u' grad f_i| >= C_0
    for some sample i and the step's direction u. The bound is not cut at 1.
    """
    ratio = np.asarray(threshold, dtype=float) / problem.lipschitz
    return 2 * math.sqrt(2 * math.pi) * problem.n * np.asarray(T, dtype=float) * np.exp(-ratio * ratio / 8)


def dpgd_0th(problem: Problem, gdp: float) -> Inequality:
    """The inequality for Algorithm 1 under Assumption asp:smooth, for Theorem 1 (thm:d-dependent) and Corollary 1.

    problem has the constants, and gdp is the mu > 0 of Gaussian DP of the whole run.
    """
    return Inequality(problem, gdp, growth=problem.d, trace=problem.d, clips=False)


def dpgd_0th_rank(problem: Problem, gdp: float) -> Inequality:
    """The inequality for Algorithm 1 under Assumption asp:rank, for Theorem 2 (thm:d-dependent-rank) and Corollary 2.

    problem has the constants, and gdp is the mu > 0 of Gaussian DP of the whole run.
    """
    return Inequality(problem, gdp, growth=problem.r + 2, trace=problem.r, clips=False)


def dpzero(problem: Problem, gdp: float) -> Inequality:
    """The inequality for Algorithm 2 under Assumption asp:rank, for Theorem 3 (thm:d-free) and Corollary 3.

    problem has the constants, and gdp is the mu > 0 of Gaussian DP of the whole run.
    """
    return Inequality(problem, gdp, growth=problem.r + 2, trace=problem.r, clips=True)
