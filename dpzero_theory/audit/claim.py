"""What a training loop claims about its privacy (`Claim`), and what an attacker sees of it (`View`)."""

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
"""Names of outputs that a loop returns for the audit alone, and that the attacker never sees."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the author of a training loop claims about its privacy.

    Attributes:
        epsilon, delta: the whole run is (epsilon, delta)-DP, with epsilon > 0 and 0 <= delta < 1.
        relation: the neighbouring relation: "replace-one", "add-remove" or "zero-out".
        sampling: how batches are drawn, a name in `privacy.sampling.SAMPLINGS` such as "poisson". Some names need a
            number, such as "cyclic-poisson:4" for 4 random groups of records that take turns.
        n: the number of records.
        batch: the size of a batch, or its expected size; at most n.
        steps: the number of steps.
        noise_multiplier: the standard deviation of the Gaussian noise on the sum over a batch, in units of the clip.
        clip: the largest L2 norm of what one record adds to the sum of a step.
        average: whether a step releases the noised sum divided by `batch` ("mean") or the noised sum itself ("sum").

    Raises:
        ValueError: a value is outside its range.
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
        """Return the claim of a training run whose steps are all alike.

        Args:
            run: an `optim.plan.Plan`, which has all public settings of a run; or a `privacy.step.Step`, which describes
                each step, and whose own `steps` is ignored. The noise must be Gaussian.
            steps, n, clip: the number of steps, the number of records, and the largest L2 norm of what one record adds
                to the sum of a step. Required with a `Step`, and ignored with a `Plan`.
            delta: the claimed delta, in [0, 1); above 0 if `epsilon` is None.
            epsilon: the claimed epsilon > 0; if None, the upper bound that `privacy.accountant` computes for the steps.
            average: "mean" if a step releases the noised sum over the (expected) batch size, "sum" if the noised sum.

        Raises:
            ValueError: an argument is missing or outside its range, or the noise is not Gaussian.
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
        """The claimed share of the records that is in a batch, or its expectation, in (0, 1]."""
        return self.batch / self.n

    def drawn(self, sample_rate: float | None = None) -> Sampling | None:
        """Return how batches are drawn, as a `Sampling` of the privacy accountant.

        Args:
            sample_rate: the share of the records that is in a batch; if None, the claimed share.

        Returns:
            The sampling. None if it cannot have this rate, or if its name lacks a number that it needs, such as the 4
            in "cyclic-poisson:4".
        """
        try:
            return sampling_of(self.sampling, self.sample_rate if sample_rate is None else sample_rate)
        except ValueError:
            return None

    def unit(self, batch: float | None = None) -> float:
        """Return by how much, in L2 norm, a record that adds `clip` to a sum moves the released mean (clip/batch) or
        sum (clip).

        `batch` is the number by which a mean is divided; the claimed batch size if None.
        """
        return self.clip / (self.batch if batch is None else batch) if self.average == "mean" else self.clip

    def noise_std(self, batch: float | None = None) -> float:
        """Return the standard deviation of the noise on the released mean or sum of a batch of size `batch` (None: as
        claimed)."""
        return self.noise_multiplier * self.unit(batch)

    def as_step(self) -> Step:
        """Return all steps of the run as one `Step` of the privacy accountant, whose attribute `steps` is their number.

        Raises:
            ValueError: the claimed sampling cannot have the claimed rate or number of steps.
        """
        words: Words = {"sampling": self.sampling, "relation": self.relation, "sample_rate": self.sample_rate}
        return step_of(self.noise_multiplier, self.steps, **words)


@dataclass(frozen=True, kw_only=True)
class View:
    """What an attacker sees of a run, and the loop's own names of its settings.

    The attacker sees all that the loop returns, prints and writes, except for the outputs in `hidden` and two outputs
    for the audit alone: "batches", the indices of each step's records, and "clean", the releases before noise.

    Attributes:
        seed: "public" if the attacker may know the loop's seed: it is in a configuration file, a default, or a number
            small enough to be tried (torch's CPU generator uses 32 bits). "secret" if it is as random as a key and
            never shown.
        records: "finite" if records with NaN or infinity are refused, one by one, before the loop gets them; else
            "any".
        hidden: names of outputs that the attacker does not see.
        names: the loop's own names of settings, by the audit's names, such as {"step_size": "lr"}. The audit's names
            are step_size, noise_multiplier, clip, batch, steps, n, sampling, relation, epsilon and delta.
        adaptive: names of outputs that show what a step takes from earlier releases besides the weights, such as a clip
            that follows a noised count. The attacker sees them. With such outputs, the effect of a record is measured
            only up to the first step that it changes, since later steps may follow from that release.

    Raises:
        ValueError: a value is outside its range, or a hidden output is in `adaptive`.
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
        """Return whether the attacker sees the output called `name`. False for "batches", "clean" and the names in
        `hidden`."""
        return name not in _HIDDEN and name not in self.hidden
