"""Do the certificates hold, and how far are they from what runs do?  python -m benchmarks certificates

A certificate is an upper bound on the mean of ||grad F_S(x_tau)||^2, where tau is a uniformly random step. DPZero is
run on losses that satisfy Assumption 2, with four sets of parameters, and the measured mean is compared with the
certificate:

- paper: Theorem 3's own parameters, with the paper's calibration of the noise;
- paper-best: the best parameters of the paper's inequality, with the exact calibration;
- sharp: the best parameters of the sharpened theorem with one direction a step, with the exact calibration;
- sharp-best-k: the same with K directions a step, clipped jointly, and the K of the smallest bound.

All but the first may evaluate every record as often as the first, which means as many directions in all as the first
has steps. If even those are too many to run, `max_steps` caps them, and the paper's own parameters are certified but
not run. The preset `directions` is the paper's setting with ten times its evaluations, 46,720 of each record. The
preset `low-rank` runs the last two with directions of low rank (`low-rank` and `low-rank-best-k`), for weights that
are as square a matrix as d allows. Runs start at 0. Directions, noise and data come from seeds, and the data are
synthetic or public: nothing here is a private release.
"""

import math
import os
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.remake import Remake, Row
from benchmarks.kit.rows import OK, RESULTS
from benchmarks.problems import nonlinear
from benchmarks.problems.lipschitz import LogisticRegression, PseudoHuber
from benchmarks.problems.minimise import minimised
from benchmarks.problems.sentences import hashed_words, sst2
from dpzero_theory.cli import integer
from dpzero_theory.datasets import binary_digits
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.synthetic.lanes import Draw, Lanes, directions_of
from dpzero_theory.synthetic.problems import gaussian_data, paper_spectrum
from dpzero_theory.theory.noise import paper_gdp
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.sharp import certificate as sharp
from dpzero_theory.theory.theorems import Inequality, displayed

DELTA = 1e-6
SENTENCES = Path(__file__).parents[2] / "shared" / "data" / "sst2_train.tsv"
SENTENCE_FEATURES = 1 << 14
LARGE = 10_000
"""From this number of samples on, runs are made in float32, which changes the measured values by a share of less than
1e-4."""
ONE = ("paper", "paper-best", "sharp")
PARAMETERS = (*ONE, "sharp-best-k")
SHARP: dict[str, tuple[int | str, str]] = {
    "sharp": (1, "sphere"),
    "sharp-best-k": ("best", "sphere"),
    "low-rank": (1, "low-rank"),
    "low-rank-best-k": ("best", "low-rank"),
}
"""The names of the parameter sets of the sharpened theorem, each with its number K of directions per step and their
law."""
LANE = ("steps", "step_size", "smoothing", "clip", "noise_std")
KEY = ("problem", "mode", "n", "d", "epsilon", "parameters", "seed")
FIELDS = (
    *("r", "lipschitz", "smoothness", "gap", "loss_bound", "delta", "relation", "calibration", "gdp"),
    *("step_size", "steps", "directions_per_step", "smoothing", "clip", "noise_std"),
    *("bound", "sharp_bound", "trivial_bound"),
    *("gradient_squared", "last_gradient_squared", "dtype", "seconds"),
)

Loss = PseudoHuber | LogisticRegression


@dataclass(frozen=True)
class CertificateCell:
    """One data set, the epsilons, and the names of the parameter sets to run on it.

    `mode` is the spectrum (a, b or c) of the synthetic data, and empty for logistic regression. `max_steps`, if given,
    caps the number of directions in all.
    """

    problem: str
    mode: str
    n: int
    d: int
    epsilons: tuple[float, ...]
    max_steps: int | None = None
    parameters: tuple[str, ...] = PARAMETERS

    def shares(self) -> list[tuple[str, ...]]:
        """Return the names of the parameter sets in groups whose runs are computed together. Those with one direction
        per step are one group, which comes first (empty if there are none) and shares its random numbers; each of the
        others is a group of its own."""
        one = tuple(name for name in self.parameters if name in ONE)
        return [one, *((name,) for name in self.parameters if name not in ONE)]

    def rows(self, seed: int, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the key columns of this cell's rows for the parameter sets `names`, one row for each of them and
        each epsilon."""
        for epsilon in self.epsilons:
            for name in names:
                values = (self.problem, self.mode or "-", self.n, self.d, epsilon, name, seed)
                yield dict(zip(KEY, values, strict=True))


def _pseudo_huber(mode: str, n: int, *dimensions: int, epsilons: Sequence[float] = (2.0,)) -> list[CertificateCell]:
    return [CertificateCell("pseudo-huber", mode, n, d, tuple(epsilons)) for d in dimensions]


_FULL = [
    *_pseudo_huber("a", 10_000, 20, 200, epsilons=(0.5, 2.0)),
    *_pseudo_huber("b", 10_000, 20, epsilons=(0.5, 2.0, 8.0)),
    *_pseudo_huber("b", 10_000, 200, epsilons=(0.5, 2.0)),
    *_pseudo_huber("c", 10_000, 20, epsilons=(0.5, 2.0)),
    *_pseudo_huber("c", 10_000, 200, epsilons=(0.5, 2.0, 8.0)),
    CertificateCell("digits", "", 1_797, 65, (0.5, 2.0, 8.0)),
    *_pseudo_huber("a", 1_000, 20, 200, 2_000, epsilons=(8.0,)),
    *_pseudo_huber("b", 1_000, 20, 200, 2_000, 20_000, epsilons=(8.0,)),
    *_pseudo_huber("c", 1_000, 20, 200, 2_000, 20_000, 100_000, epsilons=(8.0,)),
    *_pseudo_huber("c", 1_000, 20, 200, epsilons=(2.0,)),
    *_pseudo_huber("b", 10_000, 2_000),
    *_pseudo_huber("c", 10_000, 2_000),
    CertificateCell("sst2", "", 60_614, SENTENCE_FEATURES, (0.1, 0.5)),
    *_pseudo_huber("c", 100_000, 20, epsilons=(0.2, 2.0)),
    *_pseudo_huber("c", 1_000_000, 20, epsilons=(0.01,)),
    CertificateCell("pseudo-huber", "c", 1_000_000, 20, (2.0,), max_steps=2_000),
]
_SMOKE = [*_pseudo_huber("c", 1_000, 20, 200), CertificateCell("digits", "", 1_797, 65, (2.0,))]
_DIRECTIONS = [CertificateCell("pseudo-huber", "c", 10_000, 2_000, (2.0,), 46_720, PARAMETERS[2:])]
_LOW_RANK = [
    replace(cell, parameters=("low-rank", "low-rank-best-k"))
    for cell in (
        *(cell for mode in "abc" for cell in _pseudo_huber(mode, 1_000, 20, 200, epsilons=(8.0,))),
        *_pseudo_huber("c", 1_000, 2_000, epsilons=(8.0,)),
        *_pseudo_huber("c", 10_000, 20, epsilons=(0.5, 2.0)),
        CertificateCell("digits", "", 1_797, 65, (0.5, 2.0, 8.0)),
    )
]
PRESETS = {"smoke": _SMOKE, "full": _FULL, "directions": _DIRECTIONS, "low-rank": _LOW_RANK}
FOLDERS = {
    "smoke": Path("out") / "certificates",
    "full": RESULTS / "certificates",
    "directions": RESULTS / "certificates_directions",
    "low-rank": RESULTS / "certificates_low_rank",
}


@lru_cache(maxsize=1)
def _loss(problem: str, mode: str, n: int, d: int) -> Loss:
    if problem == "pseudo-huber":
        return PseudoHuber(gaussian_data(np.random.default_rng([n, d]), n, d), paper_spectrum(mode, d))
    if problem == "digits":
        return LogisticRegression(*binary_digits())
    sentences, labels = sst2(SENTENCES)
    return LogisticRegression(hashed_words(sentences, d), labels)


def prescriptions(
    problem: Problem, epsilon: float, max_steps: int | None = None, names: Sequence[str] = PARAMETERS
) -> dict[str, tuple[str, Prescription]]:
    """Return for each parameter set in `names` the name of its noise calibration ("paper" or "exact") and its
    prescription. `problem` has the constants of the loss, and epsilon is the budget at delta DELTA. max_steps is the
    largest number of steps times directions per step, for all sets but "paper"; None for the number of steps of the
    paper's parameters."""
    found: dict[str, tuple[str, Prescription]] = {}
    exact = float(gdp_from_epsilon(epsilon, DELTA))
    paper = displayed("theorem-3", problem, float(paper_gdp(epsilon, DELTA)))
    cap = paper.steps if max_steps is None else max_steps
    for name in names:
        if name == "paper":
            found[name] = "paper", paper
        elif name == "paper-best":
            inequality = Inequality.of("theorem-3", problem, exact)
            found[name] = "exact", minimised(inequality, displayed("theorem-3", problem, exact), max_steps=cap)
        else:
            k, law = SHARP[name]
            found[name] = (
                "exact",
                sharp.prescribe(problem, exact, max_evaluations=cap * problem.n, directions_per_step=k, direction=law),
            )
    return found


def _directions(law: str, rng: np.random.Generator, d: int) -> Draw:
    """Return a stream of directions in R^d. For low-rank, the d weights are a matrix, as square as d allows."""
    if law != "low-rank":
        return directions_of(law, rng, d)
    m = max(i for i in range(1, math.isqrt(d) + 1) if d % i == 0)

    def signs(*shape: int) -> Any:
        return 2 * rng.integers(0, 2, shape, dtype=np.int8).astype(np.float64) - 1

    return lambda count: (signs(count, m, 1) * signs(count, 1, d // m)).reshape(count, d)


def run_cell(cell: CertificateCell, seed: int, names: Sequence[str] = ONE) -> list[dict[str, Any]]:
    """Return the rows of one cell and seed for the parameter sets `names` (one of the groups that
    `CertificateCell.shares` returns) and all epsilons of the cell. Runs with the same number of directions per step
    share their random numbers. Runs that need more evaluations than the cell's cap allows are certified, but not made.
    """
    started = time.perf_counter()
    loss = _loss(cell.problem, cell.mode, cell.n, cell.d)
    x0 = np.zeros(loss.d)
    constants = Problem(
        n=loss.n,
        d=loss.d,
        r=loss.r,
        lipschitz=loss.lipschitz,
        smoothness=loss.smoothness,
        gap=loss.gap(x0),
        loss_bound=max(loss.loss(x0), 1.0),
    )
    rows = []
    for key in cell.rows(seed, names):
        name = key["parameters"]
        calibration, chosen = prescriptions(constants, key["epsilon"], cell.max_steps, [name])[name]
        at = {name: getattr(chosen, name) for name in (*LANE, "directions_per_step")}
        fields = {name: getattr(constants, name) for name in ("r", "lipschitz", "smoothness", "gap", "loss_bound")}
        rows.append(
            {
                **key,
                **fields,
                **at,
                "delta": DELTA,
                "relation": "replace-one",
                "calibration": calibration,
                "gdp": chosen.gdp,
                "bound": chosen.bound,
                "sharp_bound": sharp.certificate(constants, **at, direction=chosen.direction).bound,
                "trivial_bound": chosen.trivial_bound,
            }
        )
    dtype = "float32" if loss.n >= LARGE else "float64"
    for k in sorted({row["directions_per_step"] for row in rows}):
        part = [row for row in rows if row["directions_per_step"] == k]
        part = [row for row in part if cell.max_steps is None or row["steps"] * k <= cell.max_steps]
        stream = [] if names[-1] in ONE else [k]
        law = SHARP.get(names[-1], (1, "sphere"))[1]
        directions, noise, picks = (np.random.default_rng([seed, number, *stream]) for number in range(3))
        outcome = nonlinear.dpzero(
            loss,
            x0,
            Lanes.of(**{name: [row[name] for row in part] for name in LANE}),
            directions=_directions(law, directions, loss.d),
            noise=noise.standard_normal,
            rng=picks,
            directions_per_step=k,
            dtype=getattr(torch, dtype),
        )
        for row, mean, last in zip(part, outcome.gradient_squared, outcome.last_gradient_squared, strict=True):
            row["gradient_squared"], row["last_gradient_squared"] = float(mean), float(last)
    for row in rows:
        row["dtype"] = dtype
        row["seconds"] = round(time.perf_counter() - started, 2)
        for name in ("bound", "sharp_bound"):
            if not math.isfinite(row[name]):
                row[name] = None
    return rows


def _again(preset: str, row: Row) -> list[dict[str, Any]]:
    """Make a committed row of a preset again, with all rows that were run together with it."""
    key = {name: row[name] for name in KEY}
    shares = ((cell, share) for cell in PRESETS[preset] for share in cell.shares())
    return next(
        (run_cell(cell, key["seed"], names) for cell, names in shares if key in cell.rows(key["seed"], names)), []
    )


# Parameters are minimised to about 1e-8, and some runs are in float32. The iterates at which the mean is estimated were
# drawn in another way when the oldest rows were made, so that the mean itself is not compared.
REMAKES = {
    FOLDERS[name].name: Remake(KEY, partial(_again, name), varies=("seconds", "gradient_squared"), tolerance=1e-3)
    for name in ("full", "directions", "low-rank")
}

Share = tuple[CertificateCell, int, tuple[str, ...]]
"""One piece of work: a data set with its epsilons, a seed, and the names of the parameter sets that are run
together."""


def _shares(options: Namespace) -> Iterator[Share]:
    cells = PRESETS[options.preset]
    if not SENTENCES.exists():
        cells = [cell for cell in cells if cell.problem != "sst2"]
        print(f"without SST-2: {SENTENCES.name} is not there")
    return ((cell, seed, names) for cell in cells for names in cell.shares() for seed in range(options.seeds))


def _measure(options: Namespace, share: Share) -> list[dict[str, Any]]:
    return run_cell(*share)


def _told(share: Share, rows: list[dict[str, Any]]) -> str:
    cell, seed, names = share
    note = next((row["status"] for row in rows if row.get("status", OK) != OK), OK)
    return f"{cell.problem} {cell.mode} n={cell.n} d={cell.d} seed={seed} {names[-1]}: {note}"


EXPERIMENT = Experiment(
    name="certificates",
    about=__doc__,
    flags=[flag("--preset", choices=PRESETS, default="smoke"), flag("--seeds", type=integer(1, 1000), default=5)],
    folder=lambda options: FOLDERS[options.preset],
    key=KEY,
    fields=FIELDS,
    seeds=lambda options: range(options.seeds),
    dtype="float64, and float32 where a row says so",
    settings={
        "x0": "zero",
        "noise": "seeded: no row is a private release",
        "directions": "sphere, or the law in the name of the parameters",
    },
    workers=os.cpu_count() or 1,
    tolerant=True,
    cells=_shares,
    keys=lambda options, share: share[0].rows(*share[1:]),
    measure=_measure,
    told=_told,
)
