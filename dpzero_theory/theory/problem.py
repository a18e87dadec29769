"""What a theorem takes, a `Problem`, and what it gives back, a `Prescription`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dpzero_theory import check
from dpzero_theory.privacy.gaussian import noise_multiplier_of
from dpzero_theory.privacy.relation import Relation

if TYPE_CHECKING:
    from dpzero_theory.privacy.sampling import Sampling


class Guarantee(StrEnum):
    """The quantity that a bound is on; the value is how it is displayed."""

    GRADIENT = "E||grad F_S(x_tau)||^2"
    """The squared gradient at x_tau, where tau is uniform on 0, ..., T - 1."""
    SUBOPTIMALITY = "E[F_S(x_T) - F_S^*]"
    """How far the loss at the last iterate is above its minimum, under the PL inequality."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The constants of Assumptions asp:smooth, asp:rank and asp:pl of the paper.

    Attributes:
        n: number of samples, n >= 1.
        d: dimension, d >= 1.
        r: effective rank, 1 <= r <= d: tr(H) <= r ell for the matrix H of Assumption asp:rank.
        lipschitz: L > 0, every f(x; xi) is L-Lipschitz. Unit: loss over length.
        smoothness: ell > 0, every f(x; xi) is ell-smooth. Unit: loss over length squared.
        gap: F_S(x_0) - F_S^* > 0. Unit: loss.
        loss_bound: B > 0 with |F_S(x_t)| <= B along the run (Theorem 3, Corollary 3). Unit: loss.
        pl: mu of the PL inequality, 0 < mu <= ell, or None where it is not assumed. Unit: loss over length squared.
        sample_rank: r_s in [1, d]. There are H_i with -H_i <= Hess f(.; xi_i) <= H_i and ||H_i|| <= ell, and the root
            mean square of tr(H_i) over samples is at most r_s ell. Only the sharpened results use it: with a small r_s
            their smoothing lambda need not shrink as d grows. None is r_s = d, which ell-smoothness gives.

    Raises:
        ValueError: a field that is not a number in its range.
        PreconditionError: r > d, pl > smoothness or sample_rank > d.
    """

    n: int
    d: int
    r: float
    lipschitz: float = 1.0
    smoothness: float = 1.0
    gap: float = 1.0
    loss_bound: float = 1.0
    pl: float | None = None
    sample_rank: float | None = None

    def __post_init__(self) -> None:
        clean = {
            "n": check.integer("n", self.n),
            "d": check.integer("d", self.d),
            "r": check.real("r", self.r, at_least=1),
        }
        for name in ("lipschitz", "smoothness", "gap", "loss_bound"):
            clean[name] = check.real(name, getattr(self, name), above=0)
        if self.pl is not None:
            clean["pl"] = check.real("pl", self.pl, above=0)
        if self.sample_rank is not None:
            clean["sample_rank"] = check.real("sample_rank", self.sample_rank, at_least=1)
        for name, value in clean.items():
            object.__setattr__(self, name, value)
        check.precondition(self.r <= self.d, f"r must be at most d (effective rank); got r = {self.r:g}, d = {self.d}")
        check.precondition(
            self.sample_rank is None or self.sample_rank <= self.d,
            f"sample_rank must be at most d; got sample_rank = {self.sample_rank}, d = {self.d}",
        )
        if self.pl is not None:
            check.precondition(
                self.pl <= self.smoothness,
                f"pl must be at most smoothness (mu <= ell); got pl = {self.pl:g}, smoothness = {self.smoothness:g}",
            )

    @property
    def condition_number(self) -> float:
        """kappa = ell/mu, where mu is `pl`. PreconditionError is raised if `pl` is None."""
        check.precondition(self.pl is not None, "pl must be given: the corollaries assume the PL inequality")
        assert self.pl is not None
        return self.smoothness / self.pl


@dataclass(frozen=True, kw_only=True)
class Prescription:
    """Parameters of an algorithm, what they are for, and the bound certified for them.

    Attributes:
        id: which result, for example 'theorem-3'.
        guarantee: what `bound` and `trivial_bound` are on.
        algorithm: 'dpgd-0th' (Algorithm 1) or 'dpzero' (Algorithm 2).
        n: number of samples.
        relation: neighbouring relation of the privacy.
        batches: how batches are drawn, `Poisson(q_s)`, or None for full ones; averages are over the
            expected batch q_s n.
        direction: law of u, one of `sphere.DIRECTIONS`.
        directions_per_step: K >= 1.
        gdp: mu of the whole run, the one number through which privacy enters; for Poisson batches that of full
            batches with the same (epsilon, delta).
        step_size: alpha.
        T: the real number of steps of the result's formula.
        steps: the integer number of steps >= 1 to run.
        smoothing: lambda, the largest admissible value.
        clip: C, of a scalar (dpzero) or a vector norm (dpgd-0th).
        noise_std: sigma of the noise on the average, per coordinate for dpgd-0th, for `steps` releases.
        noise_ratio: the noise of step t is noise_std noise_ratio^(T-1-t), so noise_std is that of the last step; with 1
            all steps have the same noise.
        bound: the right-hand side of the theorem or corollary, on the quantity `guarantee`.
        bound_at_steps: the inequality of the proof, before parameters are substituted, at these parameters and the
            integer `steps`.
        trivial_bound: what holds at every point: L^2, or L^2/(2 mu) for the suboptimality under PL.
        evaluations: the expected number of finite differences of single samples (two losses each) in the whole run.
        notes: remarks for the reader, one sentence each.
    """

    id: str
    guarantee: Guarantee
    algorithm: str
    n: int
    relation: Relation = Relation.REPLACE_ONE
    batches: "Sampling | None" = None
    direction: str = "sphere"
    directions_per_step: int = 1
    gdp: float
    step_size: float
    T: float
    steps: int
    smoothing: float
    clip: float
    noise_std: float
    bound: float
    bound_at_steps: float
    trivial_bound: float
    evaluations: int
    noise_ratio: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def sampling(self) -> str:
        """How batches are drawn: 'full' or 'poisson'."""
        return "full" if self.batches is None else self.batches.word

    @property
    def sample_rate(self) -> float:
        """q_s in (0, 1], 1 for full batches."""
        return 1.0 if self.batches is None else self.batches.sample_rate

    @property
    def expected_batch(self) -> float:
        """q_s n, the expected batch size, which is the denominator of every average."""
        return self.sample_rate * self.n

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of the noise on the sum of the clipped contributions, divided by the clip."""
        return noise_multiplier_of(self.noise_std, self.clip, self.expected_batch)

    @property
    def vacuous(self) -> bool:
        """Whether the bound is no smaller than `trivial_bound`, so that it says nothing."""
        return self.bound >= self.trivial_bound
