"""What a training loop claims about its privacy, and what an attacker sees of it. Nothing here runs the loop."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dpzero_theory import check
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS, Sampling, sampling_of
from dpzero_theory.privacy.step import Step, Words, step_of

if TYPE_CHECKING:
    from dpzero_theory.optim.plan import Plan

# The allowed values of `Claim.average`, `View.seed` and `View.records`
_AVERAGES, _SEEDS, _RECORDS = ("mean", "sum"), ("public", "secret"), ("any", "finite")
_HIDDEN = ("batches", "clean")
"""Names of outputs that a loop returns for the audit alone; the attacker never sees them."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the author of a training loop says of its privacy.

    Attributes:
        epsilon, delta: the whole run is (epsilon, delta)-DP, epsilon > 0 and 0 <= delta < 1.
        relation: a name of `privacy.relation.Relation`, such as "add-remove".
        sampling: how batches are drawn, a name of `privacy.sampling.SAMPLINGS`, such as "poisson". Some names need
            numbers, as "cyclic-poisson:4", where 4 random groups of records take turns.
        n: the number of records.
        batch: the size of a batch, or its expected size; at most n.
        steps: the number of steps.
        noise_multiplier: the standard deviation of the Gaussian noise on the sum over a batch, in units of the clip.
        clip: the largest L2 norm of what one record adds to that sum, all numbers of a step together.
        average: whether a release is the noised sum divided by `batch` ("mean") or the noised sum itself ("sum").

    Raises:
        ValueError: a value outside its range; the message is one line.
    """

    epsilon: float
    delta: float
    relation: str
    sampling: str
    n: int
    batch: float
    steps: int
    noise_multiplier: float
    clip: float
    average: str = "mean"

    def __post_init__(self) -> None:
        check.real("epsilon", self.epsilon, above=0)
        check.real("delta", self.delta, at_least=0, below=1)
        Relation(self.relation)
        check.choice("sampling", self.sampling.partition(":")[0], tuple(SAMPLINGS))
        check.integer("n", self.n)
        check.real("batch", self.batch, above=0, at_most=self.n)
        drawn = sampling_of(self.sampling, self.sample_rate) if ":" in self.sampling else None
        if drawn is not None and drawn.records not in (None, self.n):
            raise ValueError(f"sampling must be for n = {self.n} records; got {self.sampling!r}")
        check.integer("steps", self.steps, at_most=10**9)
        check.real("noise_multiplier", self.noise_multiplier, above=0)
        check.real("clip", self.clip, above=0)
        check.choice("average", self.average, _AVERAGES)
        if self.sampling == "full" and self.batch != self.n:
            raise ValueError(f"batch must be n = {self.n} with sampling full; got {self.batch:g}")

    @classmethod
    def of(
        cls,
        run: "Step | Plan",
        steps: int | None = None,
        *,
        delta: float,
        epsilon: float | None = None,
        n: int | None = None,
        clip: float | None = None,
        average: str = "mean",
    ) -> "Claim":
        """Make the claim of a run of equal steps.

        Args:
            run: the `optim.plan.Plan` of a training run, which has all its public settings, or a `privacy.step.Step`,
                which describes each step; its own number of `steps` is ignored. The noise must be Gaussian.
            steps, n, clip: the number of steps, the number of records, and the largest L2 norm of what one record adds
                to a sum. They are required with a `Step`; with a `Plan`, which has its own, they are ignored.
            delta: the claimed delta, in [0, 1); above 0 if `epsilon` is None.
            epsilon: the claimed epsilon > 0; if None, the upper bound of `privacy.accountant` for the steps.
            average: "mean" if a release is the noised sum divided by the batch size, "sum" if it is the noised sum.

        Raises:
            ValueError: an argument that is missing or outside its range, or noise that is not Gaussian.
        """
        if isinstance(run, Step):
            step = run
        else:
            step, steps, n, clip = run.release, run.steps, run.n, run.clip
        if steps is None or n is None or clip is None:
            raise ValueError("steps, n and clip must be given with a step")
        if not step.mechanism.startswith(("gaussian", "discrete-gaussian")):
            raise ValueError(f"run must have Gaussian noise; got {step.mechanism!r}")
        release = replace(step, steps=steps)
        return cls(
            epsilon=epsilon_of_history([release], delta).upper if epsilon is None else epsilon,
            delta=delta,
            relation=step.relation,
            sampling=release.sampling.word,
            n=n,
            batch=step.sampling.sample_rate * n,
            steps=steps,
            noise_multiplier=step.noise,
            clip=clip,
            average=average,
        )

    @property
    def sample_rate(self) -> float:
        """The claimed (expected) share of the records that is in a batch, in (0, 1]."""
        return self.batch / self.n

    def drawn(self, sample_rate: float | None = None) -> Sampling | None:
        """Return how batches are drawn, as the accountant's `Sampling`.

        Args:
            sample_rate: the share of the records that is in a batch; if None, the claimed share.

        Returns:
            The sampling; None if it cannot have this rate, or if its name lacks the numbers that it needs, as
            "cyclic-poisson" without the ":4" of 4 groups does.
        """
        try:
            return sampling_of(self.sampling, self.sample_rate if sample_rate is None else sample_rate)
        except ValueError:
            return None

    def unit(self, batch: float | None = None) -> float:
        """Return the L2 norm by which a contribution of norm `clip` moves a release: clip/batch for a mean, else clip.

        `batch` is the size by which a mean is divided, the claimed one if None.
        """
        return self.clip / (self.batch if batch is None else batch) if self.average == "mean" else self.clip

    def noise_std(self, batch: float | None = None) -> float:
        """Return the standard deviation of the noise on a release, for batches of size `batch` (None: as claimed)."""
        return self.noise_multiplier * self.unit(batch)

    def as_step(self) -> Step:
        """Return all steps of the run as one `Step` of the privacy accountant, whose `steps` is their number.

        Raises:
            ValueError: the claimed sampling cannot have the claimed rate or number of steps.
        """
        words: Words = {"sampling": self.sampling, "relation": self.relation, "sample_rate": self.sample_rate}
        return step_of(self.noise_multiplier, self.steps, **words)


@dataclass(frozen=True, kw_only=True)
class View:
    """What an attacker knows or sees of a run, and how the loop names its settings.

    The attacker sees all that the loop returns, prints and writes, except what is `hidden` and two outputs that a loop
    returns for the audit alone: "batches", each step's record numbers, and "clean", the releases before noise.

    Attributes:
        seed: "public" if the loop's seed may be known: it stands in a configuration file, is a default, or is a number
            small enough to be searched (torch's CPU generator keeps 32 bits). "secret" if it has the entropy of a key
            and is never shown.
        records: "finite" if something before the loop refuses NaN and infinity record by record, else "any".
        hidden: names of outputs of the loop that the attacker does not see.
        names: the loop's own name of a setting, by the audit's name for it, as in {"step_size": "lr"}. The audit's
            names are step_size and noise_multiplier, clip, batch, steps, n, sampling, relation, epsilon and delta.
        adaptive: names of outputs that show what a step takes from earlier releases beside the weights, such as each
            step's clip if it follows a noised count. The effect of one record is then measured up to the first step
            that the record changes, since later steps may follow from that release. The attacker sees these outputs.

    Raises:
        ValueError: a value outside its range, or a hidden output among `adaptive`.
    """

    seed: str = "public"
    records: str = "any"
    hidden: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    adaptive: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check.choice("seed", self.seed, _SEEDS)
        check.choice("records", self.records, _RECORDS)
        if unseen := [name for name in self.adaptive if not self.sees(name)]:
            raise ValueError(f"adaptive must name outputs that the attacker sees; got {unseen[0]!r}, which is hidden")

    def sees(self, name: str) -> bool:
        """Return whether the attacker sees the output called `name`: not "batches", "clean" or one of `hidden`."""
        return name not in _HIDDEN and name not in self.hidden
