"""Audit DPZero and DPGD-0th, and four ways to break them, by empirical lower bounds on their privacy.

    python -m benchmarks.audit [--quick] [--out DIR]

The reference algorithms of `dpzero_theory.optim` are audited with full batches, relation replace-one, and the noise
that the exact calibration gives for (epsilon, delta); and then with one fault each:

- no-noise: the noise is 0;
- seed-noise: the noise comes from a generator seeded with the public seed of the directions;
- batch-clip: the mean of the differences is clipped, instead of each difference;
- half-sigma: the standard deviation of the noise is half of what it should be.

The auditor sees the directions and every iterate, and knows the code and all other records. `attack`: one canary (a
record made to be noticed) among real records, many short runs, likelihood ratios. `one-run`: every record is a canary,
one long run, ridge regression of the canaries' signs on the releases. A row has a lower bound on epsilon and one on mu,
and both hold at confidence 97.5%. So a sound algorithm is flagged, by either bound above the claim, with probability at
most 5%. The sound ones are audited 20 times.
"""

import time
from argparse import Namespace
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, stats

from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.remake import Remake, Row
from benchmarks.kit.rows import read_rows
from dpzero_theory.audit.bounds import Mechanism, attack, one_run
from dpzero_theory.optim.step.estimator import clip_scalars, two_point_difference
from dpzero_theory.privacy.gaussian import gdp_from_epsilon, noise_std
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.sphere import sample_sphere
from tests.optim.reference import dpgd_0th, dpzero

Array = NDArray[np.float64]

ALGORITHMS = {"dpzero": dpzero, "dpgd-0th": dpgd_0th}
VARIANTS = ("sound", "no-noise", "seed-noise", "batch-clip", "half-sigma")
KEY = ("audit", "algorithm", "variant", "repetition")
DELTA, CONFIDENCE, REPETITIONS = 1e-5, 0.975, 20
CLIP, STEP_SIZE, SMOOTHING, SLOPE = 1.0, 0.01, 1e-3, 10.0


@dataclass(frozen=True)
class AuditSetting:
    """The size of the problem that is audited, and the privacy that is claimed for it.

    n is the number of records, and the first `canaries` of them are canaries (records made to be noticed). Their losses
    are linear in the weights, of which there are d >= canaries. epsilon is claimed for all `steps` together, with delta
    = 1e-5.
    """

    n: int
    canaries: int
    d: int
    steps: int
    epsilon: float

    @cached_property
    def gdp(self) -> float:
        return float(gdp_from_epsilon(self.epsilon, DELTA))

    @cached_property
    def noise_std(self) -> float:
        return noise_std(self.gdp, self.steps, CLIP, self.n, "replace-one")

    @cached_property
    def centres(self) -> Array:
        """The records that are not canaries, as points of shape (n - canaries, d)."""
        return np.random.default_rng(0).normal(size=(self.n - self.canaries, self.d))


ATTACK = AuditSetting(n=10, canaries=1, d=8, steps=4, epsilon=2.0)
ONE_RUN = AuditSetting(n=2_000, canaries=2_000, d=2_000, steps=12_000, epsilon=3.0)
GUESSES = 300
"""The number of canaries whose sign the one-run audit guesses. With 300 guesses, a simulation with normal scores flags
the fault half-sigma with probability above 99%."""


class Canaries:
    """The losses of all records at the weights x: signs_i * SLOPE * x_i for the i-th canary, |x - c_i|^2/2 for every
    other record with centre c_i. `signs` are the secrets +1 or -1 that the audit guesses."""

    def __init__(self, setting: AuditSetting, signs: NDArray[np.int64]) -> None:
        self.n, self.d = setting.n, setting.d
        self._slopes = SLOPE * signs
        self._centres = setting.centres

    def losses(self, x: Array) -> Array:
        canaries = self._slopes * x[: len(self._slopes)]
        return np.concatenate([canaries, 0.5 * ((x - self._centres) ** 2).sum(axis=1)])


class Reduced:
    """A problem with a single loss: the mean of the losses of `problem`. An algorithm that clips it clips the mean
    instead of each record's term, which is the fault batch-clip."""

    n = 1

    def __init__(self, problem: Canaries) -> None:
        self.d, self._problem = problem.d, problem

    def losses(self, x: Array) -> Array:
        return np.array([self._problem.losses(x).mean()])


@dataclass(frozen=True)
class Audited:
    """An algorithm to audit: a name of ALGORITHMS, the variant ("sound" or the name of a fault), and the problem's
    setting."""

    algorithm: str
    variant: str
    setting: AuditSetting

    def problem(self, signs: NDArray[np.int64]) -> Canaries | Reduced:
        problem = Canaries(self.setting, signs)
        return Reduced(problem) if self.variant == "batch-clip" else problem

    def run(self, signs: NDArray[np.int64], public_seed: int, secret_seed: int) -> tuple[Array, Array, Array]:
        """Run the algorithm on canaries with these signs. The public seed draws the directions, the secret one the
        noise.

        Returns all that is public: the directions (T, d) of the T steps, the iterates (T, d) at which they begin, and
        the releases along the directions (T,).
        """
        setting = self.setting
        directions = sample_sphere(np.random.default_rng(public_seed), setting.steps, setting.d)
        sigma = setting.noise_std * {"no-noise": 0.0, "half-sigma": 0.5}.get(self.variant, 1.0)
        trajectory = ALGORITHMS[self.algorithm](
            self.problem(signs),
            np.zeros(setting.d),
            steps=setting.steps,
            step_size=STEP_SIZE,
            smoothing=SMOOTHING,
            clip=CLIP,
            noise_std=sigma,
            noise=SeededNoise(public_seed if self.variant == "seed-noise" else secret_seed),
            directions=directions,
            rng=np.random.default_rng(public_seed),
        ).trajectory
        assert trajectory is not None
        moves = np.einsum("td,td->t", np.diff(trajectory, axis=0), directions)
        releases: Array = -moves / (STEP_SIZE * self.length)
        if self.variant == "seed-noise":
            releases -= self._replayed(sigma, public_seed, directions)
        return directions, trajectory[:-1], releases

    @property
    def length(self) -> float:
        """The number by which <x_t - x_{t+1}, u_t>/alpha is divided so that the release has the noise's standard
        deviation as its unit. Here x_t are the iterates, u_t the directions, and alpha is the step size."""
        return self.setting.d if self.algorithm == "dpzero" else float(np.sqrt(self.setting.d))

    def _replayed(self, sigma: float, public_seed: int, directions: Array) -> Array:
        """Return the noise of the fault seed-noise, one number a step: it comes from the public seed, so anyone can
        draw it again. sigma is its standard deviation. `directions` are those of the run's steps."""
        noise = SeededNoise(public_seed)
        if self.algorithm == "dpzero":
            return np.array([noise.gaussian(sigma) for _ in directions])
        return np.array([noise.gaussian(sigma, u.size) @ u for u in directions]) / self.length

    def contributions(self, problem: Canaries | Reduced, x: Array, u: Array) -> Array:
        """Return the clipped terms of all records, whose mean is released at the iterate x along the direction u.
        `problem` has the losses of the records."""
        plus, minus = problem.losses(x + SMOOTHING * u), problem.losses(x - SMOOTHING * u)
        # a record's difference is clipped as a scalar (d/length = 1) or times u as a vector (d/length = ||u||)
        factor = self.setting.d / self.length
        return clip_scalars(factor * two_point_difference(plus, minus, SMOOTHING), CLIP)


def attacker(audited: Audited, seed: int) -> Mechanism:
    """Return the auditor that makes many runs with one canary: a function from the canary's sign to the score of one
    run. `audited` is the algorithm that is attacked.

    The score is the log-likelihood ratio of the releases for the signs +1 and -1, times 2 sigma^2, with sigma the
    noise's standard deviation. `seed` draws the seeds of the runs.
    """
    seeds = np.random.default_rng(seed)
    worlds = [audited.problem(np.array([sign])) for sign in (1, -1)]

    def mechanism(signs: NDArray[np.int64]) -> Array:
        public_seed, secret_seed = (int(s) for s in seeds.integers(2**62, size=2))
        directions, iterates, releases = audited.run(signs, public_seed, secret_seed)
        means = np.array(
            [
                [audited.contributions(world, x, u).mean() for world in worlds]
                for x, u in zip(iterates, directions, strict=True)
            ]
        )
        distances = ((releases[:, None] - means) ** 2).sum(axis=0)
        return np.array([distances[1] - distances[0]])

    return mechanism


def decoder(audited: Audited, seed: int) -> Mechanism:
    """Return the auditor that makes one run in which every record is a canary: a function from the canaries' signs to
    their scores. A score is a ridge regression of the sign on the releases, the Bayes estimate if the signs were
    normal. `seed` draws the seeds of the run. `audited` is the algorithm that is attacked."""
    setting = audited.setting
    public_seed, secret_seed = (int(s) for s in np.random.default_rng(seed).integers(2**62, size=2))

    def mechanism(signs: NDArray[np.int64]) -> Array:
        directions, _, releases = audited.run(signs, public_seed, secret_seed)
        weights = SLOPE * (setting.d / audited.length) * directions[:, : setting.canaries]
        if audited.variant != "batch-clip":
            np.clip(weights, -CLIP, CLIP, out=weights)
        weights /= setting.n
        exact = audited.variant in ("no-noise", "seed-noise")
        gram = weights.T @ weights + np.eye(setting.canaries) * (1e-12 if exact else setting.noise_std**2)
        scores: Array = linalg.solve(gram, weights.T @ releases, assume_a="pos")
        return scores

    return mechanism


def audit_row(kind: str, audited: Audited, seed: int, runs: int) -> dict[str, float | int]:
    """Audit an algorithm once and return the bounds on epsilon and mu, with the counts that they were computed from.
    kind is "attack" (`runs` runs with one canary) or "one-run" (a single run; `runs` is not used)."""
    if kind == "attack":
        found = attack(attacker(audited, seed), runs=runs, delta=DELTA, confidence=CONFIDENCE)
        return {"runs": runs, "epsilon": found.epsilon, "gdp": found.gdp}
    once = one_run(
        decoder(audited, seed),
        canaries=audited.setting.canaries,
        guesses=GUESSES,
        delta=DELTA,
        confidence=CONFIDENCE,
        rng=np.random.default_rng([seed, 1]),
    )
    counts = {"runs": 1, "canaries": once.canaries, "guesses": once.guesses, "correct": once.correct}
    return {**counts, "epsilon": once.epsilon, "gdp": once.gdp}


def flagged(row: dict[str, float | int], setting: AuditSetting) -> bool:
    return row["epsilon"] > setting.epsilon or row["gdp"] > setting.gdp


def _jobs(quick: bool) -> list[tuple[str, str, str, int, int]]:
    """Return the audits to make, as (kind of audit, algorithm, variant, number of the repetition, number of runs).
    `quick` sets the number of runs to 2,000."""
    jobs = []
    for algorithm in ALGORITHMS:
        for variant in VARIANTS:
            for kind in ("attack", "one-run"):
                repetitions = REPETITIONS if variant == "sound" else 1
                runs = 100_000 if variant == "half-sigma" else 10_000
                jobs += [(kind, algorithm, variant, k, 2_000 if quick else runs) for k in range(repetitions)]
    return jobs


def _summary(folder: Path) -> int:
    """Print for each kind of audit, algorithm and variant how many audits flagged it. Returns how many of these are
    wrong: a fault that an audit missed, or a sound algorithm that was flagged more often than CONFIDENCE allows."""
    table = read_rows(folder)
    limit = int(stats.binom.isf(0.01, REPETITIONS, 2 * (1 - CONFIDENCE)))
    failures = 0
    for (kind, algorithm, variant), rows in table.groupby(["audit", "algorithm", "variant"], sort=False):
        count = int((rows["flagged"] == "yes").sum())
        good = count <= limit if variant == "sound" else count == len(rows)
        failures += not good
        claim = rows.iloc[0]
        print(
            f"{kind:8} {algorithm:9} {variant:10} flagged {count}/{len(rows)}  "
            f"epsilon >= {rows['epsilon'].max():6.3f} (claimed {claim['claimed_epsilon']:g})  "
            f"mu >= {rows['gdp'].max():6.3f} (claimed {claim['claimed_gdp']:.3f})  "
            f"{'ok' if good else 'FAILED'}"
        )
    print(f"sound: at most {limit} of {REPETITIONS} flagged is within the nominal rate (99%)")
    return failures


def _outcome(kind: str, algorithm: str, variant: str, repetition: int, runs: int) -> dict[str, float | int | str]:
    """Make one audit and return the columns of its row without the key: what is claimed, the bounds found, whether the
    algorithm is flagged, and the seconds taken. kind is "attack" or "one-run", the seed is the number of the
    repetition, and `runs` is the number of runs of an attack."""
    setting = {"attack": ATTACK, "one-run": ONE_RUN}[kind]
    start = time.perf_counter()
    row = audit_row(kind, Audited(algorithm, variant, setting), repetition, runs)
    return {
        "claimed_epsilon": setting.epsilon,
        "claimed_gdp": setting.gdp,
        **row,
        "flagged": "yes" if flagged(row, setting) else "no",
        "wall_s": round(time.perf_counter() - start, 3),
    }


def _again(row: Row) -> list[Row]:
    kind, algorithm, variant, repetition = (row[name] for name in KEY)
    return [{name: row[name] for name in KEY} | _outcome(kind, algorithm, variant, repetition, row["runs"])]


REMAKES = {"audit": Remake(KEY, _again, varies=("wall_s",))}


def _report(options: Namespace) -> int:
    return 1 if _summary(options.out) else 0


EXPERIMENT = Experiment(
    name="audit",
    about=__doc__,
    flags=[flag("--quick", action="store_true", help="attacks of 2,000 runs")],
    key=KEY,
    fields=(
        *("claimed_epsilon", "claimed_gdp", "runs", "canaries", "guesses", "correct"),
        *("epsilon", "gdp", "flagged", "wall_s"),
    ),
    seeds=range(REPETITIONS),
    settings=lambda options: {"delta": DELTA, "confidence": CONFIDENCE, "quick": options.quick},
    cells=lambda options: (dict(zip((*KEY, "runs"), job, strict=True)) for job in _jobs(options.quick)),
    measure=lambda options, at: _outcome(*(at[name] for name in (*KEY, "runs"))),
    report=_report,
)
