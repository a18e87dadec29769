"""`Problem`, the constants of a loss that the theorems take, and `Prescription`, the parameters that they return."""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NotRequired, Self, TypedDict

from dpzero_theory import check
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.relation import Relation

if TYPE_CHECKING:
    from dpzero_theory.privacy.sampling import Sampling


class Guarantee(StrEnum):
    """The quantity that a theorem bounds. Each value is the formula that tables show.

    In the formulas F_S is the mean loss over the samples, F_S^* its infimum, x_t the weights after t of T steps, tau
    uniformly random in 0, ..., T - 1, and E the expectation over the random numbers of a run.
    """

    GRADIENT = "E||grad F_S(x_tau)||^2"
    """The expected squared norm of the mean loss's gradient at the weights before a random step of the run."""
    SUBOPTIMALITY = "E[F_S(x_T) - F_S^*]"
    """How far the mean loss at the weights after the last step is above its infimum, in expectation."""


SMALLEST, LARGEST = 1e-150, 1e150
"""The smallest and the largest value that the theorems in `theory.sharp` accept for each of `Problem.gradient_unit`,
`Problem.smoothness` and `Problem.relative_gap`. Outside this range float64 overflows or underflows."""
_MOST_POWER = 64.0  # Moments of gradient norms with a larger power m are refused.
_NOT_GIVEN = float("nan")  # `is` tells this default of `Problem.lipschitz` from every other number.


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The constants of a loss and a data set from which the theorems compute parameters and bounds.

    In this text f_i(x) is the loss of sample i at the weights x, F(x) the mean of all f_i(x), and x_0 the initial
    weights. A <= B between symmetric matrices means that B - A is positive semidefinite, and ||A|| is the spectral
    norm. H is a (d, d) matrix with -H <= Hess F(x) <= H at every x and ||H|| <= smoothness. The constants belong to
    Assumptions asp:smooth, asp:rank and asp:pl of the DPZero paper. "Sharpened results" are the theorems in
    `theory.sharp`, which are proved in this package and not in the paper.

    Attributes:
        n: the number of samples, n >= 1.
        d: the number of trained weights, d >= 1.
        r: the effective rank, 1 <= r <= d, with trace(H) <= r smoothness.
        lipschitz: L > 0, a bound on ||grad f_i(x)|| for every i and x, in loss per length. It is 1 if it is not given,
            and infinite if `gradient_moment` or `mean_excess` is given in its place.
        smoothness: ell > 0, a Lipschitz constant of every grad f_i, in loss per length squared; by default 1.
        gap: F(x_0) - inf F > 0, in units of the loss; by default 1.
        loss_bound: B > 0 with |F(x)| <= B at all weights x of the run, in units of the loss; by default 1. Only
            "theorem-3" and "corollary-3" use it.
        pl: mu of the Polyak-Lojasiewicz inequality ||grad F||^2 >= 2 mu (F - inf F), 0 < mu <= smoothness, in loss per
            length squared; None if the inequality is not assumed.
        sample_rank: r_s in [1, d]. There are matrices H_i with -H_i <= Hess f_i(x) <= H_i at every x and ||H_i|| <=
            smoothness, and the root mean square of trace(H_i) over samples is at most r_s smoothness. Only the
            sharpened results use it: a small r_s allows a larger smoothing. None stands for d, which is always valid.
        layer_rank: a number >= 2, used only by directions "low-rank:RANK". It assumes that for each weight matrix the
            block of H is a Kronecker product of two matrices A and B. It is the largest r_A + r_B among the weight
            matrices, with r_A = trace(A)/||A|| and r_B = trace(B)/||B||. None if this is not assumed.
        gradient_moment: a pair (m, value) in place of `lipschitz`, for the sharpened results only: at all weights x of
            the run, the mean over samples of ||grad f_i(x)||^m is at most `value` > 0, in (loss per length)^m; 2 <= m
            <= 64.
        mean_excess: a pair (t, value) in place of `lipschitz`, for the sharpened results only: at all weights x of the
            run, the mean over samples of max(||grad f_i(x)|| - t, 0) is at most `value` >= 0, where t > 0; both in loss
            per length.

        gradient_unit: set by the class, the unit in which the sharpened results measure gradients, in loss per length:
            `lipschitz`, value^(1/m) for a `gradient_moment`, or t for a `mean_excess`.
        steepest: set by the class, an upper bound on ||grad F(x)|| at all weights x of the run, in loss per length:
            `lipschitz`, value^(1/m) for a `gradient_moment`, or t + value for a `mean_excess`.

    Raises:
        ValueError: a field is not a number in its range, or more than one of `lipschitz`, `gradient_moment` and
            `mean_excess` is given.
        PreconditionError: r > d, pl > smoothness or sample_rank > d.
    """

    n: int
    d: int
    r: float
    lipschitz: float = _NOT_GIVEN
    smoothness: float = 1.0
    gap: float = 1.0
    loss_bound: float = 1.0
    pl: float | None = None
    sample_rank: float | None = None
    layer_rank: float | None = None
    gradient_moment: tuple[float, float] | None = None
    mean_excess: tuple[float, float] | None = None
    gradient_unit: float = field(init=False, repr=False, compare=False)
    steepest: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        clean: dict[str, object] = {"n": check.integer("n", self.n), "d": check.integer("d", self.d)}
        clean["lipschitz"] = unit = math.inf
        more = 0.0
        given = [name for name in ("gradient_moment", "mean_excess") if getattr(self, name) is not None]
        if not given:
            one = self.lipschitz is _NOT_GIVEN
            clean["lipschitz"] = unit = 1.0 if one else check.real("lipschitz", self.lipschitz, above=0)
        elif self.lipschitz is not _NOT_GIVEN and self.lipschitz != math.inf:
            given.insert(0, "lipschitz")
        if len(given) > 1:
            raise ValueError(f"only one of lipschitz, gradient_moment and mean_excess must be given; got {given}")
        if self.gradient_moment is not None:
            power, value = _checked_pair("gradient_moment", self.gradient_moment)
            power = check.real("m of gradient_moment", power, at_least=2, at_most=_MOST_POWER)
            value = check.real("value of gradient_moment", value, above=0)
            clean["gradient_moment"], unit = (power, value), math.pow(value, 1 / power)
        if self.mean_excess is not None:
            level, value = _checked_pair("mean_excess", self.mean_excess)
            level = check.real("t of mean_excess", level, above=0)
            unit, more = level, check.real("value of mean_excess", value, at_least=0)
            clean["mean_excess"] = level, more
        clean["r"] = check.real("r", self.r, at_least=1)
        for name in ("smoothness", "gap", "loss_bound"):
            clean[name] = check.real(name, getattr(self, name), above=0)
        if self.pl is not None:
            clean["pl"] = check.real("pl", self.pl, above=0)
        for name, least in (("sample_rank", 1), ("layer_rank", 2)):
            if (rank := getattr(self, name)) is not None:
                clean[name] = check.real(name, rank, at_least=least)
        clean |= {"gradient_unit": unit, "steepest": unit + more}
        for name, settled in clean.items():
            object.__setattr__(self, name, settled)
        check.precondition(self.r <= self.d, f"r must be at most d (effective rank); got r = {self.r:g}, d = {self.d}")
        check.precondition(
            self.sample_rank is None or self.sample_rank <= self.d,
            f"sample_rank must be at most d; got sample_rank = {self.sample_rank}, d = {self.d}",
        )
        check.precondition(
            self.pl is None or self.pl <= self.smoothness,
            f"pl must be at most smoothness (mu <= ell); got pl = {self.pl or 0:g}, smoothness = {self.smoothness:g}",
        )

    def shaped(self, smallest: float, largest: float) -> "Problem":
        """Return the constants for a run whose random directions are B^(1/2) u instead of u, with a fixed matrix B.

        B is a positive definite (d, d) matrix and u a direction with E[u u^T] = I. Every theorem holds for such a run
        with the returned constants if grad^T B grad takes the place of the squared gradient norm. Raises ValueError if
        an argument is outside its range.

        Args:
            smallest, largest: lower and upper bounds on the eigenvalues of B, 0 < smallest <= largest.

        Returns:
            A new `Problem`: `smoothness` is multiplied by `largest`, `pl` by `smallest`, and each bound on gradients by
            sqrt(largest). `layer_rank` is None, and the other constants stay.
        """
        high = check.real("largest", largest, above=0)
        low, root = check.real("smallest", smallest, above=0, at_most=high), math.sqrt(high)
        bound: dict[str, Any] = {"lipschitz": self.lipschitz * root}
        if self.gradient_moment is not None:
            power, value = self.gradient_moment
            bound = {"lipschitz": math.inf, "gradient_moment": (power, value * root**power)}
        if self.mean_excess is not None:
            level, value = self.mean_excess
            bound = {"lipschitz": math.inf, "mean_excess": (level * root, value * root)}
        pl = None if self.pl is None else self.pl * low
        return replace(self, smoothness=self.smoothness * high, pl=pl, layer_rank=None, **bound)

    def require_lipschitz(self, what: str) -> None:
        """Raise PreconditionError if `gradient_moment` or `mean_excess` was given in place of `lipschitz`.

        The error message shows `what`, the name of the theorem that needs `lipschitz`.
        """
        check.precondition(
            self.gradient_moment is None and self.mean_excess is None,
            f"lipschitz must be given: {what} needs a bound on the gradient of every sample",
        )

    @property
    def condition_number(self) -> float:
        """The condition number smoothness/pl, which is at least 1. Raises PreconditionError if `pl` is None."""
        check.precondition(self.pl is not None, "pl must be given: the corollaries assume the PL inequality")
        assert self.pl is not None
        return self.smoothness / self.pl

    @property
    def relative_gap(self) -> float:
        """The number gap smoothness/gradient_unit^2, which has no unit. Raises ValueError if this number,
        `gradient_unit` or `smoothness` is outside [1e-150, 1e150]."""
        unit = self.gradient_unit
        name = "lipschitz" if unit == self.lipschitz else "unit of gradients"
        gap = self.gap / unit * (self.smoothness / unit)
        check.real(f"gap smoothness/{name}^2", gap, at_least=SMALLEST, at_most=LARGEST)
        check.real(name, unit, at_least=SMALLEST, at_most=LARGEST)
        check.real("smoothness", self.smoothness, at_least=SMALLEST, at_most=LARGEST)
        return gap


def _checked_pair(name: str, value: object) -> tuple[object, object]:
    if not (isinstance(value, tuple) and len(value) == 2):
        raise ValueError(f"{name} must be a pair of numbers; got {check.shown(value)}")
    return value[0], value[1]


class Run(TypedDict):
    """The parameters of a run of DPZero (Algorithm 2 of the paper), as keyword arguments.

    In each step DPZero estimates the derivative of every sample's loss f along K random directions u by finite
    differences. The vector of a sample's K differences is clipped and averaged over the samples, and noise is added to
    each of the K averages.

    Attributes:
        step_size: the step size, > 0, in length squared per loss.
        steps: the number of steps, an integer >= 1.
        clip: the largest L2 norm of a sample's vector of K differences, > 0, in loss per length.
        smoothing: lambda in the differences (f(x + lambda u) - f(x - lambda u))/(2 lambda), or (f(x + lambda u) -
            f(x))/lambda for "forward" differences. It is > 0, and 0 for "exact" ones.
        noise_std: the standard deviation of the noise on each of the K averages, >= 0, in loss per length.
        direction: the distribution of the directions, with E[u u^T] = I: "sphere" (the default), "gaussian",
            "rademacher", "frame" (orthogonal ones) or "low-rank:RANK" (RANK outer products for each weight matrix).
        directions_per_step: K >= 1; by default 1.
        difference: how a difference is computed: "central" (the default), "forward", or "exact" (automatic
            differentiation).
    """

    step_size: float
    steps: int
    clip: float
    smoothing: float
    noise_std: float
    direction: NotRequired[str]
    directions_per_step: NotRequired[int]
    difference: NotRequired[str]


@dataclass(frozen=True, kw_only=True)
class Prescription:
    """Parameters of a private zeroth-order run, with the bound that a theorem proves for them.

    Attributes:
        id: the name of the theorem or corollary, for example "theorem-3".
        guarantee: the quantity that is at most `bound`.
        algorithm: "dpgd-0th" (Algorithm 1 of the DPZero paper, with noise on a vector of length d) or "dpzero"
            (Algorithm 2, with noise on one number for each direction).
        n: the number of samples.
        relation: the neighbouring relation of the privacy statement, by default replace-one.
        batches: None if every step uses all n samples; otherwise `Poisson(q_s)`, where each step includes each sample
            independently with probability q_s. Sums over a batch are divided by q_s n.
        direction: the distribution of the random directions u, for example "sphere".
        directions_per_step: the number K >= 1 of directions in a step.
        difference: how the derivative of a loss along u is estimated: "central", "forward", or "exact" (automatic
            differentiation).
        gdp: the mu of Gaussian DP of the whole run, if every step uses all samples. With Poisson batches the run is not
            Gaussian-DP; gdp is then the mu of a run on all samples with the (epsilon, delta) that was asked for.
        step_size: the step size, in length squared per loss.
        T: the number of steps by the theorem's formula, before rounding; equal to `steps` if the parameters come from a
            numerical search.
        steps: the number of steps to run, an integer >= 1.
        smoothing: the factor lambda in the finite difference, which evaluates losses at x + lambda u; 0 if `difference`
            is "exact".
        clip: the largest L2 norm of what one sample contributes to a step, in loss per length: of the vector of its K
            finite differences for "dpzero", of its finite difference times u for "dpgd-0th".
        noise_std: the standard deviation of the noise on each of the K ("dpgd-0th": d) averages, in loss per length.
        bound: the bound that the theorem states, for `T` steps.
        bound_at_steps: the proved bound for `steps` steps.
        trivial_bound: a bound that holds whatever the algorithm does: L^2 for the squared gradient, and L^2/(2 pl) for
            the suboptimality, where L is `Problem.steepest` and pl is `Problem.pl`.
        evaluations: the expected number of finite differences of single samples in the whole run, `expected_batch`
            times K times `steps`, rounded.
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
    difference: str = "central"
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
    notes: tuple[str, ...] = ()

    @classmethod
    def of_run(
        cls,
        p: Problem,
        run: Run,
        bound: float,
        gdp: float,
        relation: Relation,
        notes: tuple[str, ...] = (),
        **more: Any,
    ) -> Self:
        """Make a prescription for "dpzero" from parameters that a numerical search found.

        Args:
            p: the constants of the problem.
            run: the parameters, with all keys of `Run` present.
            bound: the proved bound at these parameters; infinite if there is none.
            gdp, relation: the mu of Gaussian DP and the neighbouring relation. They are stored; nothing is computed
                from them.
            notes: remarks for the reader. If `difference` is "exact", a remark about derivatives is put first.
            more: the fields `id`, `guarantee`, `trivial_bound`, `evaluations` and, optionally, `batches`.
        """
        if not DIFFERENCES[run["difference"]].smoothing:
            exact = "exact derivatives need losses that can be differentiated forwards; an error rate has none"
            notes = (exact, *notes)
        return cls(
            **run,
            algorithm="dpzero",
            n=p.n,
            relation=relation,
            gdp=gdp,
            T=float(run["steps"]),
            bound=bound,
            bound_at_steps=bound,
            notes=notes,
            **more,
        )

    @property
    def run(self) -> Run:
        """The parameters as a dictionary, to be passed as keyword arguments to `sharp.certificate.certificate`."""
        return Run(
            step_size=self.step_size,
            steps=self.steps,
            clip=self.clip,
            smoothing=self.smoothing,
            noise_std=self.noise_std,
            direction=self.direction,
            directions_per_step=self.directions_per_step,
            difference=self.difference,
        )

    @property
    def sampling(self) -> str:
        """The way batches are drawn, "full" if every step uses all samples, otherwise "poisson"."""
        return "full" if self.batches is None else self.batches.word

    @property
    def sample_rate(self) -> float:
        """The probability with which a sample is in a batch, in (0, 1]; 1 if every step uses all samples."""
        return 1.0 if self.batches is None else self.batches.sample_rate

    @property
    def expected_batch(self) -> float:
        """The expected batch size, `sample_rate` times n, by which the sum over a batch is divided."""
        return self.sample_rate * self.n

    @property
    def points(self) -> int:
        """The expected number of times that the whole run evaluates one sample's loss, rounded.

        Each step evaluates the loss of each sample in the batch 2 K times for "central" differences and K + 1 times for
        "forward" or "exact" ones, where K is `directions_per_step`.
        """
        return round(
            self.sample_rate * self.n * self.steps * DIFFERENCES[self.difference].points(self.directions_per_step)
        )

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of the noise on the sum over a batch, divided by `clip`."""
        return self.noise_std * self.expected_batch / self.clip

    @property
    def vacuous(self) -> bool:
        """True if `bound` is at least `trivial_bound`, so that it says nothing."""
        return self.bound >= self.trivial_bound
