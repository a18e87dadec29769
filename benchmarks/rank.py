"""Sweeps in which only the dimension varies, or only the effective rank.  python -m benchmarks rank

The loss is quadratic with eigenvalues 1, 1/2, ..., 1/p and a tail of equal tiny eigenvalues whose trace is 1/2,
whatever d is. So the effective rank r and F_S(x_0) - F_S^* stay as they are while d goes from 10^2 to 10^7
(`problems.padded`, which is exact at no cost in d). The experiments are:

- dimension: r = 5.0 (p = 50), d from 10^2 to 10^7;
- log: the paper's mode (c), in which r grows like log d: eigenvalues 1/i up to the 999th, the others equal with the
same trace;
- rank: d = 10^4, r from 1.5 to 8.0 (p from 1 to 1,000).

There are n = 1,000 samples, each standing for `--records` equal records, so that the noise is that of n = 1,000 times
as many. Runs of DPZero and DPGD-0th are (2, 1e-6)-DP with exact calibration, start at 0 and draw directions on the
sphere. There is one row for each combination of steps, step size and clip in a grid. Noise comes from seeds: no row is
a private release.
"""

import math
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma

from benchmarks.kit.device import chosen_device, one_thread
from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.peaks import peak, reset_peak
from benchmarks.kit.remake import Remake, Row
from benchmarks.kit.tables import rounded
from benchmarks.problems import padded
from dpzero_theory.cli import Parser, Several, integer
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.synthetic import engine
from dpzero_theory.synthetic.lanes import Lanes
from dpzero_theory.synthetic.problems import Quadratic
from dpzero_theory.theory.noise import noise_std

Array = NDArray[np.float64]

EPSILON, DELTA = 2.0, 1e-6
TAIL_TRACE = 0.5
CELL_KEY = ("experiment", "d", "p", "law", "rotated", "directions", "records", "seed")
KEY = (*CELL_KEY, "method", "steps", "step_size", "clip")
FIELDS = ("r", "gradient_squared", "last_gradient_squared", "cpu_s", "peak_mb")


@dataclass(frozen=True)
class Grid:
    """The grid of parameters that every sweep tries, on a number of samples.

    step_sizes: in units of 1/(r + 2), with r the effective rank. clips: in units of 1, or of sqrt(d) for DPGD-0th.
    """

    samples: int = 1_000
    steps: tuple[int, ...] = (5, 20, 80, 320, 1_280, 2_560)
    step_sizes: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    clips: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


GRID = Grid()


class RankCell(NamedTuple):
    """A problem: the experiment's name, the dimension d, and the number p of leading eigenvalues. Both methods run the
    whole grid of parameters on it, with one direction a step from the sphere."""

    experiment: str
    d: int
    p: int = 50
    law: str = "sphere"
    rotated: bool = False
    directions: int = 1

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


METHODS = ("dpzero", "dpgd-0th")
EXPERIMENTS: dict[str, list[RankCell]] = {
    "dimension": [RankCell("dimension", 10**k) for k in range(2, 8)],
    "log": [RankCell("log", 10**k, min(10**k - 1, 999)) for k in range(2, 8)],
    "rank": [RankCell("rank", 10_000, p) for p in (1, 3, 10, 100, 1_000)],
}


def lanes_of(cell: RankCell, grid: Grid, method: str, records: int) -> Lanes:
    """Return all combinations of steps, step size and clip of a method on one problem, for the sweep engine, which
    calls each a lane. Each has the noise that makes its run (2, 1e-6)-DP when one of the n = samples * `records`
    records is replaced. `cell` is the problem, and `grid` has the number of samples and the values to combine."""
    gdp = float(gdp_from_epsilon(EPSILON, DELTA))
    scale = math.sqrt(cell.d) if method == "dpgd-0th" else 1.0
    return Lanes.grid(
        steps=grid.steps,
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
    lanes = {method: lanes_of(cell, grid, method, records) for method in METHODS}
    sweeps = [
        engine.Sweep(
            np.zeros(drawn.problem.d),
            lanes[method],
            method == "dpgd-0th",
            drawn.noise if method == "dpgd-0th" else scalars.standard_normal,
        )
        for method in METHODS
    ]
    outcomes = engine.run_together(drawn.problem, sweeps, directions=drawn.directions, device=device)
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
        for method, outcome in zip(METHODS, outcomes, strict=True)
        for lane, (steps, alpha, clip) in enumerate(_settings(lanes[method]))
    ]


def _settings(lanes: Lanes) -> list[tuple[Any, Any, Any]]:
    return list(zip(lanes.steps, lanes.step_size, lanes.clip, strict=True))


def _last(problem: Quadratic, x: Array) -> float:
    return float(np.square(problem.gradient(x)).sum())


def _cell_key(cell: RankCell, records: int, seed: int) -> dict[str, Any]:
    return dict(zip(CELL_KEY, (*cell, records, seed), strict=True))


def _drawn(cell: RankCell, grid: Grid, seed: int) -> padded.Drawn:
    rng = lambda stream: np.random.default_rng([seed, cell.d, stream])  # noqa: E731
    tail = cell.tail / (cell.d - cell.p)
    return padded.draw(rng, cell.head(), tail, cell.d, grid.samples, max(grid.steps))


def _of_key(key: Row) -> RankCell:
    return RankCell(*(key[name] for name in CELL_KEY[:-2]))


def _again(row: Row) -> list[dict[str, Any]]:
    return run_cell(_of_key(row), GRID, row["records"], row["seed"])


REMAKES = {"rank": Remake(KEY, _again, varies=("cpu_s", "peak_mb"))}


def _check(parser: Parser, options: Namespace) -> None:
    options.device = chosen_device(parser, options.device)
    one_thread(parser, options)


def _cells(options: Namespace) -> Sequence[dict[str, Any]]:
    return [
        _cell_key(cell, options.records, seed)
        for seed in range(options.seeds)
        for name in options.experiments
        for cell in EXPERIMENTS[name]
    ]


def _keys(options: Namespace, at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cell = _of_key(at)
    for method in METHODS:
        for steps, alpha, clip in _settings(lanes_of(cell, GRID, method, options.records)):
            values = {"steps": int(steps), "step_size": rounded(alpha, 6), "clip": rounded(clip, 6)}
            yield {**at, "method": method, **values}


def _told(at: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    best = min(row["gradient_squared"] for row in rows if row["method"] == "dpzero")
    told = f"best DPZero {best:.4g}, {rows[0]['cpu_s']} s, {rows[0]['peak_mb']} MB"
    return f"{_of_key(at)} seed {at['seed']}: {told}"


def _measure(options: Namespace, at: dict[str, Any]) -> list[dict[str, Any]]:
    return run_cell(_of_key(at), GRID, options.records, at["seed"], options.device)


EXPERIMENT = Experiment(
    name="rank",
    about=__doc__,
    flags=[
        flag("--experiments", nargs="+", action=Several, choices=EXPERIMENTS, default=list(EXPERIMENTS)),
        flag("--seeds", type=integer(1, 1000), default=5),
        flag("--records", type=integer(1, 10**6), default=1, help="records that a sample stands for"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="cpu"),
    ],
    key=KEY,
    fields=FIELDS,
    seeds=lambda options: range(options.seeds),
    device=lambda options: str(options.device),
    settings={"samples": GRID.samples, "epsilon": EPSILON, "delta": DELTA, "tail": TAIL_TRACE, "noise": "seeded"},
    compress=True,
    check=_check,
    cells=_cells,
    keys=_keys,
    measure=_measure,
    told=_told,
    workers=1,
)
