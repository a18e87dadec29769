"""Sweeps in which only one thing varies: the dimension, the rank, the law of the directions, the axes or K.

    python -m benchmarks.rank

The loss is quadratic with eigenvalues 1, 1/2, ..., 1/p and a tail of equal tiny eigenvalues whose trace is 1/2,
whatever d is. So the effective rank r and F_S(x_0) - F_S^* stay as they are while d goes from 10^2 to 10^7
(`problems.padded`, which is exact at no cost in d). The experiments are:

- dimension: r = 5.0 (p = 50), d from 10^2 to 10^7, DPZero and DPGD-0th; beyond (only if asked for): d = 10^8;
- log: the paper's mode (c), in which r grows like log d: eigenvalues 1/i up to the 999th, the others equal with the
same trace;
- rank: d = 10^4, r from 1.5 to 8.0 (p from 1 to 1,000);
- law: d = 200, r = 5.0, directions from the sphere, Gaussian, and random signs;
- rotated: the same with the Hessian A turned by a random orthogonal matrix;
- directions: d = 10^4, r = 5.0, DPZero with K = 1 to 64 directions a step and as many evaluations.

There are n = 1,000 samples, each standing for `--records` equal records, so that the noise is that of n = 1,000 times
as many. Runs are (2, 1e-6)-DP with exact calibration and start at 0. There is one row for each combination of steps,
step size and clip in a grid. Noise comes from seeds: no row is a private release.
"""

import math
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma
from scipy.stats import ortho_group

from benchmarks.kit.device import chosen_device, one_thread
from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.jobs import Share, share
from benchmarks.kit.peaks import peak, reset_peak
from benchmarks.kit.remake import SIX_DIGITS, Remake, Row
from benchmarks.kit.tables import rounded
from benchmarks.problems import padded
from dpzero_theory.cli import Parser, Several, integer
from dpzero_theory.privacy.gaussian import gdp_from_epsilon, noise_std
from dpzero_theory.sphere import DIRECTIONS
from dpzero_theory.synthetic import engine
from dpzero_theory.synthetic.lanes import Lanes
from dpzero_theory.synthetic.problems import Quadratic

Array = NDArray[np.float64]

EPSILON, DELTA = 2.0, 1e-6
TAIL_TRACE = 0.5
CELL_KEY = ("experiment", "d", "p", "law", "rotated", "directions", "records", "seed")
KEY = (*CELL_KEY, "method", "steps", "step_size", "clip")
FIELDS = ("r", "gradient_squared", "last_gradient_squared", "cpu_s", "peak_mb")


@dataclass(frozen=True)
class Grid:
    """The grid of parameters that every sweep tries, on a number of samples.

    evaluations: how often a record is evaluated, which is K times the number of steps. step_sizes: in units of 1/(r +
    2), with r the effective rank. clips: in units of sqrt(K), or of sqrt(d) for DPGD-0th.
    """

    samples: int = 1_000
    evaluations: tuple[int, ...] = (5, 20, 80, 320, 1_280, 2_560)
    step_sizes: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    clips: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


GRID = Grid()


@dataclass(frozen=True)
class RankCell:
    """A problem and how it is run: the experiment's name, dimension d, number p of leading eigenvalues, law of the
    directions, whether the Hessian is rotated, and the number of directions per step. Every method runs the whole grid
    of parameters on it."""

    experiment: str
    d: int
    p: int = 50
    law: str = "sphere"
    rotated: bool = False
    directions: int = 1

    @property
    def methods(self) -> tuple[str, ...]:
        return ("dpzero", "dpgd-0th") if self.directions == 1 else ("dpzero",)

    @property
    def r(self) -> float:
        return float(self.head().sum()) + self.tail

    @property
    def tail(self) -> float:
        """The sum of the equal tiny eigenvalues, that is, of all but the first p: 1/2, and in the experiment `log`
        1/(p+1) + ... + 1/d."""
        return float(digamma(self.d + 1) - digamma(self.p + 1)) if self.experiment == "log" else TAIL_TRACE

    def head(self) -> Array:
        return 1 / np.arange(1, self.p + 1)


EXPERIMENTS: dict[str, list[RankCell]] = {
    "dimension": [RankCell("dimension", 10**k) for k in range(2, 8)],
    "beyond": [RankCell("dimension", 10**8)],
    "log": [RankCell("log", 10**k, min(10**k - 1, 999)) for k in range(2, 8)],
    "rank": [RankCell("rank", 10_000, p) for p in (1, 3, 10, 100, 1_000)],
    "law": [RankCell("law", 200, law=law) for law in DIRECTIONS],
    "rotated": [RankCell("rotated", 200, law=law, rotated=True) for law in DIRECTIONS],
    "directions": [RankCell("directions", 10_000, directions=k) for k in (1, 4, 16, 64)],
}
DEFAULT = [name for name in EXPERIMENTS if name != "beyond"]


def lanes_of(cell: RankCell, grid: Grid, method: str, records: int) -> Lanes:
    """Return all combinations of steps, step size and clip of a method on one problem, for the sweep engine, which
    calls each a lane. Each has the noise that makes its run (2, 1e-6)-DP when one of the n = samples * `records`
    records is replaced. `cell` is the problem, and `grid` has the number of samples and the values to combine."""
    gdp = float(gdp_from_epsilon(EPSILON, DELTA))
    scale = math.sqrt(cell.d if method == "dpgd-0th" else cell.directions)
    return Lanes.grid(
        steps=[count // cell.directions for count in grid.evaluations if count >= cell.directions],
        step_sizes=[step_size / (cell.r + 2) for step_size in grid.step_sizes],
        clips=[clip * scale for clip in grid.clips],
        noise_std=lambda steps, clip: noise_std(gdp, steps, clip, grid.samples * records, "replace-one"),
    )


def run_cell(cell: RankCell, grid: Grid, records: int, seed: int, device: str = "cpu") -> list[dict[str, Any]]:
    """Run every method on one problem with one seed, and return a row for each combination of steps, step size and
    clip. `records` is the number of equal records that a sample stands for. `cell` is the problem, `grid` has the
    parameters to try, and `device` is where the runs are computed."""
    reset_peak(device)
    cpu = time.process_time()
    drawn = _drawn(cell, grid, seed)
    scalars = np.random.default_rng([seed, 3])
    lanes = {method: lanes_of(cell, grid, method, records) for method in cell.methods}
    sweeps = [
        engine.Sweep(
            np.zeros(drawn.problem.d),
            lanes[method],
            method == "dpgd-0th",
            drawn.noise if method == "dpgd-0th" else scalars.standard_normal,
        )
        for method in cell.methods
    ]
    outcomes = engine.run_together(
        drawn.problem, sweeps, directions=drawn.directions, directions_per_step=cell.directions, device=device
    )
    usage = {"cpu_s": round(time.process_time() - cpu, 2), "peak_mb": round(peak(device), 1)}
    return [
        {
            **_cell_key(cell, records, seed),
            **dict(zip(KEY[-4:], (method, int(steps), rounded(alpha, 6), rounded(clip, 6)), strict=True)),
            "r": cell.r,
            "gradient_squared": rounded(outcome.gradient_squared[0][lane], 6),
            "last_gradient_squared": rounded(_last(drawn.problem, outcome.last[lane]), 6),
            **usage,
        }
        for method, outcome in zip(cell.methods, outcomes, strict=True)
        for lane, (steps, alpha, clip) in enumerate(_settings(lanes[method]))
    ]


def _settings(lanes: Lanes) -> list[tuple[Any, Any, Any]]:
    return list(zip(lanes.steps, lanes.step_size, lanes.clip, strict=True))


def _last(problem: Quadratic, x: Array) -> float:
    return float(np.square(problem.gradient(x)).sum())


def _cell_key(cell: RankCell, records: int, seed: int) -> dict[str, Any]:
    values = (cell.experiment, cell.d, cell.p, cell.law, cell.rotated, cell.directions, records, seed)
    return dict(zip(CELL_KEY, values, strict=True))


def _drawn(cell: RankCell, grid: Grid, seed: int) -> padded.Drawn:
    tail = cell.tail / (cell.d - cell.p)
    rng = lambda stream: np.random.default_rng([seed, cell.d, stream])  # noqa: E731
    # padded.draw joins the tail's coordinates if they are more than 2 steps + 2; with d steps more it keeps all
    # coordinates, which a rotated problem needs
    steps = max(grid.evaluations) + cell.d * cell.rotated
    drawn = padded.draw(rng, cell.head(), tail, cell.d, grid.samples, steps, cell.law)
    return _turned(drawn, cell.d) if cell.rotated else drawn


def _turned(drawn: padded.Drawn, d: int) -> padded.Drawn:
    """Return the problem with its Hessian A turned to Q A Q^T by a random orthogonal Q, expressed in the eigenvectors
    of Q A Q^T, where the Hessian is A again and data, directions and noise are multiplied by Q^T. Directions of a law
    that depends on the axes thus have other axes than the Hessian. `drawn` has the problem in d dimensions and its
    streams of random vectors."""
    q, given = _orthogonal(d), drawn.problem
    data = given.points / np.sqrt(given.spectrum) + given.center
    turned: Any = lambda stream: lambda count: stream(count) @ q  # noqa: E731
    return padded.Drawn(Quadratic(data @ q, given.spectrum), turned(drawn.directions), turned(drawn.noise))


@lru_cache(maxsize=1)
def _orthogonal(d: int) -> Array:
    q: Array = ortho_group.rvs(d, random_state=np.random.default_rng(d))
    return q


def _of_key(key: Row) -> RankCell:
    return RankCell(*(key[name] for name in CELL_KEY[:-2]))


def _again(row: Row) -> list[dict[str, Any]]:
    return run_cell(_of_key(row), GRID, row["records"], row["seed"])


REMAKES = {
    "rank": Remake(
        KEY,
        _again,
        varies=("cpu_s", "peak_mb"),
        elsewhere=SIX_DIGITS,
        upset=lambda row: row["step_size"] * (row["r"] + 2) > 1,
    )
}


def _check(parser: Parser, options: Namespace) -> None:
    options.device = chosen_device(parser, options.device)
    one_thread(parser, options)


def _cells(options: Namespace) -> Sequence[dict[str, Any]]:
    every = [
        _cell_key(cell, options.records, seed)
        for seed in range(options.seeds)
        for name in options.experiments
        for cell in EXPERIMENTS[name]
    ]
    mine: Sequence[dict[str, Any]] = options.share.of(every)
    return mine


def _keys(options: Namespace, at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cell = _of_key(at)
    for method in cell.methods:
        for steps, alpha, clip in _settings(lanes_of(cell, GRID, method, options.records)):
            values = {"steps": int(steps), "step_size": rounded(alpha, 6), "clip": rounded(clip, 6)}
            yield {**at, "method": method, **values}


def _told(at: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    best = min(row["gradient_squared"] for row in rows if row["method"] == "dpzero")
    told = f"best DPZero {best:.4g}, {rows[0]['cpu_s']} s, {rows[0]['peak_mb']} MB"
    return f"{_of_key(at)} seed {at['seed']}: {told}"


EXPERIMENT = Experiment(
    name="rank",
    about=__doc__,
    flags=[
        flag("--experiments", nargs="+", action=Several, choices=EXPERIMENTS, default=DEFAULT),
        flag("--seeds", type=integer(1, 1000), default=5),
        flag("--share", type=share, default=Share(), help="I/N: the I-th of N machines (benchmarks.merge)"),
        flag("--records", type=integer(1, 10**6), default=1, help="records that a sample stands for"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="cpu"),
    ],
    key=KEY,
    fields=FIELDS,
    seeds=lambda options: range(options.seeds),
    device=lambda options: str(options.device),
    settings={"samples": GRID.samples, "epsilon": EPSILON, "delta": DELTA, "tail": TAIL_TRACE, "noise": "seeded"},
    cell=CELL_KEY,
    figure="figures.dimension",
    compress=True,
    check=_check,
    cells=_cells,
    keys=_keys,
    measure=lambda options, at: run_cell(_of_key(at), GRID, options.records, at["seed"], options.device),
    told=_told,
)
