"""DPZero by each difference rule, at equal evaluations of a record's loss.  python -m benchmarks.difference_rules

The loss is pseudo-Huber with spectrum (c); relation replace-one, delta 1e-6, full batches, starting at 0. Runs end when
every record's loss has been evaluated `points` times (a derivative counts as one evaluation, though it takes the time
of one to two). Clip, noise, smoothing and step size are those of the sharpened theorem for the rule, the law of the
directions, their number K and `points`; `factor` multiplies the step size, and `bound` is the certificate of the
parameters that are run. `best_k` is the theorem's K of the smallest certificate. There are two places:

- certificates (n = 1,000, d = 200, epsilon 8): every rule with every law of the directions, K = 1 and K = best_k. The
measured means are to be below the certificates.
- comparison (n = 10,000, d = 2,000, epsilon 2, 9,344 evaluations): the sphere, K = best_k, and a grid of the factor.
Seed 0 also runs K = best_k/2, rounded down, and K = 2 best_k with central and forward differences.

Directions, noise and data come from seeds: nothing here is a private release.
"""

import math
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.remake import Remake, Row
from benchmarks.kit.rows import RESULTS
from benchmarks.problems import nonlinear
from benchmarks.problems.lipschitz import PseudoHuber
from dpzero_theory.cli import integer
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.synthetic.data import gaussian_data
from dpzero_theory.synthetic.lanes import Lanes
from dpzero_theory.synthetic.problems import paper_spectrum
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import certificate, prescribe

DELTA = 1e-6
LAWS = ("sphere", "gaussian", "rademacher", "frame")
FACTORS = (1.0, 2.0, 4.0)
"""The multiples of the theorem's step size that the comparison tries."""
KEY = ("place", "difference", "law", "K", "factor", "seed")
FIELDS = (
    *("n", "d", "epsilon", "points", "best_k", "steps", "step_size", "smoothing", "clip", "noise_std", "bound"),
    *("gradient_squared", "last_gradient_squared", "seconds"),
)


@dataclass(frozen=True)
class Place:
    """The size of the data, n records in d dimensions; the budget `epsilon` at DELTA; and `points`, the largest number
    of evaluations of each record's loss in a run."""

    n: int
    d: int
    epsilon: float
    points: int


PLACES = {"certificates": Place(1_000, 200, 8.0, 1_000), "comparison": Place(10_000, 2_000, 2.0, 9_344)}
FOLDERS = {
    "certificates": RESULTS / "difference_rules_certificates",
    "comparison": RESULTS / "difference_rules",
}


@lru_cache(maxsize=1)
def _loss(place: Place) -> tuple[PseudoHuber, Problem]:
    """Return the pseudo-Huber loss on data of the place's size, and its constants for runs that start at 0."""
    data = gaussian_data(np.random.default_rng([place.n, place.d]), place.n, place.d)
    loss = PseudoHuber(data, paper_spectrum("c", place.d))
    gap = loss.gap(np.zeros(loss.d))
    return loss, Problem(n=loss.n, d=loss.d, r=loss.r, lipschitz=loss.lipschitz, smoothness=loss.smoothness, gap=gap)


@lru_cache(maxsize=256)
def _at(place: Place, difference: str, law: str, k: int | str) -> Any:
    """Return the sharpened theorem's prescription at a place for a difference rule and a law of the directions, with k
    of them a step, or the best number of them if k is "best"."""
    return prescribe(
        _loss(place)[1],
        float(gdp_from_epsilon(place.epsilon, DELTA)),
        max_points=place.points * place.n,
        direction=law,
        directions_per_step=k,
        difference=difference,
    )


def measured(name: str, difference: str, law: str, k: int | str, seed: int) -> list[dict[str, Any]]:
    """Make runs by a difference rule, with K directions of a law, and return a row for every factor of the step size,
    all with the same directions and noise.

    name: one of PLACES. difference: "central", "forward" or "exact". law: of the directions. k: the directions a step,
    or "best". seed: draws directions and noise; the data of a place are always the same.
    """
    started = time.perf_counter()
    place = PLACES[name]
    loss, problem = _loss(place)
    chosen = _at(place, difference, law, k)
    factors = FACTORS if name == "comparison" else (1.0,)
    several = chosen.directions_per_step
    lane = {"steps": chosen.steps, "clip": chosen.clip, "noise_std": chosen.noise_std}
    step_sizes = [factor * chosen.step_size for factor in factors]
    directions, noise, picks = (np.random.default_rng([seed, number, several]) for number in range(3))
    outcome = nonlinear.dpzero(
        loss,
        np.zeros(loss.d),
        Lanes.of(step_size=step_sizes, smoothing=chosen.smoothing or 1.0, **lane),
        directions=nonlinear.directions_of(law, directions, loss.d, several),
        noise=noise.standard_normal,
        rng=picks,
        directions_per_step=several,
        difference=difference,
        dtype=torch.float32 if place.n >= 10_000 else torch.float64,
    )
    seconds = round(time.perf_counter() - started, 2)
    best = chosen if k == "best" else _at(place, difference, law, "best")
    rows = []
    for i, factor in enumerate(factors):
        bound = certificate(
            problem,
            step_size=step_sizes[i],
            smoothing=chosen.smoothing,
            direction=law,
            directions_per_step=several,
            difference=difference,
            **lane,
        ).bound
        rows.append(
            {
                **{"place": name, "difference": difference, "law": law, "K": several, "factor": factor, "seed": seed},
                **{"n": place.n, "d": place.d, "epsilon": place.epsilon, "points": place.points},
                **{"best_k": best.directions_per_step, "step_size": step_sizes[i], "smoothing": chosen.smoothing},
                **lane,
                "bound": bound if math.isfinite(bound) else None,
                "gradient_squared": float(outcome.gradient_squared[i]),
                "last_gradient_squared": float(outcome.last_gradient_squared[i]),
                "seconds": seconds,
            }
        )
    return rows


Cell = tuple[str, str, str, int, int]
"""A place, a difference rule, a law of directions, K, and a seed."""


def _cells(options: Namespace) -> Iterator[Cell]:
    place = options.place
    for seed in range(options.seeds):
        for rule in DIFFERENCES:
            for law in LAWS if place == "certificates" else ["sphere"]:
                best = _at(PLACES[place], rule, law, "best").directions_per_step
                tried = {1, best} if place == "certificates" else {best}
                yield from ((place, rule, law, k, seed) for k in sorted(tried))
    if place == "comparison":
        for rule in ("central", "forward"):
            best = _at(PLACES[place], rule, "sphere", "best").directions_per_step
            yield from ((place, rule, "sphere", k, 0) for k in (best // 2, 2 * best))


def _keys(options: Namespace, cell: Cell) -> Iterator[dict[str, Any]]:
    place, rule, law, k, seed = cell
    for factor in FACTORS if place == "comparison" else (1.0,):
        yield dict(zip(KEY, (place, rule, law, k, factor, seed), strict=True))


def _again(row: Row) -> list[dict[str, Any]]:
    return measured(row["place"], row["difference"], row["law"], row["K"], row["seed"])


REMAKES = {
    folder.name: Remake(
        KEY,
        _again,
        varies=("seconds",),
        tolerance=1e-6,
        why="parameters are minimised to about 1e-8",
        elsewhere=1e-3,  # on another machine: runs are in float32, whose last digits depend on the libraries
    )
    for folder in FOLDERS.values()
}


def _measure(options: Namespace, cell: Cell) -> list[dict[str, Any]]:
    return measured(*cell)


EXPERIMENT = Experiment(
    name="difference_rules",
    about=__doc__,
    flags=[
        flag("--seeds", type=integer(1, 1000), default=5),
        flag("--place", choices=PLACES, default="comparison", help="default: comparison"),
    ],
    folder=lambda options: FOLDERS[options.place],
    key=KEY,
    fields=FIELDS,
    seeds=lambda options: range(options.seeds),
    dtype="float64, and float32 in the comparison",
    settings={"x0": "zero", "noise": "seeded: no row is a private release"},
    cells=_cells,
    keys=_keys,
    workers=1,
    measure=_measure,
    told=lambda cell, rows: " ".join(map(str, cell)),
)
