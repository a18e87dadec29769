"""What a theorem takes, the constants of a `Problem`, and what it gives back, the parameters of a `Prescription`."""

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
    """The quantity that a theorem bounds, a mean over a run's random numbers: GRADIENT, the squared norm of the mean
    loss's gradient at a uniformly random step's weights x_tau, or SUBOPTIMALITY, how far the mean loss at the last
    weights x_T is above its minimum. The value is the formula that tables show."""

    GRADIENT = "E||grad F_S(x_tau)||^2"
    """The squared gradient at x_tau, where tau is uniform on 0, ..., T - 1."""
    SUBOPTIMALITY = "E[F_S(x_T) - F_S^*]"
    """How far the loss at the last iterate is above its minimum, under the PL inequality."""


SMALLEST, LARGEST = 1e-150, 1e150
"""The smallest and the largest value that the sharpened results accept for each of L, ell and gap ell/L^2. With values
outside this range their computations overflow or underflow in float64."""
_MOST_POWER = 64.0  # Moments of gradient norms with a larger power m are refused.
_NOT_GIVEN = float("nan")  # `is` tells this default of `Problem.lipschitz` from every other number.


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The constants of Assumptions asp:smooth, asp:rank and asp:pl of the DPZero paper.

    f(x; xi_i) is the loss of sample i at the weights x, F_S the mean loss, F_S^* its infimum, and x_t the weights after
    t steps. H is the matrix of Assumption asp:rank, -H <= Hess F_S <= H and ||H|| <= ell. The sharpened results
    (package `theory.sharp`) are this package's own theorems for the paper's algorithms. Only n, d and r are required.

    Attributes:
        n: number of samples, n >= 1.
        d: dimension, d >= 1.
        r: effective rank, 1 <= r <= d, with tr(H) <= r ell.
        lipschitz: L > 0, every f(x; xi) is L-Lipschitz. Unit: loss over length. It is 1 if it is not given, and
            infinite if `gradient_moment` or `mean_excess` is given in its place.
        smoothness: ell > 0, every f(x; xi) is ell-smooth; by default 1. Unit: loss over length squared.
        gap: F_S(x_0) - F_S^* > 0; by default 1. Unit: loss.
        loss_bound: B > 0 with |F_S(x_t)| <= B along the run (Theorem 3, Corollary 3); by default 1. Unit: loss.
        pl: mu of the PL inequality, 0 < mu <= ell; None does not assume it. Unit: loss over length squared.
        sample_rank: r_s in [1, d]. There are H_i with -H_i <= Hess f(.; xi_i) <= H_i and ||H_i|| <= ell, and the root
            mean square of tr(H_i) over samples is at most r_s ell. Only the sharpened results use it: with a small r_s
            their smoothing lambda need not shrink as d grows. None is r_s = d, which ell-smoothness gives.
        layer_rank: for the direction laws low-rank:RANK only, which draw for each weight matrix a sum of RANK products
            of two vectors of random signs. It assumes that each weight matrix's block of H is a Kronecker product of
            some A and B, and is the largest r_A + r_B >= 2 of a block; r_A = tr(A)/||A||. None: not assumed.
        gradient_moment: (m, value) in place of L, for the sharpened results only. At every point that a run reaches,
            the mean over samples of ||grad f(x; xi_i)||^m is at most `value` > 0, in the unit of L^m; 2 <= m <= 64.
        mean_excess: (t, value) in place of L, for the sharpened results only. At every point that a run reaches, the
            mean over samples of max(||grad f(x; xi_i)|| - t, 0) is at most `value`. t > 0 and value >= 0 in the unit of
            L; (L, 0) says the same as `lipschitz` L.

        gradient_unit: the unit in which the sharpened results measure norms of gradients, set from the bound on the
            samples' gradients: L, value^(1/m) for `gradient_moment` = (m, value), and t for `mean_excess` = (t, value).
        steepest: an upper bound on ||grad F_S|| at every point that a run reaches, set from the same bound: L,
            value^(1/m), or t + value, the last two by Jensen's inequality.

    Raises:
        ValueError: a field that is not a number in its range; more than one of lipschitz, gradient_moment, mean_excess.
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
        """Return constants for directions that are longer along some weights than along others: B^(1/2) u, with a fixed
        positive definite matrix B and u of one of the theorem's laws. `smoothness` is multiplied by `largest`,
        `lipschitz` (or the bound in its place) by its root, `pl` by `smallest`; `layer_rank` is left out, and the other
        constants stay.

        Every result for the constants that are returned holds for a run with such directions, with grad^T B grad in
        place of the squared gradient (theory/sharp/proof.md, section 14): the run is one with plain directions in w =
        B^(-1/2) x. Nothing is used of B and H but the eigenvalues' ends: B^(1/2) H B^(1/2) has norm at most `largest`
        ell, and its trace is at most r times that. A problem whose trace of B H and whose gradients after B^(1/2) were
        measured has smaller constants.

        Args:
            smallest, largest: 0 < smallest <= largest, bounds on the eigenvalues of B, as `optim.shape.Shape` has them.

        Raises:
            ValueError: an argument outside its range.
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
        """Raise PreconditionError if `gradient_moment` or `mean_excess` is given in place of `lipschitz`.

        `what` is the name of the result that needs L, for the message."""
        check.precondition(
            self.gradient_moment is None and self.mean_excess is None,
            f"lipschitz must be given: {what} needs a bound on the gradient of every sample",
        )

    @property
    def condition_number(self) -> float:
        """kappa = ell/mu >= 1, where ell is `smoothness` and mu `pl`. PreconditionError is raised if `pl` is None."""
        check.precondition(self.pl is not None, "pl must be given: the corollaries assume the PL inequality")
        assert self.pl is not None
        return self.smoothness / self.pl

    @property
    def relative_gap(self) -> float:
        """gap ell/L^2, which has no unit, where ell is `smoothness` and L `gradient_unit`.

        Raises:
            ValueError: the relative gap, L or ell is outside [1e-150, 1e150].
        """
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
    """The parameters of a run of Algorithm 2 (DPZero), as keyword arguments.

    Attributes:
        step_size: alpha > 0.
        steps: T >= 1.
        clip: C > 0, which bounds the norm of a sample's differences along a step's K directions u, E[u u^T] = I; a
            difference is (f(x + lambda u) - f(x - lambda u))/(2 lambda), or (f(x + lambda u) - f(x))/lambda if forward.
        smoothing: lambda > 0; 0 with the exact difference rule.
        noise_std: sigma >= 0, the standard deviation of the noise on each of a step's K averages over the samples.
        direction: the law of the directions, a name in `sharp.constants.LAWS`; by default the paper's "sphere".
        directions_per_step: K >= 1; by default 1.
        difference: the difference rule, a name in `difference.DIFFERENCES`; by default "central".
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
    """Parameters of an algorithm, what they are for, and the bound certified for them.

    Attributes:
        id: which result, for example 'theorem-3'.
        guarantee: the quantity that is at most `bound`, and at most `trivial_bound`.
        algorithm: 'dpgd-0th' (Algorithm 1) or 'dpzero' (Algorithm 2).
        n: number of samples.
        relation: which data sets are neighbours in the statement of privacy, for example replace-one.
        batches: how batches are drawn: None for full batches, or `Poisson(q_s)` with the sampling rate q_s. Sums over a
            batch are divided by the expected batch size q_s n.
        direction: law of the random directions u of a step, a name in `sharp.constants.LAWS`.
        directions_per_step: K >= 1, the number of directions in a step.
        difference: how a change of loss along a direction is found, one of `difference.DIFFERENCES`.
        gdp: with full batches the run is gdp-Gaussian-DP (mu-GDP with mu = gdp), and privacy enters through this number
            alone. A run with Poisson batches is not Gaussian-DP: its noise is set by the accountant so that it has the
            (epsilon, delta) asked for, and gdp is the mu with which full batches have the same (epsilon, delta).
        step_size: alpha.
        T: the number of steps that the result's formula gives, not yet rounded to an integer; equal to `steps` if the
            parameters come from a search and not from a formula.
        steps: the number of steps to run, an integer >= 1.
        smoothing: lambda, how far the weights are shifted along a direction (in multiples of u): what the theorem
            displays or, if parameters are searched for, the largest that raises the bound by at most 1% of it; 0 where
            the difference rule shifts no weights.
        clip: C, the largest L2 norm of one sample's contribution, in loss over length: of its K differences together,
            each divided by lambda or, if central, by 2 lambda (dpzero), or of its vector (dpgd-0th).
        noise_std: sigma, the standard deviation of the noise on each number of a step's average, with which `steps`
            steps have the privacy that `gdp` stands for.
        bound: the bound that the theorem or corollary states, for T steps.
        bound_at_steps: the bound for `steps` steps, by the inequality in the proof before parameters are substituted.
        trivial_bound: a bound that holds at every point, whatever the algorithm: L^2 for the squared gradient, and
            L^2/(2 `Problem.pl`) for the suboptimality. If the problem has no L, `Problem.steepest` takes its place.
        evaluations: q_s n K times `steps`, rounded: the expected number of differences of single samples in the whole
            run, one for each sample, direction and step. `points` says how many losses they take.
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
        """Make the prescription of the parameters that a search found for Algorithm 2.

        Args:
            p: the problem.
            run: all parameters of the run.
            bound: the certified bound at these parameters, infinite if there is none.
            gdp, relation: mu of Gaussian DP and the neighbouring relation; nothing is computed from them.
            notes: remarks for the reader. If the difference rule is exact, a remark on derivatives is put first.
            more: further fields: id, guarantee, trivial_bound, evaluations and, if batches are sampled, batches.
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
        """The parameters of the run, as keyword arguments of functions such as `sharp.certificate.certificate`."""
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
        """How batches are drawn: 'full' or 'poisson'."""
        return "full" if self.batches is None else self.batches.word

    @property
    def sample_rate(self) -> float:
        """q_s in (0, 1], the probability with which a sample is in a batch; 1 for full batches."""
        return 1.0 if self.batches is None else self.batches.sample_rate

    @property
    def expected_batch(self) -> float:
        """q_s n, the sampling rate times the number of samples: the expected batch size, by which sums are divided."""
        return self.sample_rate * self.n

    @property
    def points(self) -> int:
        """The expected number of evaluations of a sample's loss in all `steps` steps, the cost of a difference rule.

        It is q_s n `steps`, the expected number of samples in all batches, times the points of a step, rounded to a
        whole number: for K directions 2 K points with central differences, and K + 1 with forward ones and with exact
        derivatives.
        """
        return round(
            self.sample_rate * self.n * self.steps * DIFFERENCES[self.difference].points(self.directions_per_step)
        )

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of the noise on the sum of the clipped contributions, divided by the clip."""
        return self.noise_std * self.expected_batch / self.clip

    @property
    def vacuous(self) -> bool:
        """Whether `bound` is at least `trivial_bound`, so that it says nothing."""
        return self.bound >= self.trivial_bound
