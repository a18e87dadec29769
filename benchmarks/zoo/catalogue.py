"""Lists every loop of the zoo with its claim and, for a faulty loop, the name of the check that must find the fault."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo import behind, choices, noise, shown, sound, unnoticed
from benchmarks.zoo import first_order as first
from benchmarks.zoo import zeroth_order as zeroth
from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import Release

N, D, BATCH, STEPS = 48, 5, 12, 12
DELTA, NOISE = 1e-5, 2.0
SEED = 3


@cache
def records(n: int = N, repeat: int = 0) -> NDArray[np.float64]:
    """Return n random records, shape (n, D + 1), each a row of D standard normal features and a label of -1 or +1. Each
    value of `repeat` gives another draw, always the same."""
    found = np.random.default_rng(SEED + repeat).normal(size=(n, D + 1))
    found[:, -1] = np.sign(found[:, -1])
    return found


@cache
def claim(
    sampling: str = "poisson",
    relation: str = "add-remove",
    less: float = 1.0,
    batch: float = BATCH,
    n: int = N,
    steps: int = STEPS,
) -> Claim:
    """Return the claim of a loop with the zoo's noise: the accountant's upper bound on its epsilon (raised by a
    millionth for rounding), times `less`. With less < 1 the claim is false. `sampling` and `relation` are names of the
    accountant, `batch` is the expected batch size, n the number of records, and `steps` the number of steps. For
    `sampling` "full" the batch is n."""
    batch = n if sampling == "full" else batch
    release = Release(NOISE, steps, sampling=sampling, relation=relation, sample_rate=batch / n)
    epsilon = epsilon_of_history([release], DELTA).upper * (1 + 1e-6) * less
    return Claim(
        epsilon=epsilon,
        delta=DELTA,
        relation=relation,
        sampling=sampling,
        n=n,
        batch=batch,
        steps=steps,
        noise_multiplier=NOISE,
        clip=1.0,
    )


@dataclass(frozen=True)
class Specimen:
    """A loop of the zoo, and how to audit it.

    Attributes:
        make: makes a new object that is the loop; its docstring says what the fault is.
        finds: the name of the check that must report the loop as violated; empty for a sound loop.
        claimed: makes the loop's claim.
        seed: "public" or "secret", as in `audit.claim.View`.
        settings: what the loop is given beside the claim's numbers.
        variations: further settings under which the claim must hold, by a name.
        finite: whether the audit may assume that records have no NaN or infinity.
        runs: about how many runs a check's statistic may use.
        adaptive: names of outputs, as in `audit.claim.View`.
        title: the name in reports; that of `make` if empty.
        repeats: how often the benchmark audits the loop.
        also: the names of other checks that rightly may report the loop in place of `finds`.
        names: what the loop calls settings, as in `audit.claim.View`.
    """

    make: Callable[[], Any]
    finds: str = ""
    claimed: Callable[[], Claim] = claim
    seed: str = "secret"
    settings: Mapping[str, Any] = field(default_factory=dict)
    variations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    finite: bool = False
    runs: int = 60
    adaptive: tuple[str, ...] = ()
    title: str = ""
    repeats: int = 3
    also: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.title or self.make.__name__

    @property
    def pattern(self) -> str:
        """The docstring of `make`, which says in a sentence or two what the loop's fault is."""
        return " ".join((self.make.__doc__ or "").split())

    @property
    def view(self) -> View:
        return View(
            seed=self.seed, records="finite" if self.finite else "any", adaptive=self.adaptive, names=self.names
        )

    @property
    def all_settings(self) -> dict[str, Any]:
        return {"step_size": 0.1, "d": D, **self.settings}


def _fixed() -> Claim:
    return claim("fixed-size", "replace-one")


def _full() -> Claim:
    return claim("full", "replace-one")


def _one_step() -> Claim:
    return claim("full", steps=1)


def _ordered() -> Claim:
    return claim("fixed-order", "replace-one")


_FOUR = {"four micro-batches": {"micro_batches": 4}}
_RANKS = {"four ranks": {"ranks": 4}}

FAULTS = (
    Specimen(zeroth.NoiseOfDirection, "noise-from-directions"),
    Specimen(zeroth.NoiseContinues, "noise-from-directions"),
    Specimen(zeroth.ReducedLosses, "sensitivity"),
    Specimen(zeroth.EachDirection, "sensitivity", settings={"directions": 4}),
    Specimen(zeroth.EmptyBatchSilent, "noise-repeated", lambda: claim(batch=1.5)),
    Specimen(zeroth.DirectionFromData, "un-noised"),
    Specimen(zeroth.LastBatchPartial, "denominator", lambda: claim("fixed-order", "replace-one", batch=20)),
    Specimen(first.DividesByBatch, "denominator"),
    Specimen(first.SumDividedByBatch, "denominator"),
    Specimen(noise.HalfPrecisionNoise, "representable"),
    Specimen(first.Shuffles, "batches"),
    Specimen(first.SameBatch, "batches", _fixed),
    Specimen(first.FixedForPoisson, "batches"),
    Specimen(first.MoreOften, "batches"),
    Specimen(first.ClipsTheBatch, "sensitivity"),
    Specimen(first.ClipsEachNumber, "sensitivity"),
    Specimen(first.ClipsEachLayer, "sensitivity"),
    Specimen(first.Standardises, "sensitivity"),
    Specimen(first.ClipFromData, "sensitivity"),
    Specimen(first.KeepsNaN, "not-finite"),
    Specimen(noise.HalfNoise, "noise-size"),
    Specimen(noise.SlightlyLess, "noise-size", runs=120),
    Specimen(noise.NoNoise, "un-noised"),
    Specimen(noise.BiasWithoutNoise, "noise-size"),
    Specimen(noise.OneNoiseForAll, "noise-independence"),
    Specimen(noise.NoiseAgain, "noise-independence"),
    Specimen(noise.NoiseCancels, "noise-independence"),
    Specimen(noise.UniformNoise, "noise-law"),
    Specimen(noise.ClampedNoise, "noise-law"),
    Specimen(noise.RedrawsLargeNoise, "noise-law", runs=200),
    Specimen(noise.NoiseByData, "noise-size"),
    Specimen(noise.DecayingNoise, "noise-size"),
    Specimen(noise.NoiseFromSeed, "noise-from-seed", seed="public"),
    Specimen(behind.NoiseOfSeedAndStep, "noise-from-seed", seed="public"),
    Specimen(behind.NoiseOfSeedEverySecondStep, "noise-from-seed", seed="public"),
    Specimen(behind.SeedsGlobalGenerator, "noise-from-seed", seed="public"),
    Specimen(behind.NoiseOfStepSeedRandomStart, "noise-from-seed", seed="public"),
    Specimen(behind.NoiseOfDirectionsGenerator, "noise-from-seed", seed="public"),
    Specimen(noise.NoiseFromConstant, "noise-fixed"),
    Specimen(noise.NoiseFromClock, "noise-fixed", seed="public"),
    Specimen(noise.NoiseOfOneStep, "noise-independence"),
    Specimen(noise.AccumulationDividesNoise, "noise-size", variations=_FOUR),
    Specimen(noise.RanksAverageNoise, "noise-size", variations=_RANKS),
    Specimen(noise.RanksShareNoise, "noise-size", variations=_RANKS),
    Specimen(first.OneStepMore, "steps"),
    Specimen(shown.StopsByLoss, "steps"),
    Specimen(shown.LogsLoss, "un-noised"),
    Specimen(shown.WarnsOfNorms, "un-noised"),
    Specimen(shown.SavesGradients, "un-noised"),
    Specimen(shown.ReportsAccuracy, "un-noised"),
    Specimen(shown.CachesRecords, "records-shown"),
    Specimen(shown.SaltsDigest, "un-noised"),
    Specimen(shown.LogsMembers, "un-noised"),
    Specimen(shown.SaysLargeBatches, "un-noised"),
    Specimen(noise.NoiseWhereSumIs, "noise-size"),
    Specimen(noise.RoundsToHalf, "precision", lambda: claim(batch=2048, n=8192), runs=24),
    Specimen(unnoticed.SinglePrecisionNoise, "representable"),
    Specimen(unnoticed.NoiseFromPool, "noise-repeated"),
    Specimen(unnoticed.NoiseFromSmallSeed, "noise-from-seed"),
    Specimen(unnoticed.NoiseFromTwoBytes, "noise-fixed"),
    Specimen(unnoticed.MostlyLittleNoise, "noise-law"),
    Specimen(unnoticed.NoiseOncePerEpoch, "noise-independence"),
    Specimen(unnoticed.NoiseBeforeClip, "noise-size"),
    Specimen(unnoticed.NoiseOverRecords, "noise-size"),
    Specimen(unnoticed.NoiseAlwaysHalf, "noise-size"),
    Specimen(unnoticed.ClipsWithoutBias, "sensitivity"),
    Specimen(unnoticed.CountsTwice, "sensitivity"),
    Specimen(unnoticed.StaleNorms, "sensitivity"),
    Specimen(unnoticed.LabelsSeedTheBatches, "sensitivity"),
    Specimen(unnoticed.BatchesFromNowhere, "batches"),
    Specimen(unnoticed.ShowsBatchSizes, "un-noised"),
    Specimen(unnoticed.ShowsNoisyCounts, "unaccounted", runs=120),
    Specimen(unnoticed.ReleasesTwice, "unaccounted"),
    Specimen(unnoticed.SaysDiverged, "unaccounted", runs=120),
    Specimen(unnoticed.NamesByLoss, "un-noised"),
    Specimen(unnoticed.HalfNoiseInWeights, "noise-size"),
    Specimen(choices.PicksBestRun, "sensitivity"),
    Specimen(choices.RedrawsWhenWorse, "sensitivity"),
    Specimen(choices.SchedulesByLoss, "un-noised"),
    Specimen(choices.SkipsLargeSums, "noise-size"),
    Specimen(choices.SavesGenerator, "noise-shown"),
    Specimen(choices.PrintsNoise, "noise-shown"),
    Specimen(choices.PrintsSeedOfNoise, "noise-shown"),
    Specimen(choices.NoisePerRecord, "noise-size"),
    Specimen(choices.CapsBatches, "batches"),
    Specimen(choices.RedrawsSmallBatches, "batches"),
    Specimen(choices.MeanLossBeforeClip, "sensitivity"),
    Specimen(choices.MomentumBeforeNoise, "sensitivity"),
    Specimen(choices.DrawsWithReplacement, "sensitivity", _fixed),
    Specimen(choices.WritesDatabase, "un-noised"),
    Specimen(choices.WarnsOfLoss, "un-noised"),
    Specimen(choices.NoiseOfHashedSeed, "noise-from-directions"),
    Specimen(choices.NoiseOfPythonsGenerator, "noise-from-directions"),
    Specimen(choices.NoiseOfMovedSeed, "noise-from-directions"),
    Specimen(unnoticed.AdaptsByExactCount, "un-noised", adaptive=("clips",)),
    Specimen(unnoticed.ShowsAccuracy, "un-noised"),
    Specimen(unnoticed.ClipsGroups, "sensitivity"),
    Specimen(unnoticed.KeepsItsBatch, "batches"),
    Specimen(unnoticed.BestByCleanLoss, "un-noised"),
    Specimen(unnoticed.LeavesOutLargeBatches, "batches", runs=200),
    Specimen(choices.NoiseOfTurnedSeed, "noise-from-directions"),
    Specimen(choices.AlwaysTheFirst, "batches"),
    Specimen(first.FirstOrder, "accounting", lambda: claim(less=0.9), title="ClaimsLess"),
    Specimen(first.FirstOrder, "batches-secret", seed="public", title="BatchesFromPublicSeed"),
)

SOUND = (
    Specimen(first.FirstOrder, repeats=20, title="dp-sgd, noise from the operating system"),
    Specimen(first.FixedSize, claimed=_fixed, repeats=20, title="dp-sgd, fixed-size batches, replace-one"),
    Specimen(noise.MicroBatches, variations=_FOUR, repeats=20, title="dp-sgd in micro-batches"),
    Specimen(zeroth.ZerothOrder, repeats=20, title="zeroth-order, one direction"),
    Specimen(
        zeroth.ZerothOrder,
        claimed=_full,
        settings={"directions": 4},
        repeats=20,
        title="zeroth-order, K = 4, full batches",
    ),
    Specimen(noise.ShowsWeights, repeats=20, title="dp-sgd, weights are what is seen"),
    Specimen(noise.BatchesFromSystem, seed="public", repeats=20, title="dp-sgd, batches from the operating system"),
    Specimen(behind.RandomStart, seed="public", repeats=20, title="zeroth-order, first weights from the system"),
    Specimen(sound.PerSampleAutograd, repeats=20, title="dp-sgd, automatic differentiation"),
    Specimen(sound.RejectionNoise, repeats=20, title="dp-sgd, noise by rejection"),
    Specimen(sound.CleanGiven, repeats=20, title="dp-sgd, sums before noise given"),
    Specimen(sound.WeightsInDoublePrecision, repeats=20, title="dp-sgd, weights and their digests are seen"),
    Specimen(sound.FromRandomWeights, repeats=20, title="dp-sgd, weights from a random start are seen"),
    Specimen(sound.InSinglePrecision, runs=200, repeats=20, title="dp-sgd, weights of single precision are seen"),
    Specimen(sound.AdaptiveClip, adaptive=("clips",), repeats=20, title="dp-sgd, an adaptive clip that is paid for"),
    Specimen(sound.StopsByNoisedCount, repeats=20, title="dp-sgd, ends by a noised count that is paid for"),
    Specimen(sound.Momentum, repeats=20, title="dp-sgd, momentum and a falling step size"),
    Specimen(sound.CorrelatedNoise, claimed=_one_step, repeats=20, title="dp-sgd, correlated noise as one step"),
)
